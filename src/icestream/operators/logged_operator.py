"""What operators share that log what arrives and, from time to time, what they hold.

Idea: a snapshot is a base segment; one of its records has the position of the operator. A restore
loads the snapshots that begin a history, one or those of several parents, and replays the versions
after them without output. Directories of records on the log are tables in the arena, which a
snapshot copies.

Invariant: restoring a snapshot and replaying the versions after it leads to the same rows
(`test_crash_restores_from_snapshots` of the conformance suite).
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from icestream.operators.protocol import PastVersion, Shard
from icestream.state.log.format import Record
from icestream.state.log.reader import SegmentReader
from icestream.state.snapshot_schedule import SnapshotSchedule
from icestream.state.versions.commits import BASE

#: rows of a directory in one record of a snapshot
_AT_ONCE = 1024

#: rows of a directory, each with the marker of a record on the log
Directory = npt.NDArray[np.void]


class LoggedOperator(ABC):
    """An operator of one shard that restores itself from a snapshot and what was logged since."""

    #: whether a restore may go on with what several parents wrote after their snapshots
    follows = False
    #: the kind of the record that every snapshot has once
    _position_kind: ClassVar[int]

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._header: dict[str, Any] = shard.arena.header
        self._schedule = SnapshotSchedule(self._header)

    @property
    def took_snapshot(self) -> bool:
        """Return whether the version just written is a snapshot, independent of earlier ones."""
        return self._schedule.taken

    @property
    def released(self) -> tuple[int, ...]:
        """Return nothing: segments expire, or are removed with the next snapshot."""
        return ()

    def restore(self, history: Sequence[PastVersion]) -> None:
        """Load the snapshot that starts `history`, if there is one, and replay later versions."""
        for past in history:
            with ExitStack() as stack:
                snapshots = self._snapshots(stack, past)
                if snapshots:
                    self._load(past, snapshots)
                    self._schedule.resume(0, 0)
            if not snapshots:
                self._replay(past)

    @abstractmethod
    def _load(self, past: PastVersion, snapshots: Sequence[SegmentReader]) -> None:
        """Load the snapshot of a version, or those of several parents."""

    @abstractmethod
    def _replay(self, past: PastVersion) -> None:
        """Do what a past version did, without output."""

    def _snapshots(self, stack: ExitStack, past: PastVersion) -> list[SegmentReader]:
        """Open the snapshots of a version, those of its parents in order."""
        opened = [
            stack.enter_context(closing(self._shard.reader(info)))
            for lifetime, info in past.segments
            if lifetime == BASE
        ]
        kind = self._position_kind
        return [each for each in opened if (each.directory["synopsis"] == kind).any()]

    def _save_directory(self, directory: Directory, kind: int) -> None:
        """Write a directory to the snapshot."""
        for at in range(0, len(directory), _AT_ONCE):
            part = directory[at : at + _AT_ONCE]
            self._shard.segment(BASE).append(part.tobytes(), synopsis=kind, rows=len(part))

    def _save_position(self, facts: Mapping[str, Any]) -> None:
        """Finish the snapshot with the position of the operator."""
        payload = json.dumps(facts).encode()
        self._shard.segment(BASE).append(payload, synopsis=self._position_kind)
        self._schedule.take()

    def _position_in(self, snapshot: SegmentReader) -> Any:
        listed = snapshot.directory
        (marker,) = listed["marker"][listed["synopsis"] == self._position_kind].tolist()
        return json.loads(bytes(snapshot.read(marker).payload))


def records_of(shard: Shard, past: PastVersion, lifetime: str) -> Iterator[Record]:
    """Yield what an operator logged in the segments of one lifetime class in a past version."""
    for each, info in past.segments:
        if each == lifetime:
            with closing(shard.reader(info)) as reader:
                yield from reader.scan()


def once(parts: Sequence[Directory], kind: np.dtype[Any]) -> Directory:
    """Return the logged directories of parents as one, in the order of markers, each once."""
    whole = np.concatenate([np.empty(0, dtype=kind), *parts])
    _, first = np.unique(whole["marker"], return_index=True)
    directory: Directory = whole[first]
    return directory
