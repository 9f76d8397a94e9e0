"""Cleaning of the log: what is mostly dead is written again, whatever its expiry.

Idea: a segment is dead once all its extents have expired, but one long-lived row, or a row that
was replaced, keeps it. Rows in memory and segments, with what the version is about to write, may
hold at most three times the live bytes. If they hold more, the version ends with a snapshot, which
releases expired segments at once. If that is not enough, segments are released in the order they
were written: the groups that have an extent in the oldest ones are written whole to the newest, so
nothing points to the old ones any more. Small groups are written from the cold index. Live bytes
are counted from the directory; how much of the chains has expired is estimated by reading a few
groups, drawn in proportion to their size.

Invariants:
1. Rows in memory and segments stay within three times the live bytes, plus a megabyte
   (`test_bounded_rows_without_expiry_are_cleaned`, `test_bounded_rewritten_groups_are_cleaned`,
   `test_bounded_short_and_long_lifetimes_share_a_group`). Timers and one snapshot come on top.
2. No segment that a restore reads is deleted (`test_crash_cleaned_segments_are_not_missed`).
3. Cleaning changes no rows (`test_oracle_cleaning_changes_no_rows`).

Cost: each cleaning writes the live rows of the groups with extents in the oldest segments, at most
once for every byte that is written otherwise. Live bytes are counted again when memory and log have
grown by an eighth, and with each snapshot: a pass over the directory and a read of `DRAWN` chains.

Limits: groups too large for the work buffers are not drawn, and taken to be live.

References: log-structured cleaning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from icestream.core.arrays import Ints, Mask, Slots
from icestream.core.times import INFINITY
from icestream.kernels.groups import heap as k
from icestream.kernels.groups.extents import HEADER, LASTING_HEADER
from icestream.kernels.groups.inline_groups import LENGTH_BITS
from icestream.state.arena import Arena
from icestream.state.groups.directory import ENTRY, GroupDirectory, entry_width, part
from icestream.state.groups.eviction import GroupEviction
from icestream.state.groups.extents import ExtentLog
from icestream.state.groups.facts import Fact, Facts
from icestream.state.identities import identities
from icestream.state.index.sorted_index import ColdIndex
from icestream.state.snapshot_schedule import SLACK
from icestream.state.table import CountedTable

#: maximum bytes in memory and on the log per live byte
MOST = 3
#: live bytes are counted again when memory and log have grown by 1/GROWN
GROWN = 8
#: approximate number of cold index entries sampled to estimate the live bytes
SAMPLED = 1 << 14
#: groups read to estimate which part of the chains has expired, and the most words of one
DRAWN = 32
DRAWN_WORDS = 1 << 16
#: one more than the greatest id_high
END = 1 << 64
#: ordinal, bytes and latest expiry of segments: none
NO_SEGMENTS = np.empty((0, 3), dtype=np.int64)


class CleanableStore(Protocol):
    """The part of a store that cleaning uses."""

    directory: GroupDirectory
    index: ColdIndex
    facts: Facts
    eviction: GroupEviction

    def consolidate(self, synopsis: int, slots: Slots) -> None:
        """Write groups whole, in one extent each."""
        ...

    def consolidate_inline(self, rows: Ints, last: int) -> Mask:
        """Write groups from rows of the cold index, which change; return which were written."""
        ...

    def bytes_unlogged(self) -> int:
        """Bytes of rows in memory that the end of the version writes to the log."""
        ...


class Cleaner:
    """The segments of one store."""

    def __init__(
        self, arena: Arena, name: str, facts: Facts, log: ExtentLog, expiry_at: Sequence[int]
    ) -> None:
        """Attach to the arena's list, or start one; `expiry_at` is -1 where no row expires."""
        self._facts = facts
        self._log = log
        self._expiry_at = expiry_at
        #: ordinal, bytes of this store and their latest expiry, oldest first
        self._segments = CountedTable(arena, f"{name}.segments", 3)
        #: whether live bytes were counted in this version
        self._counted = False

    @property
    def segments(self) -> Ints:
        """Ordinals, bytes and latest expiries of the segments that a restore may read."""
        return self._segments.rows.copy()

    def note(self, ordinal: int, size: int, expiry: int) -> None:
        """Record a segment that was written."""
        self._segments.append(np.array([ordinal, size, expiry]))

    def note_written(self) -> None:
        """Record the segments of this version."""
        for ordinal, (size, expiry) in sorted(self._log.traffic.segments.items()):
            self.note(ordinal, size, expiry)
        self._log.traffic.segments.clear()
        self._counted = False

    def load(self, segments: Ints) -> None:
        """Take over the segments of a snapshot."""
        self._segments.replace(segments)

    def is_crowded(self, store: CleanableStore) -> bool:
        """Return whether memory and log hold too much for what is live."""
        # at most all that is in memory is not on the log
        if self._kept + 2 * store.eviction.bytes_held() <= self._allowed:
            return False
        held = self._held(store)
        if held <= self._allowed or GROWN * held <= (GROWN + 1) * self._facts[Fact.COUNTED]:
            return False
        self._count(store)
        return held > self._allowed

    def clean(self, store: CleanableStore, *, whole: bool = False) -> tuple[int, ...]:
        """Release segments, given that no restore reads what was before; return their ordinals.

        If too many are left, the groups in the oldest ones are moved on; with `whole`, all groups.
        """
        segments = self.segments[np.argsort(self._segments.rows[:, 0])]
        over = segments[:, 2] <= self._facts[Fact.WATERMARK]
        released = segments[over, 0].tolist()
        segments = segments[~over]
        self._segments.replace(segments)
        if not self._counted:
            self._count(store)
        if whole or self._held(store) > self._allowed:
            live, sums = self._facts[Fact.LIVE], np.cumsum(segments[:, 1])
            # the log will have half as much again as what is live
            left = max(live // 2, live + live // 2 - store.bytes_unlogged())
            count = int(np.searchsorted(sums, int(segments[:, 1].sum()) - left)) + 1
            count = len(segments) if whole else min(count, len(segments))
            if count:
                _move_on(store, int(segments[count - 1, 0]))
                released += segments[:count, 0].tolist()
                self._segments.replace(segments[count:])
        self._facts[Fact.COUNTED] = self._held(store)
        return tuple(released)

    @property
    def _kept(self) -> int:
        """The bytes on the log."""
        written = sum(size for size, _ in self._log.traffic.segments.values())
        return int(self._segments.rows[:, 1].sum()) + written

    def _held(self, store: CleanableStore) -> int:
        """Return the bytes in memory, and on the log once the version has ended."""
        return self._kept + store.eviction.bytes_held() + store.bytes_unlogged()

    @property
    def _allowed(self) -> int:
        """The bytes that memory and log may have."""
        return MOST * self._facts[Fact.LIVE] + SLACK

    def _count(self, store: CleanableStore) -> None:
        """Estimate the live bytes."""
        words, (entries, weight) = 0, _sampled(store)
        for synopsis in range(store.directory.synopses):
            words += self._words(store, synopsis, entries, weight)
        self._facts[Fact.LIVE] = 8 * words
        self._counted = True
        self._facts[Fact.COUNTED] = self._held(store)

    def _words(self, store: CleanableStore, synopsis: int, entries: Ints, weight: int) -> int:
        """Return about how many words of a synopsis are live, in memory or in extents."""
        table, watermark = store.directory.table, self._facts[Fact.WATERMARK]
        root, cold, chain, expiry, flags, words, clean = (
            table[:, part(synopsis) + column]
            for column in (k.ROOT, k.COLD, k.CHAIN, k.ROOT_EXPIRY, k.FLAGS, k.WORDS, k.CLEAN)
        )
        there = table[:, k.STAMP] != 0
        unlogged = int((words - clean)[there].sum())
        sizes = _extent_words(root, cold, chain & 0xFFFFFFFF, expiry, watermark)
        sizes[~there | (flags & k.STALE != 0)] = 0
        sizes = np.append(sizes, weight * _entry_words(entries, synopsis, watermark))
        total = int(sizes.sum())
        if self._expiry_at[synopsis] < 0 or total == 0:
            return total + unlogged
        sums = np.cumsum(sizes)
        drawn = np.searchsorted(sums, (np.arange(DRAWN) + 0.5) * total / DRAWN)
        there, first = drawn[drawn < len(table)], entry_width(synopsis)
        columns = [k.ID_HIGH, k.ID_LOW, *(part(synopsis) + column for column in ENTRY)]
        elsewhere = entries[drawn[len(there) :] - len(table)]
        read = np.concatenate(
            [
                table[there][:, columns],
                elsewhere[:, [0, 1, *range(first, first + len(ENTRY))]],
            ]
        )
        return int(total * self._living(synopsis, read) / DRAWN) + unlogged

    def _living(self, synopsis: int, entries: Ints) -> float:
        """Return which part of the rows behind each entry has not expired, added up."""
        cold = entries[:, 2 + ENTRY.index(k.COLD)]
        readable = (cold > 0) & (cold <= DRAWN_WORDS)
        living = float(np.count_nonzero(~readable))
        entries, cold = entries[readable], cold[readable]
        watermark = self._facts[Fact.WATERMARK]
        for some in np.split(
            np.arange(len(cold)), np.flatnonzero(np.diff(np.cumsum(cold) // DRAWN_WORDS)) + 1
        ):
            roots, expiries = (
                entries[some, 2 + ENTRY.index(column)] for column in (k.ROOT, k.ROOT_EXPIRY)
            )
            chains = self._log.read_chains(*identities(entries[some]), roots, expiries, watermark)
            bounds = np.append(0, np.cumsum(chains.sizes))
            words, none = np.empty(bounds[-1], dtype=np.int64), np.zeros(len(some), dtype=np.int64)
            chains.copy(words, bounds[:-1].copy())
            counts = np.empty((3, len(some)), dtype=np.int64)
            k.sift(words, bounds, none, self._expiry_at[synopsis], watermark, *counts)
            living += float((np.diff(bounds) / cold[some]).sum())
        return living


def _sampled(store: CleanableStore) -> tuple[Ints, int]:
    """Return entries of groups that are not in the directory, and how many groups each stands for.

    The ids of a shard are spread evenly, so those below a bound represent all of a large index.
    """
    weight = max(1, len(store.index) // SAMPLED)
    first, last = store.index.span
    end = first + (last - first) // weight if weight > 1 else END
    found = [np.empty((0, entry_width(store.directory.synopses)), dtype=np.int64)]
    for entries in store.index.scan():
        some = entries[identities(entries)[0] < end]
        found.append(_elsewhere(store, some))
        if len(some) < len(entries):
            break
    return np.concatenate(found), weight


def _elsewhere(store: CleanableStore, entries: Ints) -> Ints:
    """Return the entries of groups that are not in the directory."""
    return entries[store.directory.find(*identities(entries)) < 0]


def _entry_words(entries: Ints, synopsis: int, watermark: int) -> Ints:
    """Return the words of the extents that entries point to."""
    first = entry_width(synopsis)
    root, cold, chain, expiry = (entries[:, first + column] for column in range(4))
    return _extent_words(root, cold, chain & (1 << LENGTH_BITS) - 1, expiry, watermark)


def _extent_words(root: Ints, cold: Ints, extents: Ints, expiry: Ints, watermark: int) -> Ints:
    """Return the words of chains on the log; 0 if nothing behind the root can be live."""
    header = np.where(expiry == INFINITY, LASTING_HEADER, HEADER)
    lives = (root != k.NO_ROOT) & (expiry > watermark)
    return np.where(lives, cold + header * extents, 0)


def _move_on(store: CleanableStore, last: int) -> None:
    """Write the groups whole that have live extents in segments up to an ordinal."""
    for synopsis in range(store.directory.synopses):
        store.consolidate(synopsis, _old(store, synopsis, store.directory.every(), last))
    most = max(1, store.directory.most // 4)
    left: list[Ints] = []
    store.index.add(_written_again(store, last, most, left))
    few = sum(map(len, left)) <= most
    for rows in filter(len, left) if few else _pointing_elsewhere(store, last, most):
        store.facts.next(Fact.CHUNK)
        slots = np.sort(store.eviction.locate(*identities(rows)))
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
    end, watermark = entry_width(store.directory.synopses), store.facts[Fact.WATERMARK]
    waiting: list[Ints] = []
    for rows in store.index.rows():
        roots, chains, expiries = (
            rows[:, 2 + ENTRY.index(column) : end : len(ENTRY)]
            for column in (k.ROOT, k.CHAIN, k.ROOT_EXPIRY)
        )
        old = (roots != k.NO_ROOT) & (chains >> 32 <= last) & (expiries > watermark)
        waiting.append(_elsewhere(store, rows[old.any(axis=1)]))
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
    lives = table[slots, at + k.ROOT_EXPIRY] > store.facts[Fact.WATERMARK]
    fresh = table[slots, at + k.FLAGS] & k.STALE == 0
    old = there & lives & fresh & (table[slots, at + k.CHAIN] >> 32 <= last)
    return np.asarray(slots[old])
