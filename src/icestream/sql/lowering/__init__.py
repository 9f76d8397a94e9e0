"""From relations to queries: frames of Spark, windows on a grid, and events with lifetimes.

`staged` has what Spark does before `ice.stream`, `flowing` what operators over lifetimes do,
`grid` the windows on a grid, and `lower` decides between them; `query` is `ice.sql`.
"""
