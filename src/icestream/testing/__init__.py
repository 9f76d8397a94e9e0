"""Tools for testing operators, stores and queries, shipped with the package.

`conformance` has the tests that every query must pass; `sources` generates random streams with
crashes inside; `simulated_disk` is a disk in memory that crashes, and `crash_runs` kills a query at
every step of it; `moving_shards` gives every task its own disk; `log_machine` tests the log against
a dict.
"""
