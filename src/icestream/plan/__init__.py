"""Plans: from the queries that users compose to the operators that run them.

`nodes` and `windows` are pure data; `grid`, `events`, `joins` and `jobs` compile them, `grid/lower`
to the operators of windows; `fuse` and `balance` decide which operators run together and where.
`explain`, `forecast` and `state_schema` describe a plan, its expected cost and its state.
"""
