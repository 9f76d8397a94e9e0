"""State by group: rows of each group, hot in memory or cold on the log.

`spec` defines a group store's schema and what operators may request; `store` implements it. In
memory: `heap` (rows as words) and `directory` (facts about each group, found by id; `facts`). On
the log: `extents` (format), `writing`, `unsealed` (not yet written). `eviction` and `migration`
move groups between the two, and `cold` decides which; small, long-cold groups are stored in the
index itself. `cleaning` compacts the log, `recovery` restores a store from it.
"""
