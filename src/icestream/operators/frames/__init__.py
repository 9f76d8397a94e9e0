"""Frames: windows that move with the events, over the last n rows or a range of time.

`operator` runs all frames of a shard; `moving` and `rings` are the two ways in which tuples leave a
frame; `tuples` keeps the events on the log, `lift` and `layout` define their form; `output`
collects results.
"""
