"""Windows of raw tuples on disk: fixed-size blocks, of which a few are in memory.

`layout` defines how tuples are stored in a block, `replacement` decides which blocks stay in memory
(without touching one), `store` gives blocks places in files (`file_runs`), `buffers` moves them,
`repository` combines these for one window or for several over one stream, and `request_formulas`
predicts the number of requests.
"""
