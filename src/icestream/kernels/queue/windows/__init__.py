"""Windows as updates: states of keys, zones of tuples, marks of windows, lists of keys."""
