"""Live key figures of a chain of call centres, over the last 24 hours, every 10 seconds.

`schema`, `distributions` and `generator` make the stream, `kpis` the query, `display` and `demo`
show it.
"""
