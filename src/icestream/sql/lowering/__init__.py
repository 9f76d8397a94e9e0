"""From relations to queries: frames of Spark, windows on a grid, and events with lifetimes.

`in_spark` has what Spark does before `ice.stream`, `with_state` what operators over lifetimes do,
`windows` the windows on a grid, and `lower` decides between them; `query` is `ice.sql`.
"""
