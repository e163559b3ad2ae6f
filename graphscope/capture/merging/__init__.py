"""A recording laid over a walk."""
