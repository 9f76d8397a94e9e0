"""Rows of groups: in memory, on the log, in the cold index, and which of them are cold."""
