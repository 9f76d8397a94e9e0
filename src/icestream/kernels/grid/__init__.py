"""Window aggregates: folding, groups, slides, sessions, windows that move with events."""
