"""Entries of cold groups that the directory has no room for: a few sorted files.

Idea: the index is state too. Entries leave the directory many at a time and make a sorted run of
their own, which takes in the runs before it that are not `GROWTH` times as large. So there are few
runs, each larger than the next, and an entry is copied a few times in its life. A group's newest
entry counts; what is fetched stays, out of date, until it is merged away. An empty entry says that
the group is gone. Words beside an entry go where it goes, but are no part of it.

Invariants:
1. It is a dictionary of the entries merged in last (`test_oracle_an_index_is_a_dictionary`).
2. Memory does not depend on the number of entries but for 16 bytes a page; there are few runs
   (`test_bounded_an_index_has_few_runs`).
3. Like all of the arena it is a cache of the log (`test_crash_restored_groups_are_those_before`).

Cost: a lookup reads a page of every run until it finds the group; O(GROWTH * log(entries)) copies
of each entry.

Limits: a new group costs a page of each run to see that it is new. The operating system keeps what
is hot of the files in memory, outside the process.

References: log-structured merge trees.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import reduce

import numpy as np
import numpy.typing as npt

from icestream.state.arena import Arena
from icestream.state.synopses.sorted_run import RunWriter, Shape, SortedRun, merged
from icestream.state.synopses.spec import Ids, Ints

#: a run is at least so many times as large as the next
GROWTH = 1.5
#: pages read or written at once, at least
_LEAST_PAGES = 16
#: runs at most; each is GROWTH times as large as the next
_MOST_RUNS = 64

Mask = npt.NDArray[np.bool_]


class ColdIndex:
    """Entries of groups by identity, in files."""

    def __init__(
        self,
        arena: Arena,
        name: str,
        width: int,
        dues: tuple[int, ...],
        page_bytes: int,
        work: int,
        is_empty: Callable[[Ints], Mask],
        beside: int = 0,
    ) -> None:
        """Attach to the arena's files, or start empty.

        Args:
            arena: where files and fences are.
            name: what their names begin with.
            width: words of an entry.
            dues: its words that are instants.
            page_bytes: bytes of a page.
            work: bytes to read or write at once.
            is_empty: tells which entries say that their group is gone.
            beside: words kept beside each entry, which may be lost.
        """
        self._arena = arena
        self._name = name
        self._entry = width
        width += beside
        page = max(1, page_bytes // (8 * width))
        self._shape = Shape(width, dues, page, max(_LEAST_PAGES, work // (8 * width * page)))
        self._is_empty = is_empty
        self._fences = arena.array(f"{name}.fences", np.int64, 2)
        #: number of the file and entries of each run, oldest first; before them the runs there are
        #: and the number of the last file
        self._runs = arena.array(f"{name}.runs", np.int64, 2, _MOST_RUNS + 1)

    def __len__(self) -> int:
        """Return the number of entries, those out of date among them."""
        return int(self._table[:, 1].sum())

    @property
    def width(self) -> int:
        """Return the words of an entry and of what is beside it."""
        return self._shape.width

    @property
    def runs(self) -> int:
        """Return the number of runs."""
        return int(self._runs.view[0, 0])

    def fetch(self, hi: Ids, lo: Ids) -> tuple[Mask, Ints]:
        """Return which of some sorted groups have entries; those, and what is beside them."""
        found = np.zeros(len(hi), dtype=np.bool_)
        entries = np.empty((len(hi), self._shape.width), dtype=np.int64)
        for number in reversed(range(self.runs)):
            self._run(number).fetch(hi, lo, found, entries)
        return found, entries[found]

    def scan(self, news: Ints | None = None, since: int = 0) -> Iterator[Ints]:
        """Yield all groups' entries in order, some at a time, with sorted `news` instead of them.

        Empty ones are left out, and most of those whose hi is less than `since`. What is merged in
        meanwhile does not show.
        """
        sources = [self._entries(number, since) for number in range(self.runs)]
        if news is not None:
            sources.append(self._pieces(news))
        for entries in _together(sources):
            yield entries[~self._is_empty(entries)]

    def due(self, synopsis: int, watermark: int) -> Iterator[Ints]:
        """Yield entries whose synopsis is due, some at a time.

        A page that was yielded and followed by another is not read again for the same entries. No
        merge may come in between.
        """
        for number in range(self.runs):
            for entries in self._run(number).due(synopsis, watermark):
                yield self._newest(number, entries)

    def _newest(self, number: int, entries: Ints) -> Ints:
        """Leave out sorted entries of a run that those of newer runs have replaced."""
        replaced, newer = np.zeros(len(entries), dtype=np.bool_), np.empty_like(entries)
        hi, lo = entries[:, 0].view(np.uint64), entries[:, 1].view(np.uint64)
        for later in range(number + 1, self.runs):
            self._run(later).fetch(hi, lo, replaced, newer)
        return entries[~replaced]

    def merge(self, entries: Ints) -> None:
        """Take in sorted entries, with what is beside them, instead of those that are there."""
        if not len(entries):
            return
        first, size = self.runs, len(entries)
        while first > 0 and self._table[first - 1, 1] < GROWTH * size:
            first -= 1
            size += int(self._table[first, 1])
        sources = [self._run(number).scan() for number in range(first, self.runs)]
        blocks = _together([*sources, self._pieces(entries)])
        if first == 0:
            blocks = map(self._filled, blocks)
        self._replace(first, blocks)

    def fill(self, blocks: Iterator[Ints]) -> None:
        """Replace all entries by others, which come in order, with nothing beside them."""
        self._replace(0, map(self._alone, blocks))

    def clear(self) -> None:
        """Forget all entries."""
        self._replace(0, iter(()))

    @property
    def _table(self) -> Ints:
        table: Ints = self._runs.view[1 : 1 + self.runs]
        return table

    def _entries(self, number: int, since: int) -> Iterator[Ints]:
        """Yield the entries of a run without what is beside them."""
        for rows in self._run(number).scan(since):
            yield np.ascontiguousarray(rows[:, : self._entry])

    def _alone(self, entries: Ints) -> Ints:
        """Return entries with zeros beside them."""
        return np.pad(entries, ((0, 0), (0, self._shape.width - self._entry)))

    def _filled(self, rows: Ints) -> Ints:
        """Leave out the rows of groups that are gone."""
        empty = self._is_empty(rows[:, : self._entry])
        return rows[~empty] if empty.any() else rows

    def _pages(self, count: int) -> int:
        return -(-count // self._shape.page)

    def _fences_before(self, number: int) -> int:
        return sum(self._pages(count) for count in self._table[:number, 1].tolist())

    def _run(self, number: int) -> SortedRun:
        file, count = self._table[number].tolist()
        first = self._fences_before(number)
        fences = self._fences.view[first : first + self._pages(count)]
        return SortedRun(self._path(file), self._shape, count, fences)

    def _pieces(self, entries: Ints) -> Iterator[Ints]:
        some = self._shape.entries_at_once
        for first in range(0, len(entries), some):
            yield entries[first : first + some]

    def _path(self, file: int) -> str:
        return self._arena.path(f"{self._name}.run-{file}")

    def _replace(self, first: int, blocks: Iterator[Ints]) -> None:
        """Put one run in place of those from `first` on."""
        file = int(self._runs.view[0, 1]) + 1
        writer = RunWriter(self._path(file), self._shape)
        try:
            for block in blocks:
                writer.add(block)
            writer.finish()
            fences, begin = writer.fences, self._fences_before(first)
            if begin + len(fences) > self._fences.capacity:
                self._fences.resize(begin + len(fences) + len(fences) // 4)
        except BaseException:
            writer.abandon()
            raise
        gone = self._table[first:, 0].tolist()
        self._fences.view[begin : begin + len(fences)] = fences
        self._runs.view[1 + first] = file, writer.count
        self._runs.view[0] = first + (writer.count > 0), file
        if not writer.count:
            gone.append(file)
        for number in gone:
            with suppress(FileNotFoundError):
                os.unlink(self._path(number))


def _together(sources: list[Iterator[Ints]]) -> Iterator[Ints]:
    """Merge sources of sorted entries, the oldest first.

    Those are the largest: what is newer is merged before it meets them, so they are copied once.
    """
    return reduce(lambda newer, older: merged(older, newer), reversed(sources), iter(()))
