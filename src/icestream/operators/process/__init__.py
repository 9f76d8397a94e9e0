"""User-defined operators: Python code with typed state by group and timers in event time.

`per_group` is the interface for code that handles one group at a time, `vectorised` the one for
code that handles many. `declarations` defines the kinds of state; `operator` runs a processor over
changes, with `group_run` or `column_run`. Files named `group_*` belong to the first interface,
files named `column_*` to the second; `stored_state`, `timers`, `grouping`, `values` and `output`
serve both.
"""
