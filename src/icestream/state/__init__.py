"""State that outgrows memory: the log is the state, memory is a cache over it.

This layer stores the state of operators. Every change is appended as a record to immutable,
checksummed segment files (`log`). All durable files go through one narrow interface (`files`), so
that tests can crash it at any step. Hot state lives in flat arrays over memory-mapped files
(`arena`), within a memory budget counted in bytes (`budget`). The log already has every change, so
eviction drops state from memory without writing it. Nothing here knows Spark, queries or operators.

* `groups`: rows by group, hot in memory or cold on the log, and which groups are evicted.
* `queue`: the keys of an update stream that wait to be served, and their order.
* `blocks`: windows of raw tuples in fixed-size blocks on disk.
* `index`: sorted runs on disk, found by id. `versions`: the commits of a checkpoint.
* `keys`, `key_columns`, `rows`, `table`: ids from key values, rows as words, hash tables.
"""
