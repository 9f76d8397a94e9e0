"""Operators of jobs: `map`, `compute` and `consolidate`, which run functions of the user.

`mapping`, `compute` and `consolidate` are the operators; `folding` and `batches` call the
functions; `inference` finds their output columns; `spans` assigns tuples with a time span to
windows.
"""
