"""Recovery of a store from the log: snapshots of its directory, and restoring from them.

Idea: extents carry the id of their group, so the log shows where every group's rows are. A snapshot
is the sorted entries of all groups; a restore loads the last one and reads the extents that later
versions wrote, moving the roots. The groups' timers are logged separately, in records that live as
long as a snapshot. All groups are cold after a restore.

Invariants:
1. A restored store has the rows and timers of the one before
   (`test_crash_restored_groups_are_those_before`).
2. A restore stays within the limits of directory and heap (`test_bounded_groups_of_sixteen_bytes`).

Cost: a restore reads the last snapshot and everything written since.

Limits: a store that writes only evicted groups cannot be restored.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from icestream.core.arrays import Ints, Slots
from icestream.core.errors import CheckpointError
from icestream.kernels.groups import extents as kernels
from icestream.kernels.groups import heap as k
from icestream.state.groups.cleaning import NO_SEGMENTS, CleanableStore, Cleaner
from icestream.state.groups.directory import entry_width, part
from icestream.state.groups.extents import (
    ENTRIES,
    NUMBERS,
    REMINDERS,
    SEGMENTS,
    ExtentLog,
    extents_of,
)
from icestream.state.groups.facts import Fact
from icestream.state.groups.options import ROWS, Past, StoreSpace, forever
from icestream.state.identities import IdRange, identities, in_order
from icestream.state.log.format import Record, SegmentInfo
from icestream.state.log.reader import SegmentReader
from icestream.state.versions.commits import BASE


@dataclass
class StoreRecovery:
    """Writes and reads the recovery records of one store."""

    store: CleanableStore
    space: StoreSpace
    scope: int
    log: ExtentLog
    cleaner: Cleaner

    def save(self) -> None:
        """Write a snapshot."""
        directory = self.store.directory
        entries = directory.entries(directory.every())
        entries = entries[in_order(*identities(entries))]
        self.log.save(NUMBERS, np.array([[self.store.facts[Fact.SEQUENCE]]]))
        self.log.save(SEGMENTS, self.cleaner.segments)
        for block in self.store.index.scan(entries):
            self.log.save(ENTRIES, block)

    @property
    def size(self) -> int:
        """About how many bytes a snapshot has."""
        directory = self.store.directory
        groups = directory.groups + len(self.store.index)
        return groups * 8 * entry_width(directory.synopses)

    def restore(self, history: Sequence[Past], durability: str) -> None:
        """Restore the end of a history that begins with a snapshot or with nothing."""
        if not history:
            return
        if durability == "evict":
            msg = (
                "the state of this query is only partly on the log because of durability='evict': "
                "replay the source from the beginning into a new checkpoint"
            )
            raise CheckpointError(msg)
        horizon = history[-1].watermark
        for past in history:
            if not self._load(past):
                self._replay(past, horizon)
        self.store.facts[Fact.WATERMARK] = horizon
        self.store.facts[Fact.SWEEP] = 1
        every = self.store.directory.every()
        for synopsis in range(self.store.directory.synopses):
            self.store.directory.table[every, part(synopsis) + k.FLAGS] &= ~k.REMINDED

    def _load(self, past: Past) -> bool:
        """Load the snapshot of a version if it has one, or those of several parents."""
        with ExitStack() as stack:
            snapshots = []
            for lifetime, info in past.segments:
                if lifetime != BASE:
                    continue
                reader = stack.enter_context(closing(self.space.reader(info)))
                if self._chosen(reader, NUMBERS).any():
                    snapshots.append(reader)
            if snapshots:
                self._take(snapshots, past.keeps)
        return bool(snapshots)

    def _take(self, snapshots: Sequence[SegmentReader], keeps: IdRange | None) -> None:
        store = self.store
        sequences = [rows for each in snapshots for rows in self._rows(each, NUMBERS, 1)]
        store.facts[Fact.SEQUENCE] = int(max(rows[-1, 0] for rows in sequences))
        store.directory.clear()
        store.index.clear()
        width = entry_width(store.directory.synopses)
        count = sum(
            int(each.directory["rows"][self._chosen(each, ENTRIES)].sum()) for each in snapshots
        )
        blocks = (rows for each in snapshots for rows in self._rows(each, ENTRIES, width))
        kept = _Kept(keeps, blocks)
        if count > store.directory.most // 2:
            store.index.fill(_in_order(kept), count)
        else:
            for entries in _in_order(kept):
                slots = store.directory.open(*identities(entries), store.facts[Fact.CHUNK])
                store.directory.adopt(slots, entries)
        found = [rows for each in snapshots for rows in self._rows(each, SEGMENTS, 3)]
        segments = np.concatenate([NO_SEGMENTS, *found])
        segments = segments[np.argsort(segments[:, 0], kind="stable")]
        if keeps is not None:
            # parents may share segments; of their bytes this store has its groups' share
            segments[:, 1] = (segments[:, 1] * kept.share).astype(np.int64)
            first = np.flatnonzero(np.diff(segments[:, 0], prepend=-1))
            sizes = np.add.reduceat(segments[:, 1], first) if len(first) else first
            segments = np.column_stack((segments[first, 0], sizes, segments[first, 2]))
        self.cleaner.load(segments)

    def _chosen(self, reader: SegmentReader, kind: int) -> Any:
        directory = reader.directory
        return (directory["operator"] == self.scope) & (directory["synopsis"] == kind)

    def _rows(self, reader: SegmentReader, kind: int, width: int) -> Iterator[Ints]:
        for record in reader.read_many(reader.directory["marker"][self._chosen(reader, kind)]):
            yield np.frombuffer(record.payload, dtype=np.int64).reshape(-1, width)

    def _replay(self, past: Past, horizon: int) -> None:
        """Move roots and timers as a version did."""
        never, mine = forever(self.scope), past.keeps if past.parents else None
        shares: dict[int, _Share] = {}
        with ExitStack() as stack:
            scans = []
            for lifetime, info in past.segments:
                if lifetime == BASE:
                    self._recall(info, mine)
                elif lifetime in (ROWS, never) and info.expiry > horizon:
                    reader = stack.enter_context(closing(self.space.reader(info)))
                    scans.append(self._extents(reader))
                    shares[info.ordinal] = _Share(info)
            for record in heapq.merge(*scans, key=lambda each: each.group):
                self._move(record, mine, shares[record.marker >> 32])
        for share in shares.values():
            self.cleaner.note(share.info.ordinal, share.bytes, share.info.expiry)

    def _extents(self, reader: SegmentReader) -> Iterator[Record]:
        for record in reader.scan():
            if record.operator == self.scope and record.synopsis < self.store.directory.synopses:
                yield record

    def _recall(self, info: SegmentInfo, mine: IdRange | None) -> None:
        with closing(self.space.reader(info)) as reader:
            for rows in self._rows(reader, REMINDERS, 4):
                if ((rows[:, 3] < 0) | (rows[:, 3] >= self.store.directory.synopses)).any():
                    msg = "a timer belongs to no synopsis"
                    raise ValueError(msg)
                if mine is not None:
                    rows = rows[mine.holds(identities(rows)[0])]  # noqa: PLW2901
                for some in self._pieces(rows):
                    slots = self._slots(some)
                    columns = k.GROUP + some[:, 3] * k.PARTS + k.DUE
                    self.store.directory.table[slots, columns] = some[:, 2]

    def _move(self, record: Record, mine: IdRange | None, share: _Share) -> None:
        places, headers = extents_of(record.payload)
        share.all += len(headers)
        if mine is not None:
            held = mine.holds(identities(headers)[0])
            places, headers = places[held], headers[held]
        share.mine += len(headers)
        for some in self._pieces(np.column_stack((headers, record.marker + places))):
            self._move_some(record.synopsis, some[:, :-1], some[:, -1])
        self.store.facts[Fact.SEQUENCE] = max(self.store.facts[Fact.SEQUENCE], record.group)

    def _move_some(self, synopsis: int, headers: Ints, markers: Ints) -> None:
        slots = self._slots(headers)
        table, at = self.store.directory.table, part(synopsis)
        follows = headers[:, kernels.BACK] != k.NO_ROOT
        oldest = np.where(follows, table[slots, at + k.CHAIN] >> 32, markers >> 32)
        cold = np.where(follows, table[slots, at + k.COLD], 0) + (
            headers[:, kernels.LENGTH] & 0xFFFFFFFF
        )
        table[slots, at + k.ROOT] = markers
        table[slots, at + k.COLD] = cold
        table[slots, at + k.CHAIN] = oldest << 32 | headers[:, kernels.SHAPE] >> 32
        table[slots, at + k.ROOT_EXPIRY] = headers[:, kernels.LATEST]
        table[slots, at + k.EXPIRY] = headers[:, kernels.LATEST]
        table[slots, at + k.FLAGS] &= ~k.WHOLE
        # an extent that marks its group as empty is not pointed to
        self.store.directory.forget(synopsis, slots[cold == 0])

    def _pieces(self, rows: Ints) -> Iterator[Ints]:
        """Cut rows of groups into pieces that the directory has room for."""
        most = max(1, self.store.directory.most // 4)
        for first in range(0, len(rows), most):
            yield rows[first : first + most]

    def _slots(self, rows: Ints) -> Slots:
        """Return the slots of groups; those located before may leave the directory."""
        self.store.facts.next(Fact.CHUNK)
        return self.store.eviction.locate(*identities(rows))


@dataclass
class _Share:
    """How many extents of a segment are of this store's groups; a parent has others in it."""

    info: SegmentInfo
    all: int = 0
    mine: int = 0

    @property
    def bytes(self) -> int:
        """Return about the bytes of these extents."""
        return self.info.bytes if self.mine == self.all else self.info.bytes * self.mine // self.all


class _Kept:
    """The entries of a range, or of all groups, and which share of all these are."""

    def __init__(self, keeps: IdRange | None, blocks: Iterator[Ints]) -> None:
        self._keeps = keeps
        self._blocks = blocks
        self._all = self._mine = 0

    def __iter__(self) -> Iterator[Ints]:
        for entries in self._blocks:
            mine = entries
            if self._keeps is not None:
                mine = entries[self._keeps.holds(identities(entries)[0])]
            self._all += len(entries)
            self._mine += len(mine)
            if len(mine):
                yield mine

    @property
    def share(self) -> float:
        """Return the share of groups, once all were read."""
        return self._mine / max(1, self._all)


def _in_order(blocks: Iterable[Ints]) -> Iterator[Ints]:
    """Yield the entries of a snapshot; ValueError unless each group occurs once, in order."""
    last = np.empty((0, 2), dtype=np.int64)
    for entries in blocks:
        id_high, id_low = identities(np.concatenate((last, entries[:, :2])))
        if not (
            (id_high[1:] > id_high[:-1])
            | ((id_high[1:] == id_high[:-1]) & (id_low[1:] > id_low[:-1]))
        ).all():
            msg = "the groups of a snapshot are not in order"
            raise ValueError(msg)
        last = entries[-1:, :2]
        yield entries
