"""The only package that imports torch: it turns what torch did into ``GraphData``."""
