"""Loops over flat arrays, compiled by numba: the only layer where a row costs nanoseconds.

A kernel takes numpy arrays it does not own, some of them zero-copy views of Arrow buffers or of
arena files, and fills others; it allocates nothing of the size of its input, knows no Spark, no
files and no budget, and trusts its caller to have checked every index. Each kernel `f` stands
beside a slow and obvious twin `f_reference` in numpy or plain Python, and a parity test feeds both
the same random input. `compile.kernel` is the only place that names the compiler.

Rooms go by what the arrays hold: `windows`, `synopses`, `lifetimes`, `joins`, `updates`,
`update_windows`; what several of them use is here.
"""
