"""Windows as updates: states of keys, zones of tuples, marks of windows, lists of keys.

`transitions` has the rules for a tuple, `tuple_batches` loops around them, `zones` the buffers.
"""
