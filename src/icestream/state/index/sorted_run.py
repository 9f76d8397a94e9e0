"""Entries of groups in a sorted file of small pages.

Idea: entries, sorted by id, fill a file of the arena page by page. The owner keeps two *fences* of
each page: its first id_high and the first time at which one of its groups is due. The file starts
with a copy of every entry's high word, in a space for the maximum number of entries. Lookups and
merges read the mapped files; the pages they touched are released afterwards.

Invariants:
1. Entries are read as they were written (`test_parity_a_run_beside_a_dictionary`).
2. Few pages are read at a time (`test_bounded_a_run_reads_a_few_pages_at_a_time`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import numpy as np

from icestream.core.arrays import Ints
from icestream.core.times import INFINITY
from icestream.kernels import sorted_run as kernels
from icestream.state.files import mapped, storage_error
from icestream.state.log.mapped_segments import give_back

#: approximate bytes of mapped runs that are read before their pages are released
LOOKED_AT = 16 << 20


@dataclass(frozen=True)
class EntryFormat:
    """The format of entries."""

    #: words of an entry
    width: int
    #: its words that are timers
    dues: tuple[int, ...]
    #: entries in a page
    page: int
    #: pages read or written at once
    at_once: int

    @property
    def entries_at_once(self) -> int:
        """Entries read or written at once."""
        return self.page * self.at_once


class SortedRun:
    """One sorted file."""

    def __init__(
        self, path: str, shape: EntryFormat, before: int, count: int, fences: Ints
    ) -> None:
        """Read a file of `count` entries behind `before` leading words.

        `fences` is a view that `due` changes.
        """
        self._path = path
        self._shape = shape
        self._before = before
        self._count = count
        self._fences = fences

    def mapped(self) -> SortedEntries:
        """Return all entries, paged in on access."""
        width = self._shape.width
        with self._reading() as handle:
            data = mapped(handle, 8 * (self._before + width * self._count))
        return SortedEntries(np.frombuffer(data, dtype=np.int64), width, self._before)

    def place(self, since: int) -> int:
        """Return a position behind which all entries with id_high >= `since` are."""
        first_id_high = self._fences[:, 0].view(np.uint64)
        page = int(np.searchsorted(first_id_high, np.uint64(since), side="left")) - 1
        return max(0, page) * self._shape.page

    def due(self, place: int, watermark: int) -> Iterator[Ints]:
        """Yield entries that are due by one of their timers, page by page.

        The fence of a page that is done is set to its next timer, which may be that of another
        entry and already be due.
        """
        shape = self._shape
        pages = np.flatnonzero(self._fences[:, 1] <= watermark)
        for begin in range(0, len(pages), shape.at_once):
            some = pages[begin : begin + shape.at_once]
            with self._reading() as handle:
                rows, starts = self._read_pages(handle, some)
            instants = rows[:, shape.dues]
            due = instants[:, place] <= watermark
            yield rows[due]
            instants[due, place] = INFINITY
            later = instants.min(axis=1)
            self._fences[some, 1] = np.minimum.reduceat(later, starts[:-1])

    def _read_pages(self, handle: int, pages: Ints) -> tuple[Ints, Ints]:
        """Return the entries of ascending pages, and the bounds of each page among them."""
        size = self._shape.page
        cuts = np.flatnonzero(np.diff(pages) != 1) + 1
        ends = np.minimum((pages + 1) * size, self._count)
        firsts = (pages * size)[np.concatenate(([0], cuts))].tolist()
        lasts = ends[np.concatenate((cuts - 1, [len(pages) - 1]))].tolist()
        runs = [self._read(handle, *ends_of) for ends_of in zip(firsts, lasts, strict=True)]
        starts = np.concatenate(([0], np.cumsum(ends - pages * size)))
        return np.concatenate(runs), starts

    def _read(self, handle: int, first: int, last: int) -> Ints:
        """Return the entries from `first` up to but not including `last`."""
        size = 8 * self._shape.width
        data = os.pread(handle, (last - first) * size, 8 * self._before + first * size)
        return np.frombuffer(data, dtype=np.int64).reshape(-1, self._shape.width)

    @contextmanager
    def _reading(self) -> Iterator[int]:
        handle = os.open(self._path, os.O_RDONLY)
        try:
            yield handle
        finally:
            os.close(handle)


class RunWriter:
    """A new sorted file."""

    def __init__(self, path: str, shape: EntryFormat, most: int) -> None:
        """Create or truncate the file, for at most `most` entries."""
        self._path = path
        self._shape = shape
        #: words before the first entry
        self.before = most
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._waiting = np.empty((0, shape.width), dtype=np.int64)
        self._fences = [np.empty((0, 2), dtype=np.int64)]
        #: entries written
        self.count = 0

    @property
    def fences(self) -> Ints:
        """First id_high and earliest timer of each page."""
        return np.concatenate(self._fences)

    def add(self, rows: Ints) -> None:
        """Write the whole pages that these rows complete."""
        if len(self._waiting):
            missing = self._shape.page - len(self._waiting)
            begun, rows = np.concatenate((self._waiting, rows[:missing])), rows[missing:]
            if len(begun) < self._shape.page:
                self._waiting = begun
                return
            self._write(begun)
        whole = len(rows) // self._shape.page * self._shape.page
        self._write(rows[:whole])
        self._waiting = rows[whole:].copy()

    def finish(self) -> None:
        """Write the last page and close."""
        self._write(self._waiting)
        os.close(self._handle)

    def abandon(self) -> None:
        """Close and remove the file."""
        with suppress(OSError):
            os.close(self._handle)
        with suppress(FileNotFoundError):
            os.unlink(self._path)

    def _write(self, rows: Ints) -> None:
        if not len(rows):
            return
        try:
            self._put(rows[:, 0], self.count)
            self._put(rows, self.before + self.count * self._shape.width)
        except OSError as error:
            refusal = storage_error(self._path, error)
            if refusal is None:
                raise
            raise refusal from error
        starts = np.arange(0, len(rows), self._shape.page)
        instants = rows[:, self._shape.dues].min(axis=1, initial=INFINITY)
        earliest = np.minimum.reduceat(instants, starts)
        self._fences.append(np.column_stack((rows[starts, 0], earliest)))
        self.count += len(rows)

    def _put(self, table: Ints, place: int) -> None:
        """Write words at an offset in the file."""
        data, at = np.ascontiguousarray(table).view(np.uint8).reshape(-1).data, 8 * place
        while data.nbytes:
            written = os.pwrite(self._handle, data, at)
            data, at = data[written:], at + written


@dataclass(frozen=True)
class SortedEntries:
    """Sorted entries to merge or to search."""

    #: words of each entry, and a copy of all high words before them if they are searched
    words: Ints
    width: int
    before: int = 0
    #: the first entry wanted
    place: int = 0

    def descriptor(self, fences: int = 0) -> tuple[int, int, int, int, int]:
        """Return the numbers that describe it to kernels, with its first fence."""
        first = self.words.ctypes.data
        count = (len(self.words) - self.before) // self.width
        return first + 8 * self.before, count, self.width, fences, first


def together(sources: Sequence[SortedEntries], width: int, some: int) -> Iterator[Ints]:
    """Yield the first words of the entries of all sorted runs in order, `some` at a time.

    The oldest source comes first; of several entries of a group, the newest is yielded.
    """
    runs = np.array([each.descriptor() for each in sources], dtype=np.int64).reshape(
        -1, kernels.RUN
    )
    places = np.array([each.place for each in sources], dtype=np.int64)
    is_full, given_back = True, int(places.sum())
    while is_full:
        out = np.empty((some, width), dtype=np.int64)
        count = kernels.merge_runs(runs, places, out)
        is_full = count == some
        looked_at = int(places.sum())
        if not is_full or 8 * max(runs[:, kernels.WIDTH]) * (looked_at - given_back) > LOOKED_AT:
            given_back = looked_at
            for each in sources:
                give_back(each.words)
        yield out[:count]
