"""Rows of groups: in memory (`heap`), on the log (`extents`, `chains`), inline, and which are cold.

`extent_plan` and `eviction` list the groups to read or write, `cold` ranks them by access.
"""
