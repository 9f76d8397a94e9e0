"""User-defined operators: Python code with typed state by group and timers in event time.

`per_group` is the form for one group at a time, `vectorised` that for many; `declared` says what
can be kept, `operator` runs either form over changes.
"""
