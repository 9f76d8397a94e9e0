"""SQL expressions over Arrow batches, with Spark's semantics and without the JVM.

`parse` reads text into a `tree`; `compile` binds it to a schema, with the types of `types` and the
help of `context`; `rows` evaluates it. `functions` is the table of all functions: `operators`,
`text_functions` and `time_functions` bind them to kernels over arrays, which are in `arithmetic`,
`decimals`, `casts`, `times` and `intervals`.
"""
