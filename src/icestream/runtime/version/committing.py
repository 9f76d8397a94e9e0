"""The commit of a version: what its shards and splits report, put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from icestream.core.times import MINUS_INFINITY, Micros
from icestream.runtime.version.retention import VersionRetention
from icestream.runtime.version.scaling import placement_report
from icestream.runtime.version.task import ShardReport
from icestream.runtime.version.work import Arrivals, Parcel, VersionContext, VersionResult, total
from icestream.state.versions.commits import (
    CHANGED_PLAN,
    EVENTS,
    NO_SHARD,
    Commit,
    LiveSegment,
)


def commit_of(
    context: VersionContext,
    batch: int | None,
    arrived: Arrivals,
    made: VersionResult,
    versions: VersionRetention,
    *,
    ordinals: int,
    asked: int,
    epoch: int,
    emits: bool,
) -> Commit:
    """Return the commit of a version; its shards use this many `ordinals`.

    `batch` is the last one counted, `asked` the number of shards that the program sets. Rows that
    are delivered to nobody are not part of it.
    """
    before, version, reports = context.before, context.version, made.reports
    parcels = arrived.parcels
    placement = None if before is None else before.decisions["placement"]
    plan = None if before is None else before.decisions.get(CHANGED_PLAN)
    commit = Commit(
        version=version,
        batch=batch,
        watermark=arrived.reached,
        seen=arrived.seen,
        routes=context.routes,
        arenas=tuple(report.arena for report in reports),
        added=tuple(
            LiveSegment(report.shard, version, lifetime, info)
            for report in reports
            for lifetime, info in report.segments
        )
        + tuple(
            LiveSegment(NO_SHARD, version, EVENTS, p.sent.raw_events, p.report.begins)
            for p in made.raw_events
            if p.sent.raw_events is not None
        ),
        released=tuple((each.shard, ordinal) for each in reports for ordinal in each.released),
        results=tuple(each.result for each in reports if each.result is not None and emits),
        late=tuple(
            info
            for info in (*(p.sent.late for p in parcels), *(r.refused for r in reports))
            if info is not None
        ),
        tables=tuple(
            file
            for files in (*(r.tables for r in reports), *(p.sent.tables for p in parcels))
            for file in files
        ),
        bases=tuple(
            version if report.snapshot else (before.bases[report.shard] if before else 0)
            for report in reports
        ),
        next_ordinal=_next_ordinal(context, ordinals, parcels),
        decisions={
            **({} if plan is None else {CHANGED_PLAN: plan}),
            "flush": context.flushing,
            "entries": arrived.total("entries"),
            "placement": placement_report(
                placement, context.placement, context.sizing, reports, asked=asked
            ),
            **made.decisions,
        },
        totals=_totals(before, parcels, reports),
        epoch=epoch,
    )
    return replace(commit, horizon=_horizon(commit, versions))


def latest_times(
    before: Sequence[Micros | None], parcels: Sequence[Parcel]
) -> tuple[Micros | None, ...]:
    """Return the latest event time of each source for the commit, with those of a batch."""
    return tuple(
        max(
            (
                latest
                for latest in (seen, *(p.report.seen.get(number) for p in parcels))
                if latest is not None
            ),
            default=None,
        )
        for number, seen in enumerate(before)
    )


def _next_ordinal(context: VersionContext, ordinals: int, parcels: Sequence[Parcel]) -> int:
    """Return the first ordinal that neither shards nor stored events use."""
    free = context.first_ordinal + ordinals + len(parcels)
    kept = [each.sent.raw_events.ordinal for each in parcels if each.sent.raw_events is not None]
    return max(free, 1 + max(kept, default=0))


def _horizon(commit: Commit, versions: VersionRetention) -> Micros:
    """Return the watermark of the oldest base: no rebuild reads anything from before it."""
    oldest, last = min(commit.bases), versions.last
    if oldest == 0:
        return MINUS_INFINITY
    if last is None or oldest > last.version:
        return max(commit.settled, MINUS_INFINITY if last is None else last.horizon)
    return max(last.horizon, versions.settled(oldest))


def _totals(
    last: Commit | None, parcels: Sequence[Parcel], reports: Sequence[ShardReport]
) -> dict[str, int]:
    before = last.totals if last else {}
    news = {
        "events": total(parcels, "rows"),
        "late": total(parcels, "late"),
        "without_time": total(parcels, "without_time"),
        "bad_rows": sum(each.sent.bad_rows for each in parcels)
        + sum(report.statistics["bad_rows"] for report in reports),
        "rows": sum(sum(report.rows) for report in reports),
    }
    return {name: before.get(name, 0) + count for name, count in news.items()}
