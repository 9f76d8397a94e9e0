"""Session windows: runs of a group's events in which no pause exceeds the gap.

`spec` defines sessions; `operator` runs them. `fragments` holds what a batch adds, `pages` the open
sessions, in the format of `page_file`; `rows` is the form that both have in memory.
"""
