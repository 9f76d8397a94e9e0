"""A shard in a folder, for trying stores of groups: versions, restarts, lost arenas.

Idea: it does what the runtime does around a store, no more: claim the arena or make one, hand out
segments by lifetime class, seal them, unlink what has expired, was released, or is older than the
last snapshot. What a restore may not read is therefore not there.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from icestream.core.times import MINUS_INFINITY
from icestream.operators.protocol import PastVersion
from icestream.state.arena import Arena
from icestream.state.budget import Budget
from icestream.state.files import Files, LocalFiles
from icestream.state.log.format import SegmentInfo
from icestream.state.log.reader import Log, SegmentReader
from icestream.state.log.writer import SegmentWriter
from icestream.state.segments import SegmentTable, segment_name
from icestream.state.snapshots import SnapshotSchedule
from icestream.state.synopses.options import StoreOptions, lifetimes
from icestream.state.synopses.spec import Synopsis
from icestream.state.synopses.store import GroupStore
from icestream.state.versions import BASE


class Segments(Protocol):
    """Where the segments of a shard are, and how they are numbered."""

    folder: str
    files: Files
    block_bytes: int
    next_ordinal: int

    @property
    def lifetimes(self) -> tuple[str, ...]:
        """Return the lifetime classes of the shard."""
        ...


class Task:
    """What a store is given in one version."""

    def __init__(self, space: Segments, budget: Budget, arena: Arena) -> None:
        """Open the log of a version."""
        self.arena = arena
        self.account = budget.account("buffers")
        self.table = SegmentTable(arena)
        self.log = Log(space.files, space.folder, self.table)
        self.sealed: list[tuple[str, SegmentInfo]] = []
        self._space = space
        self._attempt = uuid.uuid4().hex[:16]
        self._open: dict[str, SegmentWriter] = {}

    def segment(self, lifetime: str) -> SegmentWriter:
        """Return the open segment of a lifetime class."""
        if lifetime not in self._open:
            ordinal = self._space.next_ordinal + self._space.lifetimes.index(lifetime)
            path = f"{self._space.folder}/{segment_name(ordinal, self._attempt)}"
            block = self._space.block_bytes
            self._open[lifetime] = SegmentWriter(
                self._space.files, path, ordinal, block_bytes=block
            )
        return self._open[lifetime]

    def seal(self, lifetime: str) -> SegmentInfo | None:
        """Finish the open segment of a lifetime class and make it readable."""
        if lifetime not in self._open:
            return None
        info = self._open.pop(lifetime).finish(sync=False)
        self.sealed.append((lifetime, info))
        if lifetime != BASE:
            self.table.add(info)
            self.log.add(info)
        return info

    def reader(self, info: SegmentInfo) -> SegmentReader:
        """Open a segment."""
        path = f"{self._space.folder}/{info.name}"
        return SegmentReader(self._space.files, path, info=info)


@dataclass
class GroupSpace:
    """The log and the arenas of a shard with one store."""

    folder: str
    synopses: Sequence[Synopsis]
    options: StoreOptions = field(default_factory=StoreOptions)
    quota: int = 1 << 22
    block_bytes: int = 65536
    #: whether snapshots are taken when they are due
    snapshots: bool = True
    files: Files = field(default_factory=LocalFiles)
    history: list[PastVersion] = field(default_factory=list)
    watermark: int = MINUS_INFINITY
    #: most bytes ever held by the budget of a version
    peak: int = 0
    next_ordinal: int = 1
    #: called with the store of every version before it is used
    prepare: Callable[[GroupStore], None] = lambda _store: None
    _base: int = 0
    _live: dict[int, tuple[str, SegmentInfo]] = field(default_factory=dict)
    _arena: str | None = None

    @property
    def lifetimes(self) -> tuple[str, ...]:
        """Return the lifetime classes of the shard."""
        return (BASE, *lifetimes(1))

    @property
    def log_bytes(self) -> int:
        """Return the bytes of segments that are needed."""
        return sum(info.bytes for _, info in self._live.values())

    def lose_arena(self) -> None:
        """Let the next version restore from the log."""
        self._arena = "lost"

    @contextmanager
    def version(self, watermark: int | None = None) -> Iterator[GroupStore]:
        """Run a version: yield its store, then end it, and commit.

        It ends at `watermark`, or where `self.watermark` was moved to meanwhile, if that is later.
        """
        budget = Budget(self.quota)
        account = budget.account("groups")
        arenas = os.path.join(self.folder, "arenas")
        arena = None if self._arena is None else Arena.claim(arenas, self._arena, account)
        rebuild = arena is None and bool(self.history)
        arena = arena or Arena.create(arenas, account)
        task = Task(self, budget, arena)
        try:
            store = GroupStore(self.synopses, task, self.options, share=self.quota)
            self.prepare(store)
            if rebuild:
                for _, info in sorted(self._live.values(), key=lambda each: each[1].ordinal):
                    task.table.add(info)
                    task.log.add(info)
                past = [each for each in self.history if each.version >= self._base]
                store.restore(past)
                replayed = [info for each in past[self._base > 0 :] for _, info in each.segments]
                size = sum(info.bytes for info in replayed)
                SnapshotSchedule(arena.header).resume(len(past) - (self._base > 0), size)
            yield store
            self._end(task, store, max(self.watermark, watermark or self.watermark))
            self.peak = max(self.peak, budget.peak)
            task.log.close()
            task.account.close()
            self._arena = f"v{len(self.history)}"
            arena.release(self._arena)
        finally:
            arena.discard()

    def _end(self, task: Task, store: GroupStore, watermark: int) -> None:
        schedule = SnapshotSchedule(task.arena.header)
        snapshot = self.snapshots and schedule.version_ends(store.snapshot_bytes)
        before = store.written
        store.end_version(watermark, snapshot=snapshot)
        schedule.log(store.written - before)
        for lifetime in self.lifetimes:
            task.seal(lifetime)
        number = len(self.history) + 1
        if snapshot:
            schedule.take()
            self._base = number
        self.watermark = watermark
        task.table.expire(watermark)
        task.table.forget(store.released)
        self.history.append(PastVersion(number, watermark, tuple(task.sealed)))
        for lifetime, info in task.sealed:
            if lifetime != BASE:
                self._live[info.ordinal] = (lifetime, info)
        self.next_ordinal += len(self.lifetimes)
        self._unlink(watermark, store.released)

    def _unlink(self, watermark: int, released: tuple[int, ...]) -> None:
        gone = [
            info
            for _, info in self._live.values()
            if info.expiry <= watermark or info.ordinal in released
        ]
        for past in self.history:
            if past.version < self._base:
                gone += [info for lifetime, info in past.segments if lifetime == BASE]
        for info in gone:
            self._live.pop(info.ordinal, None)
            self.files.unlink(f"{self.folder}/{info.name}")
