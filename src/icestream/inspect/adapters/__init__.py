"""One adapter for each kind of operator: how its state is read."""
