"""The slow and obvious versions that operators are compared with.

Modules are named after what they check (`grid`, `frames`, `sessions`, `lifetimes`, `multi_join`,
`queue`); `plain_*` are simple stand-ins for parts of the runtime, `kernels` mirrors the kernels.
"""
