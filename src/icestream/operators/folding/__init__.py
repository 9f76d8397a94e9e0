"""Folding of events into rows of partial aggregates.

`fields` defines fields and their layout, `columns` reads inputs, `cells` finds events of one group
and pane, `fold` folds them into a table of entries, `sorted_runs` sorts and merges entries.
"""
