"""The command line of graphscope: a thin layer over the library's public names."""
