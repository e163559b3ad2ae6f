"""What only the living program can tell, for the analysis of its graph."""
