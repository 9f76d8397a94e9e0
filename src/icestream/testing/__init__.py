"""Tools for testing queries and operators, shipped with the package.

`plans` builds small queries, `sources` random streams with crashes inside, `oracles` the slow and
obvious answers, `conformance` the suite that every operator must pass; `faulty_files` is a disk
that crashes. `cluster` starts real executors, `mishaps` go wrong on them, `killing` kills programs.
"""
