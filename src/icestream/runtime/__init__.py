"""The runtime: it runs a plan, version by version.

`driver` makes versions. `version` has what every version needs, `work` what each kind of plan adds.
`ingest` reads events and `exchange` sends them to the shards. `spark` runs tasks as Spark jobs,
`local` runs them in one process.
"""
