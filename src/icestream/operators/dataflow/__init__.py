"""Grouped sub-queries of one shard: steps over changes, joined to a graph.

`steps` says what a step is; `component` runs the steps of a shard on its state.
"""
