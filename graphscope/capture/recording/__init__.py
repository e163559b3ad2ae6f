"""Running code and noting every op: where its inputs came from, under which mode, in which module and line."""
