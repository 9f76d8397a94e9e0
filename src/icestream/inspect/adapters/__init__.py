"""One adapter for each kind of operator, which reads its state."""
