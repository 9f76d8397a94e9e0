"""Entries of cold groups that do not fit into the directory: a few sorted files.

Idea: the index is state too. Entries leave the directory many at a time and form a new sorted run.
Runs of about the same size are a *level*; when a level has `FULL` runs they are merged into one, so
an entry is copied once per level. A group's newest entry counts; an older one is *outdated* until a
merge drops it. All runs are merged when there are more outdated entries than others. An empty entry
means that the group is gone. Inline words next to an entry move with it, but are not part of it.

Invariants:
1. It behaves like a dictionary of the last entries merged (`test_oracle_an_index_is_a_dictionary`).
2. Memory does not depend on the number of entries except for 16 bytes in 256 pages
   (`test_bounded_an_index_takes_little_memory`); there are few runs
   (`test_bounded_an_index_has_few_runs`), and a group has two entries on average at most
   (`test_bounded_an_index_forgets_what_is_out_of_date`).
3. Like all of the arena it is a cache of the log (`test_crash_restored_groups_are_those_before`).

Cost: a lookup reads a page of every run until it finds the group; a level has up to `FULL - 1`
runs; each entry is copied O(log(entries)) times.

Limits: finding that a group is new costs a page of each run. The operating system caches the hot
part of the files, outside the process.

References: log-structured merge trees.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

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

#: runs of a level that are merged into one
FULL = 8
#: minimum pages read or written at once
_LEAST_PAGES = 16
#: maximum number of runs
_MOST_RUNS = 64


class ColdIndex:
    """Entries of groups by id, in files."""

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
            arena: owner of files and guides.
            name: prefix of their names.
            width: words of an entry.
            dues: its words that are timers.
            page_bytes: bytes of a page.
            work: bytes to read or write at once.
            is_empty: returns which entries mean that their group is gone.
            beside: inline words stored next to each entry, which may be lost.
        """
        self._arena = arena
        self._name = name
        self._entry = width
        width += beside
        page = max(1, page_bytes // (8 * width))
        self._shape = EntryFormat(width, dues, page, max(_LEAST_PAGES, work // (8 * width * page)))
        self._is_empty = is_empty
        #: open runs, by file
        self._mapped: dict[int, SortedEntries] = {}
        self._guides = arena.array(f"{name}.guides", np.int64, kernels.FENCE)
        #: file number, entries and space for entries of each run, oldest first; before these the
        #: number of runs, the number of the last file and the number of outdated entries
        self._runs = arena.array(f"{name}.runs", np.int64, 3, _MOST_RUNS + 1)

    def __len__(self) -> int:
        return int(self._table[:, 1].sum())

    @property
    def width(self) -> int:
        """Return the words of an entry and its inline words."""
        return self._shape.width

    @property
    def runs(self) -> int:
        return int(self._runs.view[0, 0])

    @property
    def span(self) -> tuple[int, int]:
        """Return the least id_high of all entries, and the greatest."""
        ends = [self._source(number).high_words[[0, -1]].tolist() for number in range(self.runs)]
        return (min(first for first, _ in ends), max(last for _, last in ends)) if ends else (0, 0)

    def fetch(self, id_high: Ids, id_low: Ids) -> tuple[Mask, Ints]:
        """Return which of some sorted groups have entries, and these with their inline words."""
        found = np.zeros(len(id_high), dtype=np.bool_)
        entries = np.empty((len(id_high), self._shape.width), dtype=np.int64)
        self._find(range(self.runs), id_high, id_low, found, entries)
        return found, entries[found]

    def scan(self, news: Ints | None = None, since: int = 0) -> Iterator[Ints]:
        """Yield all groups' entries in order, a batch at a time; sorted `news` replace old ones.

        Empty ones are left out, and most of those whose id_high is less than `since`. Entries
        merged meanwhile do not appear. Reading all with `news` shows how many are outdated.
        """
        sources = [self._source(number, since) for number in range(self.runs)]
        if news is not None and not sources:
            yield news[~self._is_empty(news)]
            return
        outdated = len(self)
        if news is not None:
            sources.append(SortedEntries(news.reshape(-1), self._entry))
        for entries in together(sources, self._entry, self._shape.entries_at_once):
            left = entries[~self._is_empty(entries)]
            outdated -= len(left)
            yield left
        if news is not None:
            self._runs.view[0, 2] = max(outdated, int(self._runs.view[0, 2]))

    def rows(self) -> Iterator[Ints]:
        """Yield all groups' entries with their inline words, in order, a batch at a time.

        Entries merged meanwhile do not appear.
        """
        sources = [self._source(number) for number in range(self.runs)]
        yield from map(self._filled, together(sources, self.width, self._shape.entries_at_once))

    def due(self, synopsis: int, watermark: int) -> Iterator[Ints]:
        """Yield entries whose synopsis is due, a batch at a time.

        A page that was yielded and followed by another is not read again for the same entries. No
        merge may happen in between.
        """
        for number in range(self.runs):
            for entries in self._run(number).due(synopsis, watermark):
                yield self._newest(number, entries)

    def _newest(self, number: int, entries: Ints) -> Ints:
        """Remove sorted entries of a run that newer runs have replaced."""
        replaced, newer = np.zeros(len(entries), dtype=np.bool_), np.empty_like(entries)
        later = range(number + 1, self.runs)
        self._find(later, *identities(entries), replaced, newer)
        return entries[~replaced]

    def _find(
        self, numbers: Iterable[int], id_high: Ids, id_low: Ids, found: Mask, entries: Ints
    ) -> None:
        """Fill in the entries of sorted groups that are not found yet, newest run first."""
        descriptor = [self._source(n).descriptor(self._guides_before(n)) for n in numbers]
        runs = np.array(descriptor[::-1], dtype=np.int64).reshape(-1, kernels.RUN)
        some = self._looked_for_at_once(id_high)
        for first in range(0, len(id_high), some):
            at = slice(first, first + some)
            kernels.find_in_runs(
                runs,
                self._guides.view.reshape(-1),
                self._shape.page,
                id_high[at],
                id_low[at],
                found[at],
                entries[at],
            )
            for run in self._mapped.values():
                give_back(run.words)

    def _looked_for_at_once(self, id_high: Ids) -> int:
        """Return how many groups to look up before the pages read are released."""
        if not len(id_high):
            return 1
        between = (int(id_high[-1]) - int(id_high[0])) / 2**64 * len(self) * 8 * self.width
        return max(1, int(len(id_high) * LOOKED_AT / max(LOOKED_AT, between)))

    def merge(self, entries: Ints, outdated: int = 0) -> None:
        """Add sorted entries, with their inline words; they make `outdated` entries obsolete."""
        if not len(entries):
            return
        first = self._taken_in(len(entries), outdated)
        sources = [self._source(number) for number in range(first, self.runs)]
        sources.append(SortedEntries(entries.reshape(-1), self.width))
        blocks = together(sources, self.width, self._shape.entries_at_once)
        if first == 0:
            blocks = map(self._filled, blocks)
        most = len(entries) + int(self._table[first:, 1].sum())
        self._replace(first, blocks, most)
        if first:
            self._runs.view[0, 2] += outdated - most + int(self._table[first:, 1].sum())

    def add(self, blocks: Iterator[Ints]) -> None:
        """Add sorted entries, a batch at a time, as a run of their own.

        Their groups have entries already; earlier runs are read meanwhile.
        """
        if self.runs == _MOST_RUNS:
            self._replace(0, self.rows(), len(self))
        number = self.runs
        self._replace(number, blocks, len(self))
        if number:
            self._runs.view[0, 2] += int(self._table[number:, 1].sum())

    def _taken_in(self, size: int, outdated: int) -> int:
        """Return the first run that a new one merges with: those of a full level.

        All of them if most entries are outdated.
        """
        first, sizes = self.runs, self._table[:, 1].tolist()
        outdated += int(self._runs.view[0, 2])
        if first == _MOST_RUNS or 2 * outdated > size + sum(sizes):
            return 0
        while True:
            last = first
            while first > 0 and _level(sizes[first - 1]) <= _level(size):
                first -= 1
            if last - first < FULL - 1:
                return last
            size += sum(sizes[first:last])

    def fill(self, blocks: Iterator[Ints], most: int) -> None:
        """Replace all entries by at most `most` sorted ones, without inline words."""
        self._replace(0, map(self._alone, blocks), most)

    def clear(self) -> None:
        self._replace(0, iter(()), 0)

    @property
    def _table(self) -> Ints:
        table: Ints = self._runs.view[1 : 1 + self.runs]
        return table

    def _source(self, number: int, since: int = 0) -> SortedEntries:
        """Return a run, mapped once per version, from about the entries of `since` on."""
        file, run = int(self._table[number, 0]), self._run(number)
        if file not in self._mapped:
            self._mapped[file] = run.mapped()
        return self._mapped[file].since(since) if since else self._mapped[file]

    def _alone(self, entries: Ints) -> Ints:
        """Return entries with zeros as inline words."""
        return np.pad(entries, ((0, 0), (0, self._shape.width - self._entry)))

    def _filled(self, rows: Ints) -> Ints:
        """Remove the rows of groups that are gone."""
        empty = self._is_empty(rows[:, : self._entry])
        return rows[~empty] if empty.any() else rows

    def _guides_before(self, number: int) -> int:
        return sum(map(self._shape.guides, self._table[:number, 1].tolist()))

    def _run(self, number: int) -> SortedRun:
        file, count, most = self._table[number].tolist()
        first = self._guides_before(number)
        guides = self._guides.view[first : first + self._shape.guides(count)]
        return SortedRun(self._path(file), self._shape, most, count, guides)

    def _path(self, file: int) -> str:
        return self._arena.path(f"{self._name}.run-{file}")

    def _replace(self, first: int, blocks: Iterator[Ints], most: int) -> None:
        """Replace the runs from `first` on by one run of at most `most` entries."""
        file = int(self._runs.view[0, 1]) + 1
        writer = RunWriter(self._path(file), self._shape, most)
        try:
            for block in blocks:
                writer.add(block)
            writer.finish()
            guides, begin = writer.guides, self._guides_before(first)
            if begin + len(guides) > self._guides.capacity:
                self._guides.resize(begin + len(guides))
        except BaseException:
            writer.abandon()
            raise
        gone = self._table[first:, 0].tolist()
        self._guides.view[begin : begin + len(guides)] = guides
        self._runs.view[1 + first] = file, writer.count, most
        self._runs.view[0, :2] = first + (writer.count > 0), file
        if first == 0:
            self._runs.view[0, 2] = 0
        if not writer.count:
            gone.append(file)
        for number in gone:
            self._mapped.pop(number, None)
            with suppress(FileNotFoundError):
                os.unlink(self._path(number))


def _level(size: int) -> int:
    """Return the level of a run; runs of the next level are `FULL` times as large."""
    return int(math.log(size, FULL))
