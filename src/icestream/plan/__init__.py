"""Plans: from what users compose to the operators that run it.

`nodes` and `windows` are pure data; `grid`, `events`, `joins` and `jobs` compile them; `fuse` and
`balance` decide what runs together and where; `lower` makes the operators; `explain`, `forecast`
and `state_schema` describe a plan, what it will take and what it keeps.
"""
