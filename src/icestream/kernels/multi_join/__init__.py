"""Joins of several streams.

`resident` has the rows in memory, `rows` writes them to the log, `gathering` reads and sorts them,
and `owed` finds the results among rows of several generations.
"""
