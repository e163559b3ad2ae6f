"""Findings about graphs: pure functions over ``GraphData``, without torch."""
