"""Windows as updates: states of keys, zones of tuples, marks of windows, lists of keys.

`transitions` has the rules for one tuple, `batch` the loops around them, `zones` the buffers.
"""
