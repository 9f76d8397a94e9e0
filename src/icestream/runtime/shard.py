"""One task of a component: open a version of a shard, take a batch, move the watermark, write.

Idea: everything durable is written under names of this attempt; the commit decides which attempt
counts. The arena of the version before is claimed by rename; if it is gone the shard is rebuilt
from the log, so a failed or repeated attempt costs time and nothing else.

Invariants:
1. An attempt changes no file that another attempt or version can see, except by claiming an arena
   (`test_crash_every_step_of_a_run`).
2. The quota holds for arena, tables and buffers together, also while rebuilding
   (`test_bounded_state_of_ten_times_the_budget`).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from icestream.core.times import Micros
from icestream.operators.levels import Tiled
from icestream.operators.protocol import Emitted, PastVersion
from icestream.operators.window import PANES
from icestream.plan import lower
from icestream.plan.nodes import Plan
from icestream.runtime.exchange import Parcels
from icestream.state.arena import Arena
from icestream.state.budget import Budget, Refused, shortage
from icestream.state.files import Files
from icestream.state.log.format import SegmentInfo
from icestream.state.log.ipc import write_table
from icestream.state.log.reader import Log, SegmentReader
from icestream.state.log.writer import SegmentWriter
from icestream.state.segments import SegmentTable, segment_name
from icestream.state.versions import BASE, RESULTS, SEGMENTS, Commit, VersionStore


@dataclass
class ShardReport:
    """What a shard tells the driver: names of what it wrote, and numbers."""

    shard: int
    arena: str
    segments: list[tuple[str, SegmentInfo]]
    result: SegmentInfo | None
    #: rows of each view
    rows: list[int]
    snapshot: bool
    rebuilt: bool
    #: ordinals of segments that are needed no more, before their expiry
    released: tuple[int, ...] = ()
    statistics: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ShardTask:
    """What one shard is told to do in a version."""

    plan: Plan
    files: Files
    root: str
    #: folder of arenas on the local disk
    arenas: str
    shard: int
    version: int
    watermark: Micros
    first_ordinal: int
    #: bytes this shard may hold
    quota: int
    #: arena that the version before names; None if there is no version before
    arena: str | None
    #: parcels of this batch, and where they are
    parcels: tuple[str, ...]
    parcel_files: Files
    codec: str | None = None
    #: what the log keeps of windows on a grid
    store: str = PANES
    #: windows that are made of others
    tiled: tuple[Tiled, ...] = ()

    def run(self) -> ShardReport:
        """Do it."""
        attempt = uuid.uuid4().hex[:16]
        budget = Budget(self.quota)
        arena, rebuild = self._arena(budget)
        try:
            space = ShardSpace(self, budget, arena, attempt)
            operator = lower.operator(self.plan, space, self.store, self.tiled)
            if rebuild:
                space.learn(self._store.live(self.version - 1), self.shard)
                operator.restore(self._history())
            operator.on_batch(self._inputs())
            emitted = lower.emitted(self.plan, operator.on_watermark(self.watermark))
            result, rows = self._write_results(emitted, attempt)
            space.table.expire(self.watermark)
            space.table.forget(operator.released)
            name = f"shard-{self.shard}.v{self.version}.{attempt}"
            report = ShardReport(
                self.shard,
                name,
                space.sealed,
                result,
                rows,
                operator.took_snapshot,
                rebuild,
                operator.released,
                {
                    **operator.statistics,
                    "memory_bytes": arena.bytes + space.account.held,
                    "peak_bytes": budget.peak,
                },
            )
            space.close()
            arena.release(name)
        except Refused as refused:
            error = shortage(budget, refused)
            arena.discard()
            raise error from refused
        except BaseException:
            arena.discard()
            raise
        return report

    def _inputs(self) -> Parcels:
        tuples = lower.takes_tuples(self.plan)
        width = 0 if tuples else lower.window_spec(self.plan).layout.entry_width + 1
        return Parcels(self.parcel_files, self.parcels, self.shard, width)

    @property
    def _store(self) -> VersionStore:
        return VersionStore(self.files, self.root)

    def _arena(self, budget: Budget) -> tuple[Arena, bool]:
        account = budget.account("groups")
        if self.arena is not None:
            try:
                claimed = Arena.claim(self.arenas, self.arena, account)
            except Refused:
                claimed = None
            if claimed is not None:
                return claimed, False
        return Arena.create(self.arenas, account), self.arena is not None

    def _history(self) -> list[PastVersion]:
        """Return the versions since the snapshot this shard's state is rebuilt from."""
        last = self._store.load(self.version - 1)
        first = max(1, last.bases[self.shard])
        return [_past(self._store.load(v), self.shard) for v in range(first, self.version)]

    def _write_results(
        self, emitted: Iterable[Emitted], attempt: str
    ) -> tuple[SegmentInfo | None, list[int]]:
        """Write the rows of all views to one file; return it with the rows of each view."""
        writer: SegmentWriter | None = None
        rows = [0] * len(self.plan.views)
        for view, batch in emitted:
            if writer is None:
                name = f"{self.version:012d}-{self.shard}-{attempt}.rows"
                path = f"{self.root}/{RESULTS}/{name}"
                writer = SegmentWriter(self.files, path, self.shard, codec=self.codec)
            writer.append(write_table(batch), synopsis=view, rows=batch.num_rows)
            rows[view] += batch.num_rows
        return (None if writer is None else writer.finish()), rows


class ShardSpace:
    """The shard's log, segments in the making and arena: what operators are given."""

    def __init__(self, task: ShardTask, budget: Budget, arena: Arena, attempt: str) -> None:
        """Open the log of a shard."""
        self.arena = arena
        self.account = budget.account("buffers")
        self.table = SegmentTable(arena)
        self.log = Log(task.files, f"{task.root}/{SEGMENTS}", self.table)
        #: lifetime class and description of the segments this attempt finished
        self.sealed: list[tuple[str, SegmentInfo]] = []
        self._task = task
        self._attempt = attempt
        self._open: dict[str, SegmentWriter] = {}

    def segment(self, lifetime: str) -> SegmentWriter:
        """Return the open segment of a lifetime class, made on first use."""
        if lifetime not in self._open:
            ordinal = self._task.first_ordinal + lower.lifetimes(self._task.plan).index(lifetime)
            path = self._path(segment_name(ordinal, self._attempt))
            self._open[lifetime] = SegmentWriter(
                self._task.files, path, ordinal, codec=self._task.codec
            )
        return self._open[lifetime]

    def seal(self, lifetime: str) -> SegmentInfo | None:
        """Finish the open segment of a lifetime class and make it readable."""
        if lifetime not in self._open:
            return None
        if lifetime != BASE:
            self.table.reserve()
        info = self._open.pop(lifetime).finish()
        self.sealed.append((lifetime, info))
        if lifetime != BASE:
            self.table.add(info)
            self.log.add(info)
        return info

    def reader(self, info: SegmentInfo) -> SegmentReader:
        """Open a segment."""
        return SegmentReader(self._task.files, self._path(info.name), info=info)

    def learn(self, live: Iterable[Any], shard: int) -> None:
        """Fill the table of an empty arena with the segments of a shard."""
        mine = [s.info for s in live if s.shard == shard and s.lifetime != BASE]
        for info in sorted(mine, key=lambda each: each.ordinal):
            self.table.add(info)
            self.log.add(info)

    def close(self) -> None:
        """Close what is open for reading."""
        self.log.close()
        self.account.close()

    def _path(self, name: str) -> str:
        return f"{self._task.root}/{SEGMENTS}/{name}"


def _past(commit: Commit, shard: int) -> PastVersion:
    segments = [(s.lifetime, s.info) for s in commit.added if s.shard == shard]
    return PastVersion(commit.version, commit.watermark, segments)
