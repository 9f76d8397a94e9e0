"""Versions as Spark jobs.

`query` is the handle of a running query, `tasks` runs ingest and shards as jobs, `placement` keeps
shards on the executors of their arenas, and `sink` and `parquet_sink` deliver rows. `remote` is
storage other than a local disk; `session`, `daemon` and `warm_up` set up Spark and its workers.
"""
