"""Loops over flat arrays, compiled by numba: the only layer that spends nanoseconds per row.

A kernel reads numpy arrays that it does not own, some of them zero-copy views of Arrow buffers or
of arena files, and fills others. It allocates nothing of the size of its input, knows no Spark, no
files and no budget, and trusts its caller to have checked every index. Each kernel has a slow,
obvious counterpart in numpy or plain Python in `tests/oracles/kernels`, and a parity test feeds
both the same random input. `compile.kernel` is the only place that names the compiler.

Folders are named like those of operators and state: `grid`, `frames`, `lifetimes`, `multi_join`,
`groups`, `queue`; kernels that several of them use are at the top.
"""
