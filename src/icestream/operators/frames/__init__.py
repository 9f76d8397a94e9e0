"""Windows that move with events: frames, and the operator that computes them."""
