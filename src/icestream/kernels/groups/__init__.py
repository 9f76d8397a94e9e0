"""Rows of groups: in memory (`heap`), on the log (`extents`, `chains`), inline, and which are cold.

`directory_passes` and `eviction` list the groups to read or write, `cold` ranks them by access.
"""
