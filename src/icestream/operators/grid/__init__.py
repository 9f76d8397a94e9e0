"""Windows: panes, the rows that run through them, and their slices on the log."""
