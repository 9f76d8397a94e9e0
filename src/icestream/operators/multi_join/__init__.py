"""The n-way join on one key, which spills partitions and emits their missing results later.

`spec` defines a join; `operator` runs it. `resident` holds rows in memory and `probing` joins new
rows with them; `logged_rows` and `generations` keep rows on the log; `clean_up` emits the results
that spilled partitions owe; `spill_strategies` and `tracing` choose what to spill;
`recovery` restores a join.
"""
