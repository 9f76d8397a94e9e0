"""Tools for checkpoints: what state they hold, whether they are intact, what can be saved.

`access` opens a checkpoint and restores its shards in a scratch folder; `state_rows` yields the
rows of the state through an adapter for each kind of operator (`adapters`), and writes them as
Parquet. `verify` checks every byte and reference, `repair` saves what is intact, `differences`
compares versions, and `rewrite` writes edited rows back (`rewriting`). The command is
`icestream.commands.state`.
"""
