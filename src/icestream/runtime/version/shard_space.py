"""What an operator works with in a shard: the log, new segments, the arena and an account."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from icestream.state.arena import Arena
from icestream.state.budget import Budget
from icestream.state.files import Files
from icestream.state.log.format import SegmentInfo
from icestream.state.log.reader import Log, SegmentReader
from icestream.state.log.segments import SegmentTable, segment_name
from icestream.state.log.writer import SegmentWriter
from icestream.state.versions.commits import SEGMENTS, LiveSegment, is_base


@dataclass(frozen=True)
class SegmentTarget:
    """Where the new segments of a shard go."""

    files: Files
    #: folder of the checkpoint
    root: str
    #: returns the ordinal of a new segment, given its lifetime class
    ordinal: Callable[[str], int]
    #: distinguishes the segments from those of all other attempts
    attempt: str
    codec: str | None = None
    #: whether a segment is durable once it is sealed; otherwise the caller syncs it
    durable: bool = False
    #: called with path and bytes of each segment that is sealed
    sealed: Callable[[str, int], None] | None = None


class ShardSpace:
    """The `Shard` of an operator, in a task or in a scratch folder."""

    def __init__(self, target: SegmentTarget, budget: Budget, arena: Arena) -> None:
        self.arena = arena
        self.account = budget.account("buffers")
        self.table = SegmentTable(arena)
        self.files, self.root = target.files, target.root
        self.log = Log(target.files, f"{target.root}/{SEGMENTS}", self.table)
        #: lifetime class and description of the segments that this attempt finished
        self.sealed: list[tuple[str, SegmentInfo]] = []
        self._target = target
        self._open: dict[str, SegmentWriter] = {}

    def segment(self, lifetime: str) -> SegmentWriter:
        """Return the open segment of a lifetime class, created on first use."""
        if lifetime not in self._open:
            target, ordinal = self._target, self._target.ordinal(lifetime)
            path = self._path(segment_name(ordinal, target.attempt))
            self._open[lifetime] = SegmentWriter(target.files, path, ordinal, codec=target.codec)
        return self._open[lifetime]

    def seal(self, lifetime: str) -> SegmentInfo | None:
        """Finish the open segment of a lifetime class and make it readable."""
        if lifetime not in self._open:
            return None
        if not is_base(lifetime):
            self.table.reserve()
        info = self._open.pop(lifetime).finish(sync=self._target.durable)
        self.sealed.append((lifetime, info))
        self._learn(lifetime, info)
        if self._target.sealed is not None:
            self._target.sealed(self._path(info.name), info.bytes)
        return info

    def reader(self, info: SegmentInfo) -> SegmentReader:
        return SegmentReader(self.files, self._path(info.name), info=info)

    def learn(self, live: Iterable[LiveSegment]) -> None:
        """Bring the segment table of an arena to these segments, in the order of ordinals."""
        listed = {each.info.ordinal: each for each in live}
        known = set(self.table)
        self.table.forget(known - listed.keys())
        for ordinal, segment in listed.items():
            if ordinal not in known:
                self._learn(segment.lifetime, segment.info)

    def close(self) -> None:
        """Close all files; segments that are not sealed are gone."""
        for writer in self._open.values():
            writer.abandon()
        self.log.close()
        self.account.close()

    def _learn(self, lifetime: str, info: SegmentInfo) -> None:
        """Make a segment readable, unless it is part of a snapshot, which is read by its name."""
        if not is_base(lifetime):
            self.table.add(info)
            self.log.add(info)

    def _path(self, name: str) -> str:
        return f"{self.root}/{SEGMENTS}/{name}"
