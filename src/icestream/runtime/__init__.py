"""The runtime: how a plan is run, version by version.

`driver` makes versions; `version` has what every version needs, `work` what each kind of plan adds;
`ingest` and `exchange` bring events to the shards; `spark` runs tasks as Spark jobs, `local` in one
process.
"""
