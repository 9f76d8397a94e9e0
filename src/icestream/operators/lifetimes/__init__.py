"""Operators over events with lifetimes: changes in, changes out, state by group.

`changes` defines what operators exchange; `join`, `difference`, `aggregate` and `top` are the
operators of queries; `edges` builds events from start and end records; `output_modes` shapes the
output. `answers`, `counted_intervals`, `pairs`, `rows_by_group` and `lift` are shared by them.
"""
