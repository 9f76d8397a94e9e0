"""Grouped sub-queries of one shard: a graph of steps over changes.

`steps` and `spec` define the graph; `component` runs the steps of a shard on the state in `stores`.
`sorted_changes` reads input in the order of groups; `transient_groups` handles groups without
state; `results` builds rows; `join_step` runs a join that may spill, and measures it.
"""
