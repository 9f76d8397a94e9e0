"""Tools for testing queries and operators, shipped with the package.

`sources` makes random streams with crashes inside, `conformance` is the suite that every operator
must pass, `simulated_disk` is a disk that crashes, `crash_runs` kills a query at every step of its
disk, and `moving_shards` moves shards between tasks that share no disk.
"""
