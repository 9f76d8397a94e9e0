"""Windows of raw tuples on disk: fixed-size blocks, of which a few are in memory.

`layout` says how tuples lie in a block, `pool` decides which blocks stay in memory (without
touching one), `store` gives blocks places in files, `buffers` moves them, `repository` puts these
together for one window or for several over one stream, and `formulas` foretell the requests.
"""
