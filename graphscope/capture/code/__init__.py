"""What the source of a program says: lines, statements that switch gradients, expressions."""
