"""The parts of the progress report about single shards and operators.

Idea: the driver has the report of every shard and knows which segments are live. Sums by component
show what each operator holds in memory and on disk; the single values show where the load is. Lists
have one element per shard, numbered across all components, so a report stays short.

Invariants:
1. The bytes of all operators, in memory and on disk, add up to the totals of the report
   (`test_oracle_operators_add_up_to_the_whole`).
2. The entries of all key groups add up to the entries that were sent
   (`test_oracle_key_groups_add_up_to_what_was_sent`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from icestream.runtime.version.task import ShardReport
from icestream.state.versions.commits import NO_SHARD
from icestream.state.versions.live_segments import LiveSegments


def shard_facts(reports: Sequence[ShardReport], live: LiveSegments, jobs: int) -> dict[str, Any]:
    """Return the facts of shards and of operators, one for each job of a plan."""
    per_job = max(1, len(reports) // jobs)
    operators = []
    for job in range(jobs):
        shards = range(job * per_job, (job + 1) * per_job)
        log_bytes = sum(map(live.bytes_of, shards))
        operators.append(_operator(reports[shards.start : shards.stop], log_bytes))
    written = [sum(info.bytes for _, info in report.segments) for report in reports]
    return {
        "operators": operators,
        "eventsBytes": live.bytes_of(NO_SHARD),
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


def key_group_facts(loads: Iterable[Mapping[int, int]], routes: Sequence[int]) -> dict[str, Any]:
    """Report the entries that a batch sent to each key group, and the owning shards.

    `loads` are the entries by key group of every split.
    """
    entries = [0] * len(routes)
    for load in loads:
        for group, count in load.items():
            entries[group] += count
    if not any(entries):
        return {}
    # key groups of a shard are mostly contiguous: store runs of a shard and a length
    owners = [[shard, len(list(run))] for shard, run in groupby(routes)]
    return {"keyGroups": {"entries": entries, "owners": owners}}


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
