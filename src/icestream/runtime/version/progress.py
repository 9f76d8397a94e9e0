"""The progress report of a version: Spark's fields, and those of this package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from icestream.core.clock import Clock
from icestream.runtime.version.disk_use import DiskUse
from icestream.runtime.version.process_memory import processes_report
from icestream.runtime.version.scaling import placement_facts
from icestream.runtime.version.shard_report import key_group_facts, shard_facts
from icestream.runtime.version.work import Parcel, VersionResult, total
from icestream.state.versions.commits import Commit
from icestream.state.versions.live_segments import LiveSegments


class Timer:
    """Measures the milliseconds of each phase of a version."""

    def __init__(self, clock: Clock) -> None:
        self._now = clock.monotonic
        self._started = self._last = clock.monotonic()
        self.milliseconds: dict[str, int] = {}

    def note(self, phase: str) -> None:
        now = self._now()
        self.milliseconds[phase] = round(1000 * (now - self._last))
        self.milliseconds["triggerExecution"] = round(1000 * (now - self._started))
        self._last = now


def progress_of(
    commit: Commit,
    parcels: Sequence[Parcel],
    made: VersionResult,
    live: LiveSegments,
    timer: Timer,
    *,
    budget: int,
    disk: tuple[DiskUse, int | None],
    jobs: int,
    shards: Mapping[str, Any],
    requests: Mapping[str, int],
    idle_sources: Sequence[str],
) -> dict[str, Any]:
    """Return the progress of a committed version, with the storage `requests` of the driver."""
    reports = made.reports
    tasks = [r.statistics.get("requests", 0) for r in reports] or [0]
    rows = total(parcels, "rows")
    log = live.bytes
    return {
        "version": commit.version,
        "batchId": None if commit.decisions["flush"] else commit.batch,
        "numInputRows": rows,
        "durationMs": timer.milliseconds,
        "icestream": {
            "ownerEpoch": commit.epoch,
            "watermark": commit.watermark,
            "lateEvents": commit.totals["late"],
            "idleSources": idle_sources,
            "eventsWithoutTime": commit.totals["without_time"],
            "badRows": commit.totals.get("bad_rows", 0),
            "entries": total(parcels, "entries"),
            "hotEvents": total(parcels, "lifted"),
            "resultRows": sum(sum(report.rows) for report in reports),
            "stateMemoryBytes": sum(r.statistics["memory_bytes"] for r in reports),
            "peakMemoryBytes": sum(r.statistics["peak_bytes"] for r in reports),
            "budgetBytes": budget,
            **processes_report(
                [r.statistics["process"] for r in reports if "process" in r.statistics]
            ),
            "logBytes": log,
            "diskBytes": disk[0].total,
            "diskBudgetBytes": disk[1],
            "segments": len(live),
            "storageRequests": {
                "commit": requests["commit"],
                "cleaning": requests["cleaning"],
                "ingest": sum(parcel.sent.requests for parcel in parcels),
                "shards": sum(tasks),
                "mostOfATask": max(tasks),
                "repeated": requests["repeated"]
                + sum(r.statistics.get("repeated", 0) for r in reports),
            },
            **made.facts,
            "logToEstimate": made.expected and round(log / made.expected.log, 3),
            "groups": sum(r.statistics["groups"] for r in reports),
            "partitions": sum(r.statistics["partitions"] for r in reports),
            "consolidatedRows": sum(r.statistics.get("consolidated", 0) for r in reports),
            "panesRead": sum(r.statistics.get("panes_read", 0) for r in reports),
            "rebuiltShards": [r.shard for r in reports if r.rebuilt],
            **placement_facts(commit.decisions["placement"]),
            **shards,
            "latestEventTime": max((t for t in commit.seen if t is not None), default=None),
            **shard_facts(reports, live, jobs),
            **key_group_facts((parcel.report.load for parcel in parcels), commit.routes),
        },
    }
