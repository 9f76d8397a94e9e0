"""Loops over flat arrays, compiled by numba: the only layer that spends nanoseconds per row.

A kernel takes numpy arrays it does not own, some of them zero-copy views of Arrow buffers or of
arena files, and fills others; it allocates nothing of the size of its input, knows no Spark, no
files and no budget, and trusts its caller to have checked every index. For a kernel `f` the tests
have a slow and obvious twin in numpy or plain Python (`tests/oracles/kernels`), and a
parity test feeds both the same random input. `compile.kernel` alone names the compiler.

Folders go by what the arrays hold: `grid`, `frames`, `lifetimes`, `multi_join`, `groups`, `queue`;
what several of them use is here.
"""
