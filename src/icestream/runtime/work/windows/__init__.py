"""A version of a query over windows.

`work` plans a version; `ingest`, `folding` and `prefold` fold or send events; `raw_events` and
`raw_event_reader` store them and fold them again; `shard` runs the operator.
"""
