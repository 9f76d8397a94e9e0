"""An index by id on disk.

`sorted_run` is one sorted file of pages, `sorted_index` a few of them with lookups and merges.
"""
