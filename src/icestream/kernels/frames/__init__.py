"""Windows that move with events: running rows of groups (`moving`)."""
