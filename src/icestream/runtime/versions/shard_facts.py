"""What the progress report tells of single shards and operators.

Idea: the driver knows what every shard reported and which segments are live; added up by component
that is what each operator holds in memory and on disk, left as it is it shows where load is. Lists
have a place for each shard, numbered through all components, so a report stays short.

Invariant: the bytes of all operators, in memory and on disk, are those the report tells in all
(`test_oracle_operators_add_up_to_the_whole`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from icestream.runtime.versions.shard import ShardReport
from icestream.state.versions import NO_SHARD, LiveSegment


def shard_facts(
    reports: Sequence[ShardReport], live: Sequence[LiveSegment], jobs: int
) -> dict[str, Any]:
    """Return the facts of shards and of operators, one for each job of a plan."""
    per_job = max(1, len(reports) // jobs)
    kept = [0] * jobs
    events = 0
    for segment in live:
        if segment.shard == NO_SHARD:
            events += segment.info.bytes
        else:
            kept[segment.shard // per_job] += segment.info.bytes
    operators = [
        _operator(reports[job * per_job : (job + 1) * per_job], kept[job]) for job in range(jobs)
    ]
    written = [sum(info.bytes for _, info in report.segments) for report in reports]
    return {
        "operators": operators,
        "eventsBytes": events,
        "shards": {
            "seconds": [round(report.statistics["seconds"], 4) for report in reports],
            "memoryBytes": [report.statistics["memory_bytes"] for report in reports],
            "writtenBytes": written,
            "resultRows": [sum(report.rows) for report in reports],
            "groups": [report.statistics["groups"] for report in reports],
            # host and process of the executor that ran it; without Spark there is none
            "executors": [report.statistics.get("executor") for report in reports],
        },
    }


def _operator(reports: Sequence[ShardReport], log_bytes: int) -> dict[str, int]:
    cold = [report.statistics.get("cold", {}) for report in reports]
    index = sum(each.get("directory_bytes", 0) for each in cold)
    memory = sum(report.statistics["memory_bytes"] for report in reports)
    return {
        "memoryBytes": memory,
        "indexBytes": min(index, memory),
        "logBytes": log_bytes,
        "groups": sum(report.statistics["groups"] for report in reports),
        "coldGroups": sum(each.get("indexed", 0) for each in cold),
    }
