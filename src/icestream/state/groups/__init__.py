"""State by group: rows of each group in synopses, hot in memory or cold on the log.

`spec` says what a synopsis is and what operators may ask; `store` keeps it, with `rows` (batches as
words), `heap` and `directory` (what is in memory), `extents` and `writing` (what is on the log),
`migration` and `residency` (who is where), `cold_index` and `carrying` (groups that are long cold),
`cleaning` and `history` (room on the log, and coming back from it).
"""
