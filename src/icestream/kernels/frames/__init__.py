"""Windows that move with events: running rows of groups, and tuples in blocks."""
