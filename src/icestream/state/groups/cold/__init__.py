"""Which groups are evicted: accesses of groups in, groups to evict out.

`classifiers` rank the groups of one sub-query, and `manager` has each sub-query give up its share
of the memory that is needed, in small batches. Nothing here reads or writes a group: the operators'
store does that.
"""
