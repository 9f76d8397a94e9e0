"""Shards that a version leaves alone, because nothing of them would change.

Idea: a query has more shards than a small batch has groups. A shard that no entry is for, and of
which no window closes, would open its state and leave it as it was. So its operator tells from
which watermark on it has something to do. Until then no task runs it: a commit names the arena of
the version that ran it last. The version that runs it next brings it to the watermark before.

Invariants:
1. Rows and state are those of running all shards (`test_oracle_shards_that_rest_change_no_row`,
   `test_crash_shards_that_rest_are_restored`).
2. A shard rests only in versions without a change of shards or stores, at most until a snapshot is
   due in any case (`test_shards_rest_until_a_snapshot_is_due`).

Cost: a dictionary entry for each shard; a version pays for the shards that it changes.

Limits: a new program runs all shards once. Operators that do not tell when they have something to
do never rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from icestream.runtime.version.task import ShardReport, ShardTask
from icestream.runtime.version.work import Arrivals, VersionContext
from icestream.state.snapshot_schedule import AT_LATEST

#: what the statistics of a shard at rest still hold
_LASTING = ("groups", "partitions", "slices", "memory_bytes", "executor")


class RestingShards:
    """The last reports of the shards of a query, which tell how long each may rest."""

    def __init__(self) -> None:
        """Know nothing yet: every shard has to run."""
        #: the version that released an arena, and the report about it
        self._last: dict[str, tuple[int, ShardReport]] = {}

    def run(
        self, context: VersionContext, arrived: Arrivals, tasks: Sequence[ShardTask]
    ) -> list[ShardReport]:
        """Run the tasks of a version whose shards have something to do; report on all."""
        before, version = context.before, context.version
        known = {} if before is None else {arena: self._last.get(arena) for arena in before.arenas}
        may_rest = before is not None and not (context.flushing or context.last)
        touched = {context.routes[group] for each in arrived.parcels for group in each.report.load}
        reports: dict[int, ShardReport] = {}
        running = []
        for task in tasks:
            last = known.get(task.arena or "")
            if last is None or before is None:
                running.append(task)
            elif (
                may_rest
                and task.shard not in touched
                and arrived.reached < last[1].rests_until
                and version - before.bases[task.shard] < AT_LATEST
                and task.snapshot == "due"
                and task.lineage is None
            ):
                reports[task.shard] = _at_rest(last[1])
            else:
                rested = version - 1 - last[0]
                running.append(replace(task, rested=rested, rested_at=before.watermark))
        made = context.executor.run(running) if running else []
        reports.update((report.shard, report) for report in made)
        self._last = {arena: last for arena, last in known.items() if last is not None}
        self._last.update((report.arena, (version, report)) for report in made)
        return [reports[task.shard] for task in tasks]


def _at_rest(last: ShardReport) -> ShardReport:
    """Return the report of a version that did not run a shard."""
    held = {name: last.statistics[name] for name in _LASTING if name in last.statistics}
    statistics: dict[str, Any] = {
        **held,
        "peak_bytes": held["memory_bytes"],
        "seconds": 0.0,
        "sent": {},
        "bad_rows": 0,
    }
    return ShardReport(
        last.shard,
        last.arena,
        [],
        [0] * len(last.rows),
        snapshot=False,
        rebuilt=False,
        statistics=statistics,
        follows=last.follows,
    )
