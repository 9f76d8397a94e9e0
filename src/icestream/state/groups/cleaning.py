"""Compaction of segments that never expire.

Idea: segments of rows that never expire are released in the order they were written. Once their
bytes exceed three times the live bytes (and a little more), the groups that have an extent in the
oldest segments are written whole to the newest, so nothing points to the old ones any more. Small
groups are written from the cold index. A restore begins at the last snapshot, so such a segment is
deleted with the next snapshot.

Invariants:
1. Bytes stay within three times the live ones, plus a megabyte, plus what waits for a snapshot
   (`test_bounded_rows_without_expiry_are_cleaned`).
2. No segment that a restore reads is deleted (`test_crash_cleaned_segments_are_not_missed`).
3. Cleaning changes no rows (`test_oracle_cleaning_changes_no_rows`).

Cost: each cleaning writes the live rows of the groups with extents in the oldest segments.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from icestream.core.arrays import Ids, Ints, Mask, Slots
from icestream.core.times import INFINITY
from icestream.kernels.groups import directory_passes
from icestream.kernels.groups import heap as k
from icestream.kernels.groups.extents import LASTING_HEADER
from icestream.state.arena import Arena
from icestream.state.groups.directory import ENTRY, GroupDirectory, entry_width, part
from icestream.state.groups.facts import Fact, Facts
from icestream.state.identities import identities
from icestream.state.index.sorted_index import ColdIndex
from icestream.state.table import CountedTable

#: bytes of garbage not worth a cleaning
SLACK = 1 << 20
#: maximum bytes of segments per live byte
MOST = 3
#: approximate number of cold index entries sampled to estimate the live bytes
SAMPLED = 1 << 14
#: one more than the greatest id_high
END = 1 << 64
#: ordinal and bytes of segments: none
NO_SEGMENTS = np.empty((0, 2), dtype=np.int64)


class CleanableStore(Protocol):
    """The part of a store that cleaning uses."""

    directory: GroupDirectory
    index: ColdIndex
    facts: Facts

    def locate(self, id_high: Ids, id_low: Ids) -> Slots:
        """Return the slots of groups."""
        ...

    def consolidate(self, synopsis: int, slots: Slots) -> None:
        """Write groups whole, in one extent each."""
        ...

    def consolidate_inline(self, rows: Ints, last: int) -> Mask:
        """Write groups from rows of the cold index, which change; return which were written."""
        ...


class Cleaner:
    """The segments of rows that never expire, of one store."""

    def __init__(self, arena: Arena, name: str, facts: Facts) -> None:
        """Attach to the arena's list, or start one."""
        self._facts = facts
        #: ordinal and bytes, oldest first
        self._segments = CountedTable(arena, f"{name}.forever", 2)
        self._cleaned = CountedTable(arena, f"{name}.cleaned", 2)

    @property
    def segments(self) -> Ints:
        """Ordinals and bytes of the segments in use."""
        return self._segments.rows.copy()

    @property
    def waiting(self) -> Ints:
        """Ordinals and bytes of segments that nothing needs once there is a snapshot."""
        return self._cleaned.rows.copy()

    def note(self, ordinal: int, size: int) -> None:
        """Record a segment that was written."""
        known = self._segments.rows
        if len(known) and known[-1, 0] == ordinal:
            known[-1, 1] += size
        else:
            del known
            self._segments.append(np.array([ordinal, size]))

    def released(self) -> tuple[int, ...]:
        """Release the segments that waited for a snapshot."""
        ordinals = tuple(self.waiting[:, 0].tolist())
        self._cleaned.replace(NO_SEGMENTS)
        return ordinals

    def load(self, segments: Ints) -> None:
        """Take over the segments of a snapshot; none of them is waiting."""
        self._cleaned.replace(NO_SEGMENTS)
        self._segments.replace(segments)

    def clean(self, store: CleanableStore) -> None:
        """Clean the oldest segments if there is too much garbage."""
        total = int(self.segments[:, 1].sum())
        if total <= MOST * self._facts[Fact.FOREVER] + SLACK:
            return
        live = self._facts[Fact.FOREVER] = _live(store)
        if total <= MOST * live + SLACK:
            return
        segments = self.segments[:-1]
        enough = np.cumsum(segments[:, 1]) >= max(total - live - live // 2, 1)
        count = int(np.argmax(enough)) + 1 if enough.any() else len(segments)
        if count == 0:
            return
        _move_on(store, int(segments[count - 1, 0]))
        self._cleaned.append(segments[:count])
        self._segments.replace(self.segments[count:])


def _elsewhere(store: CleanableStore, entries: Ints) -> Ints:
    """Return the entries of groups that are not in the directory."""
    return entries[store.directory.find(*identities(entries)) < 0]


def _live(store: CleanableStore) -> int:
    """Return about how many bytes of extents that never expire have a group pointing to them.

    The ids of a shard are spread evenly, so those below a bound represent all of a large index.
    """
    words = 0
    for synopsis in range(store.directory.synopses):
        words += directory_passes.live_words(store.directory.table, part(synopsis))
    sampled = max(1, len(store.index) // SAMPLED)
    (first, last), elsewhere = store.index.span, 0
    end = first + (last - first) // sampled if sampled > 1 else END
    for entries in store.index.scan():
        some = entries[identities(entries)[0] < end]
        elsewhere += _entry_words(store, _elsewhere(store, some))
        if len(some) < len(entries):
            break
    return 8 * (words + sampled * elsewhere)


def _entry_words(store: CleanableStore, entries: Ints) -> int:
    """Return the words of live extents that entries point to."""
    words = 0
    for synopsis in range(store.directory.synopses):
        first = entry_width(synopsis)
        root, cold, chain, expiry = (entries[:, first + column] for column in range(4))
        kept = (root != k.NO_ROOT) & (expiry == INFINITY)
        words += int(cold[kept].sum() + LASTING_HEADER * (chain[kept] & 0xFFFFFFFF).sum())
    return words


def _move_on(store: CleanableStore, last: int) -> None:
    """Write the groups whole that have never-expiring extents in segments up to an ordinal."""
    for synopsis in range(store.directory.synopses):
        slots = store.directory.listed(directory_passes.list_old, part(synopsis), last)
        store.consolidate(synopsis, slots)
    most = max(1, store.directory.most // 4)
    left: list[Ints] = []
    store.index.add(_written_again(store, last, most, left))
    few = sum(map(len, left)) <= most
    for rows in filter(len, left) if few else _pointing_elsewhere(store, last, most):
        store.facts.next(Fact.CHUNK)
        slots = np.sort(store.locate(*identities(rows)))
        for synopsis in range(store.directory.synopses):
            store.consolidate(synopsis, _old(store, synopsis, slots, last))


def _written_again(store: CleanableStore, last: int, most: int, left: list[Ints]) -> Iterator[Ints]:
    """Write groups from rows of the cold index; yield the rows that the index then has.

    The rows are not checked again: no group may leave the directory meanwhile. Groups that could
    not be written are added to `left`, up to one more than `most`.
    """
    room = most + 1
    for rows in _pointing_elsewhere(store, last, most):
        done = store.consolidate_inline(rows, last)
        left.append(rows[~done, :2][:room])
        room -= len(left[-1])
        yield rows[done]


def _pointing_elsewhere(store: CleanableStore, last: int, most: int) -> Iterator[Ints]:
    """Yield rows of groups not in the directory with extents up to an ordinal, `most` at a time."""
    end = entry_width(store.directory.synopses)
    waiting: list[Ints] = []
    for rows in store.index.rows():
        chains = rows[:, 2 + ENTRY.index(k.CHAIN) : end : len(ENTRY)] >> 32
        waiting.append(_elsewhere(store, rows[(chains <= last).any(axis=1)]))
        if sum(map(len, waiting)) < most:
            continue
        together = np.concatenate(waiting)
        whole = len(together) // most * most
        waiting = [together[whole:]]
        yield from np.split(together[:whole], whole // most)
    if any(map(len, waiting)):
        yield np.concatenate(waiting)


def _old(store: CleanableStore, synopsis: int, slots: Slots, last: int) -> Slots:
    table, at = store.directory.table, part(synopsis)
    there = table[slots, at + k.ROOT] != k.NO_ROOT
    never = table[slots, at + k.ROOT_EXPIRY] == INFINITY
    fresh = table[slots, at + k.FLAGS] & k.STALE == 0
    old = there & never & fresh & (table[slots, at + k.CHAIN] >> 32 <= last)
    return np.asarray(slots[old])
