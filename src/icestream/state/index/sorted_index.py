"""Entries of cold groups that the directory has no room for: a few sorted files.

Idea: the index is state too. Entries leave the directory many at a time and make a sorted run of
their own. Runs of about the same size are a *level*; when it has `FULL` of them they are made one,
so an entry is copied once for each level. All are made one when the oldest is a small part of them.
A group's newest entry counts; what is fetched stays, out of date, until it is merged away. An empty
entry says that the group is gone. Words beside an entry go where it goes, but are no part of it.

Invariants:
1. It is a dictionary of the entries merged in last (`test_oracle_an_index_is_a_dictionary`).
2. Memory does not depend on the number of entries but for 16 bytes a page; there are few runs
   (`test_bounded_an_index_has_few_runs`), and a group has few entries on average
   (`test_bounded_an_index_forgets_what_is_out_of_date`).
3. Like all of the arena it is a cache of the log (`test_crash_restored_groups_are_those_before`).

Cost: a lookup reads a page of every run until it finds the group; there are up to `FULL - 1` runs
of a level; O(log(entries)) copies of each entry.

Limits: a new group costs a page of each run to see that it is new. The operating system keeps what
is hot of the files in memory, outside the process.

References: log-structured merge trees.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace

import numpy as np

from icestream.core.arrays import Ids, Ints, Mask
from icestream.kernels import sorted_run as kernels
from icestream.state.arena import Arena
from icestream.state.identities import identities
from icestream.state.index.sorted_run import (
    LOOKED_AT,
    EntryFormat,
    RunWriter,
    SortedEntries,
    SortedRun,
    together,
)
from icestream.state.log.mapped_segments import give_back

#: runs of a level that are made one
FULL = 8
#: all runs are made one when those behind the oldest have more than so many times its entries
NEWER = 2
#: pages read or written at once, at least
_LEAST_PAGES = 16
#: runs at most
_MOST_RUNS = 64


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
        self._shape = EntryFormat(width, dues, page, max(_LEAST_PAGES, work // (8 * width * page)))
        self._is_empty = is_empty
        #: runs that were looked into, by file
        self._mapped: dict[int, SortedEntries] = {}
        self._fences = arena.array(f"{name}.fences", np.int64, 2)
        #: number of the file, entries and words before them of each run, oldest first; before them
        #: the runs there are and the number of the last file
        self._runs = arena.array(f"{name}.runs", np.int64, 3, _MOST_RUNS + 1)

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

    @property
    def span(self) -> tuple[int, int]:
        """Return the least hi of all entries, and about the greatest."""
        fences = self._fences.view[: self._fences_before(self.runs), 0].view(np.uint64)
        return (int(fences.min()), int(fences.max())) if len(fences) else (0, 0)

    def fetch(self, hi: Ids, lo: Ids) -> tuple[Mask, Ints]:
        """Return which of some sorted groups have entries; those, and what is beside them."""
        found = np.zeros(len(hi), dtype=np.bool_)
        entries = np.empty((len(hi), self._shape.width), dtype=np.int64)
        self._find(range(self.runs), hi, lo, found, entries)
        return found, entries[found]

    def scan(self, news: Ints | None = None, since: int = 0) -> Iterator[Ints]:
        """Yield all groups' entries in order, some at a time, with sorted `news` instead of them.

        Empty ones are left out, and most of those whose hi is less than `since`. What is merged in
        meanwhile does not show.
        """
        sources = [self._source(number, since) for number in range(self.runs)]
        if news is not None:
            sources.append(SortedEntries(news.reshape(-1), self._entry))
        for entries in together(sources, self._entry, self._shape.entries_at_once):
            yield entries[~self._is_empty(entries)]

    def rows(self) -> Iterator[Ints]:
        """Yield all groups' entries with what is beside them, in order, some at a time.

        What is merged in meanwhile does not show.
        """
        sources = [self._source(number) for number in range(self.runs)]
        yield from map(self._filled, together(sources, self.width, self._shape.entries_at_once))

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
        later = range(number + 1, self.runs)
        self._find(later, *identities(entries), replaced, newer)
        return entries[~replaced]

    def _find(self, numbers: Iterable[int], hi: Ids, lo: Ids, found: Mask, entries: Ints) -> None:
        """Fill in the entries of sorted groups that are not found yet, from the newest run on."""
        told = [self._source(n).told(self._fences_before(n)) for n in numbers]
        runs = np.array(told[::-1], dtype=np.int64).reshape(-1, kernels.RUN)
        some = self._looked_for_at_once(hi)
        for first in range(0, len(hi), some):
            at = slice(first, first + some)
            kernels.find_in_runs(
                runs, self._fences.view, self._shape.page, hi[at], lo[at], found[at], entries[at]
            )
            for run in self._mapped.values():
                give_back(run.words)

    def _looked_for_at_once(self, hi: Ids) -> int:
        """Return how many groups to look for until what was looked at is given back."""
        if not len(hi):
            return 1
        between = (int(hi[-1]) - int(hi[0])) / 2**64 * len(self) * 8 * self.width
        return max(1, int(len(hi) * LOOKED_AT / max(LOOKED_AT, between)))

    def merge(self, entries: Ints) -> None:
        """Take in sorted entries, with what is beside them, instead of those that are there."""
        if not len(entries):
            return
        first = self._taken_in(len(entries))
        sources = [self._source(number) for number in range(first, self.runs)]
        sources.append(SortedEntries(entries.reshape(-1), self.width))
        blocks = together(sources, self.width, self._shape.entries_at_once)
        if first == 0:
            blocks = map(self._filled, blocks)
        self._replace(first, blocks, len(entries) + int(self._table[first:, 1].sum()))

    def add(self, blocks: Iterator[Ints]) -> None:
        """Take in entries that come in order, some at a time, as a run of their own.

        They are of groups that have entries; what was merged in before is looked at meanwhile.
        """
        if self.runs == _MOST_RUNS:
            self._replace(0, self.rows(), len(self))
        self._replace(self.runs, blocks, len(self))

    def _taken_in(self, size: int) -> int:
        """Return the first of the runs that a new one takes in: those of a level that is full.

        All of them if the oldest is a small part: much of it is out of date.
        """
        first, sizes = self.runs, self._table[:, 1].tolist()
        if first == _MOST_RUNS or (sizes and size + sum(sizes[1:]) > NEWER * sizes[0]):
            return 0
        while True:
            last = first
            while first > 0 and _level(sizes[first - 1]) <= _level(size):
                first -= 1
            if last - first < FULL - 1:
                return last
            size += sum(sizes[first:last])

    def fill(self, blocks: Iterator[Ints], most: int) -> None:
        """Replace all entries by at most so many, which come in order, with nothing beside them."""
        self._replace(0, map(self._alone, blocks), most)

    def clear(self) -> None:
        """Forget all entries."""
        self._replace(0, iter(()), 0)

    @property
    def _table(self) -> Ints:
        table: Ints = self._runs.view[1 : 1 + self.runs]
        return table

    def _source(self, number: int, since: int = 0) -> SortedEntries:
        """Return a run, mapped once in a version, about from the entries of a hi on."""
        file, run = int(self._table[number, 0]), self._run(number)
        if file not in self._mapped:
            self._mapped[file] = run.mapped()
        return replace(self._mapped[file], place=run.place(since)) if since else self._mapped[file]

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
        file, count, before = self._table[number].tolist()
        first = self._fences_before(number)
        fences = self._fences.view[first : first + self._pages(count)]
        return SortedRun(self._path(file), self._shape, before, count, fences)

    def _path(self, file: int) -> str:
        return self._arena.path(f"{self._name}.run-{file}")

    def _replace(self, first: int, blocks: Iterator[Ints], most: int) -> None:
        """Put one run, of at most so many entries, in place of those from `first` on."""
        file = int(self._runs.view[0, 1]) + 1
        writer = RunWriter(self._path(file), self._shape, most)
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
        self._runs.view[1 + first] = file, writer.count, writer.before
        self._runs.view[0, :2] = first + (writer.count > 0), file
        if not writer.count:
            gone.append(file)
        for number in gone:
            self._mapped.pop(number, None)
            with suppress(FileNotFoundError):
                os.unlink(self._path(number))


def _level(size: int) -> int:
    """Return the level of a run; those of the next one are `FULL` times as large."""
    return int(math.log(size, FULL))
