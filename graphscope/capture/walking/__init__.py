"""From tensors to their graph: nodes, saved tensors, names, and how deep one may go."""
