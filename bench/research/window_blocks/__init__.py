"""Windows of raw tuples on disk: fixed-size blocks, of which a few are in memory.

`layout` says how tuples lie in a block, `replacement` decides which blocks stay in memory (without
touching one), `store` gives blocks places in files, `buffers` moves them, and `repository` puts
these together for one window or for several over one stream.
"""
