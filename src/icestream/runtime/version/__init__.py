"""Versions: shards compute them, the driver commits them, progress and history report them.

`work` is what a plan contributes and `task` runs a shard; `settings`, `quotas` and `scaling` divide
memory and shards among tasks; `retention` removes old versions; `progress`, `shard_report` and
`history` report.
"""
