"""Who leaves memory: hits of groups in, groups to migrate out.

`classifiers` rank the groups of one sub-query, `targets` say how many bytes each sub-query gives
up, and `manager` meets the targets in small batches. Nothing here reads or writes a group: the
operators' store does, when it is told which ones.
"""
