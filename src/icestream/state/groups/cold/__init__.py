"""Which groups are evicted: accesses of groups in, groups to evict out.

`classifiers` rank the groups of one sub-query, `targets` compute how many bytes each sub-query
gives up, and `manager` meets the targets in small batches. Nothing here reads or writes a group:
the operators' store does that.
"""
