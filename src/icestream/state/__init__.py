"""State that outgrows memory: the log is the state, memory is a cache over it.

This layer keeps what operators remember. Every change is appended as a record to immutable,
checksummed segment files (`log`), reached only through a narrow file interface (`files`) that tests
can crash at any step. What is hot lives in flat arrays over memory-mapped files (arenas), inside a
memory budget counted in bytes; since the log already holds every change, what leaves memory is
dropped and only its 8-byte marker stays. Nothing here knows Spark, queries or operators.
"""
