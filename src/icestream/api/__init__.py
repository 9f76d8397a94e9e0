"""The public API: streams, windows, aggregates, joins, jobs and writers, named as in PySpark.

Start at `stream` (`ice.stream`, windows and groups). `functions` has the aggregates, `events`
and `joins` the queries over lifetimes, `updates` the update streams (`latestBy`), `jobs` the
operators that map, compute and consolidate. `writer` starts queries, `state` reads and edits
their state. `shared_plan`, `event_writer` and `pre_queue` turn what users write into plans.
"""
