"""Windows: what the log stores for them, which are composed of others, and the tasks to run.

Idea: measurements of batches decide what depends on the data, and the commit records it: whether
the log stores panes or raw events; until there are some, which windows are composed of others. If
the log has raw events, a separate job folds those that leave a window. If all fields have an
inverse, the store is looked at again at intervals: events stay as they were stored.

Invariants:
1. A version that is computed again decides the same
   (`test_the_choice_of_a_store_is_kept_in_the_commit`).
2. Rows do not depend on when the store changes (`test_oracle_the_store_may_change`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from icestream.core.arrays import Ints
from icestream.core.times import MINUS_INFINITY, Micros
from icestream.operators.grid.composed_windows import Tiled
from icestream.operators.grid.operator import PANES
from icestream.plan.grid import cost, lower
from icestream.plan.grid.cost import PlanComparison
from icestream.plan.grid.lower import AUTO, TUPLES
from icestream.plan.grid.space_formulas import SpaceEstimate
from icestream.plan.nodes.queries import Plan
from icestream.runtime.version.resting import RestingShards
from icestream.runtime.version.task import ShardReport
from icestream.runtime.version.work import (
    Arrivals,
    Parcel,
    VersionContext,
    VersionResult,
    Work,
    total,
)
from icestream.runtime.work.windows.folding import LEAST_TABLE_BYTES, TABLE_BYTES
from icestream.runtime.work.windows.ingest import Ingest
from icestream.runtime.work.windows.raw_event_reader import RawEventReader
from icestream.runtime.work.windows.raw_events import ExpiredEventFold, settled_from
from icestream.runtime.work.windows.shard import WindowShard
from icestream.state.files import Files
from icestream.state.versions.commits import (
    EVENTS,
    LATEST_END,
    NO_SHARD,
    SEGMENTS,
    Commit,
    LiveSegment,
    latest_of,
)

#: versions between two attempts to find windows that are composed of others
COMPOSED_EVERY = 16
#: versions between two comparisons of the stores
REVIEWED_EVERY = 64
#: approximate bytes of a group in memory besides its row: index and key
GROUP_OVERHEAD = 24


class WindowWork(Work):
    """Versions of a plan of windows."""

    def __init__(self, plan: Plan, files: Files, root: str) -> None:
        """Work on the checkpoint at `root`."""
        self._plan = plan
        #: the part of the plan with windows on a grid
        self._panes = lower.on_panes(plan)
        self._files = files
        self._root = root
        self._resting = RestingShards()

    def ordinals(self, shards: int) -> int:
        return shards * len(lower.lowered(self._plan).lifetimes)

    def ingest(self, context: VersionContext) -> Ingest:
        kept = None
        if self._store(context.before) != PANES or self._reviews(context):
            kept = context.first_ordinal + self.ordinals(context.shards)
        table_bytes = _table_bytes(context)
        return Ingest(
            self._plan, context.version, context.watermark, context.routes, table_bytes, kept
        )

    def run(self, context: VersionContext, arrived: Arrivals) -> VersionResult:
        """Decide what is still open, fold the events that leave, and run the shards."""
        before, present = context.before, self._store(context.before)
        parcels, reached = arrived.parcels, arrived.reached
        compared = present == AUTO or self._reviews(context)
        estimate = self._estimate(context, arrived) if compared else None
        store, switched = present, self._switched(before)
        if estimate is not None:
            store = estimate.preferred("tuples" if present == TUPLES else "panes")
            if present not in (AUTO, store):
                switched = (*switched, context.first_ordinal)
        composition = self._composition(context, store, arrived)
        paths = arrived.paths
        left: list[Parcel] = []
        if store == TUPLES or switched:
            stored = parcels if store == TUPLES else []
            left = self._leave(context, stored, reached)
            paths += [parcel.path for parcel in left if parcel.report.entries]
            context.note("leave")
        flushed = latest_of(arrived.seen) if context.flushing else None
        tiled = tuple(map(Tiled.from_json, composition or ()))
        work = WindowShard(self._plan, store, tiled, flushed=flushed, switched=switched)
        again = self._again(context, parcels) if store != PANES else None
        lifetimes, paths_of_all = len(lower.lowered(self._plan).lifetimes), tuple(paths)
        tasks = [
            context.task(
                work=work
                if again is None
                else replace(work, events=(again(shard), context.version)),
                shard=shard,
                watermark=reached,
                first_ordinal=context.first_ordinal + shard * lifetimes,
                quota=self.quota(context, shard),
                parcels=paths_of_all,
            )
            for shard in range(context.shards)
        ]
        if store == PANES and not (switched or composition):
            reports = self._resting.run(context, arrived, tasks)
        else:
            reports = context.executor.run(tasks)
        said: dict[str, Any] | None = before.decisions["estimate"] if before else None
        if estimate is not None and store != present:
            said = _said(estimate, min(parcel.report.begins for parcel in parcels))
        decisions: dict[str, Any] = {"store": store, "composition": composition, "estimate": said}
        if switched:
            decisions["switched"] = list(switched)
        if self._plan.own_ends:
            known = before.decisions[LATEST_END] if before else MINUS_INFINITY
            decisions[LATEST_END] = max([known, *(each.report.ends for each in parcels)])
        kept = [p for p in parcels if p.sent.raw_events is not None]
        if store != TUPLES:
            self._remove(kept)
            kept = []
        facts = {
            "store": store,
            "estimatedBytes": said and {plan: sum(said[plan][:2]) for plan in (PANES, TUPLES)},
            "estimatedLogBytes": said and said[store][0],
            "blocksRead": total(left, "blocks") + _sum(reports, "blocks"),
            "blockBytesRead": total(left, "block_bytes") + _sum(reports, "block_bytes"),
            "blockUses": total(left, "block_uses") + _sum(reports, "block_uses"),
            "sliceBytesRead": _sum(reports, "slice_bytes_read"),
            "sliceBytesUsed": _sum(reports, "slice_bytes_used"),
        }
        return VersionResult(reports, decisions, kept, facts, self._expected(said, store, reached))

    def _remove(self, kept: Sequence[Parcel]) -> None:
        """Remove events that were stored only for measuring."""
        for parcel in kept:
            assert parcel.sent.raw_events is not None
            self._files.unlink(f"{self._root}/{SEGMENTS}/{parcel.sent.raw_events.name}")

    def _expected(
        self, said: dict[str, Any] | None, store: str, reached: Micros
    ) -> SpaceEstimate | None:
        """Return the estimated sizes of log and rows, once windows are full."""
        if said is None or store == AUTO or self._panes is None:
            return None
        longest = max(each.range for each in lower.window_spec(self._panes).windows)
        return SpaceEstimate(*said[store][:2]) if reached >= said["since"] + longest else None

    def _again(
        self, context: VersionContext, parcels: Sequence[Parcel]
    ) -> Callable[[int], RawEventReader] | None:
        """Return a shard's reader of stored events; None if no field needs it."""
        if self._panes is None or lower.takes_back(self._panes):
            return None
        fresh = tuple(
            LiveSegment(NO_SHARD, context.version, EVENTS, p.sent.raw_events, p.report.begins)
            for p in parcels
            if p.sent.raw_events is not None
        )
        return partial(
            RawEventReader,
            self._panes,
            context.routes,
            self._files,
            self._root,
            context.version,
            fresh,
        )

    def _leave(
        self, context: VersionContext, parcels: Sequence[Parcel], reached: Micros
    ) -> list[Parcel]:
        """Fold the events that leave windows between two watermarks; return the parcels."""
        if reached == MINUS_INFINITY or not lower.takes_back(self._plan):
            return []
        assert self._panes is not None
        spans = tuple(lower.window_spec(self._panes).leaves(context.watermark, reached))
        reads = [(settled_from(self._panes, first), end) for first, end in spans if first < end]

        def leave(begins: Ints, expiry: Ints) -> Any:
            masks = [(begins < end) & (expiry >= least) for least, end in reads]
            return np.logical_or.reduce(masks) if masks else np.zeros(len(begins), bool)

        fresh = [
            (p.sent.raw_events, p.report.begins) for p in parcels if p.sent.raw_events is not None
        ]
        segments = (
            *(each.info for each in context.live.segments((NO_SHARD,), leave)),
            *(
                info
                for info, begins in fresh
                if any(begins < end and info.expiry >= least for least, end in reads)
            ),
        )
        if not segments:
            return []
        leaving = ExpiredEventFold(
            self._panes,
            context.version,
            context.routes,
            self._files,
            self._root,
            spans,
            segments,
            _table_bytes(context),
        )
        return context.executor.reread(leaving, context.folder)

    def _store(self, before: Commit | None) -> str:
        """Return what the log stores for windows on a grid, or that it is yet to be chosen."""
        if before is not None:
            chosen: str = before.decisions["store"]
            return chosen
        return self._plan.store if self._panes is not None else PANES

    def _switched(self, before: Commit | None) -> tuple[int, ...]:
        """Return the first ordinals of versions that changed the store."""
        return () if before is None else tuple(before.decisions.get("switched", ()))

    def _reviews(self, context: VersionContext) -> bool:
        """Return whether a version compares the stores again."""
        before = context.before
        return (
            self._plan.store == AUTO
            and before is not None
            and context.version % REVIEWED_EVERY == 0
            and not before.decisions["composition"]
            and lower.takes_back(self._plan)
        )

    def _estimate(self, context: VersionContext, arrived: Arrivals) -> PlanComparison | None:
        """Compare both storage plans by the first events; None without events."""
        kept = [parcel for parcel in arrived.parcels if parcel.sent.raw_events is not None]
        if not kept:
            return None
        assert self._panes is not None
        spec = lower.window_spec(self._panes)
        span, keys = self._measured(self._panes, arrived)
        longest = max(view.windows.range for view in spec.views)
        events = sum(parcel.report.rows for parcel in kept)
        keys = keys.extended(longest, events * len(self._panes.groupings))
        size = sum(
            parcel.sent.raw_events.bytes for parcel in kept if parcel.sent.raw_events is not None
        )
        return cost.estimate(
            [view.windows for view in spec.views],
            cost.WindowStatistics(
                rate=events * cost.SECOND / span,
                tuple_bytes=size / events,
                keys=keys,
                entry_bytes=8 * spec.layout.typical.entry_width,
                group_bytes=8 * max(each.typical.group_width for each in spec.layouts)
                + GROUP_OVERHEAD,
                invertible=spec.layout.suffix_words == 0,
                shards=context.shards,
                version=span,
            ),
        )

    def _composition(
        self, context: VersionContext, store: str, arrived: Arrivals
    ) -> list[Any] | None:
        """Return which windows are composed of others, by the first events; None without events.

        While there are none, it is computed again at intervals, from the events of that version.
        """
        before = context.before
        present: list[Any] | None = before.decisions["composition"] if before else None
        settled = store != PANES or self._switched(before)
        if settled or self._panes is None or not _folded(arrived):
            return present
        if present is None:
            keys = self._measured(self._panes, arrived)[1]
            return [each.to_json() for each in lower.tiled(lower.composition(self._panes, keys))]
        if present or context.version % COMPOSED_EVERY:
            return present
        keys = self._measured(self._panes, arrived)[1]
        chosen = lower.composition(self._panes, keys, factors=False)
        return [each.to_json() for each in lower.tiled(chosen)]

    def _measured(self, panes: Plan, arrived: Arrivals) -> tuple[Micros, cost.KeyCounts]:
        """Return the time span of a batch, and its groups per pane and in total."""
        pane = lower.window_spec(panes).grid.pane
        begins = min(parcel.report.begins for parcel in arrived.parcels)
        span = max(max(each for each in arrived.seen if each is not None) - begins + 1, pane)
        entries = _folded(arrived) * pane / span
        groups = max(float(arrived.total("groups")), entries)
        return span, cost.KeyCounts(tuple(sorted({pane: entries, span: groups}.items())))


def _folded(arrived: Arrivals) -> int:
    """Return the entries that were folded from events."""
    return arrived.total("entries") - arrived.total("sent")


def _table_bytes(context: VersionContext) -> int:
    return max(LEAST_TABLE_BYTES, min(TABLE_BYTES, context.budget // 4))


def _sum(reports: Sequence[ShardReport], name: str) -> int:
    """Return the sum of a statistic over the shards that report it."""
    return sum(report.statistics.get(name, 0) for report in reports)


def _said(comparison: PlanComparison, since: Micros) -> dict[str, Any]:
    """Return the estimates of both storage plans, and since when there are events.

    Bytes on the log and in memory, then requests and bytes per second.
    """
    estimates: dict[str, Any] = {
        each.plan: [
            round(each.space.log),
            round(each.space.memory),
            round(each.traffic.requests, 3),
            round(each.traffic.bytes),
        ]
        for each in (comparison.panes, comparison.tuples)
    }
    return {**estimates, "since": since}
