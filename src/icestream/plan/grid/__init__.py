"""Plans of windows: what is kept, what is shared, what it costs."""
