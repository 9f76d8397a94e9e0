"""Windows on a grid of panes: tumbling, hopping, sliding and cumulative.

`spec` defines what a query computes; `operator` runs it. `rolling` moves panes through the running
rows of one kind of window, which `groups` and `partitions` hold; `strides` does so for many windows
at a time; `two_stacks` and `suffix_stack` serve fields without an inverse; `slices` and `slice_log`
keep panes on the log; `refolding` folds them again from raw events; `composed_windows` builds long
windows from short ones; `emission` builds result rows, `records` logs running rows.
"""
