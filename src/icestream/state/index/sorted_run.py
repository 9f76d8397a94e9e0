"""Entries of groups in a sorted file of small pages.

Idea: entries, sorted by id, fill a file of the arena page by page. Before them, in a space for the
maximum number of entries, the file has a copy of every entry's high word, and a *fence* of each
page: its first id_high and the first time at which one of its groups is due. The owner keeps a
*guide* of many fences in memory, with the same two words. Lookups and merges read the mapped files;
the pages they touched are released afterwards.

Invariants:
1. Entries are read as they were written (`test_parity_a_run_beside_a_dictionary`).
2. Few pages are read at a time (`test_bounded_a_run_reads_a_few_pages_at_a_time`).
3. A guide has the least of its fences, before and after timers
   (`test_guides_have_the_least_of_their_fences`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import numpy as np

from icestream.core.arrays import Ids, Ints
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
        return self.page * self.at_once

    def pages(self, count: int) -> int:
        return -(-count // self.page)

    def guides(self, count: int) -> int:
        return -(-self.pages(count) // kernels.GUIDED)

    def first_entry(self, most: int) -> int:
        """Return the words before the entries of a file for at most `most` of them."""
        return most + kernels.FENCE * self.pages(most)


class SortedRun:
    """One sorted file."""

    def __init__(self, path: str, shape: EntryFormat, most: int, count: int, guides: Ints) -> None:
        """Read a file of `count` entries that has space for `most`.

        `guides` is a view that `due` changes.
        """
        self._path = path
        self._shape = shape
        self._most = most
        self._count = count
        self._guides = guides

    def mapped(self) -> SortedEntries:
        width, before = self._shape.width, self._shape.first_entry(self._most)
        with self._open(os.O_RDONLY) as handle:
            data = mapped(handle, 8 * (before + width * self._count))
        return SortedEntries(np.frombuffer(data, dtype=np.int64), width, before, self._most)

    def due(self, place: int, watermark: int) -> Iterator[Ints]:
        """Yield entries that are due by one of their timers, page by page.

        The fence of a page that is done is set to its next timer, which may be that of another
        entry and already be due.
        """
        shape = self._shape
        for guide in np.flatnonzero(self._guides[:, 1] <= watermark).tolist():
            first = guide * kernels.GUIDED
            last = min(first + kernels.GUIDED, shape.pages(self._count))
            with self._open(os.O_RDWR) as handle:
                size, at = 16 * (last - first), 8 * (self._most + kernels.FENCE * first)
                fences = np.frombuffer(bytearray(os.pread(handle, size, at)), dtype=np.int64)
                fences = fences.reshape(-1, kernels.FENCE)
                pages = np.flatnonzero(fences[:, 1] <= watermark)
                for begin in range(0, len(pages), shape.at_once):
                    some = pages[begin : begin + shape.at_once]
                    rows, starts = self._read_pages(handle, first + some)
                    instants = rows[:, shape.dues]
                    due = instants[:, place] <= watermark
                    yield rows[due]
                    instants[due, place] = INFINITY
                    fences[some, 1] = np.minimum.reduceat(instants.min(axis=1), starts[:-1])
                    os.pwrite(handle, fences.tobytes(), at)
            self._guides[guide, 1] = fences[:, 1].min()

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
        at = 8 * self._shape.first_entry(self._most) + first * size
        data = os.pread(handle, (last - first) * size, at)
        return np.frombuffer(data, dtype=np.int64).reshape(-1, self._shape.width)

    @contextmanager
    def _open(self, flags: int) -> Iterator[int]:
        handle = os.open(self._path, flags)
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
        #: entries that it has space for
        self.most = most
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._waiting = np.empty((0, shape.width), dtype=np.int64)
        self._guides = np.empty((shape.guides(most), kernels.FENCE), dtype=np.int64)
        #: entries written
        self.count = 0

    @property
    def guides(self) -> Ints:
        """First id_high and earliest timer of the pages of each guide."""
        return self._guides[: self._shape.guides(self.count)]

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
        shape = self._shape
        starts = np.arange(0, len(rows), shape.page)
        instants = rows[:, shape.dues].min(axis=1, initial=INFINITY)
        fences = np.column_stack((rows[starts, 0], np.minimum.reduceat(instants, starts)))
        page = self.count // shape.page
        try:
            self._put(rows[:, 0], self.count)
            self._put(fences, self.most + kernels.FENCE * page)
            self._put(rows, shape.first_entry(self.most) + self.count * shape.width)
        except OSError as error:
            refusal = storage_error(self._path, error)
            if refusal is None:
                raise
            raise refusal from error
        numbers = np.arange(page, page + len(fences))
        begun = numbers % kernels.GUIDED == 0
        self._guides[numbers[begun] // kernels.GUIDED] = fences[begun]
        np.minimum.at(self._guides[:, 1], numbers // kernels.GUIDED, fences[:, 1])
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

    #: words of each entry, with high words and fences before them if they are searched
    words: Ints
    width: int
    #: words before the first entry, and before the fences
    before: int = 0
    fences: int = 0
    #: the first entry wanted
    place: int = 0

    @property
    def high_words(self) -> Ids:
        """Return the copy of all high words."""
        return self.words[: (len(self.words) - self.before) // self.width].view(np.uint64)

    def since(self, id_high: int) -> SortedEntries:
        return replace(self, place=int(np.searchsorted(self.high_words, np.uint64(id_high))))

    def descriptor(self, guides: int = 0) -> tuple[int, int, int, int, int, int]:
        """Return the numbers that describe it to kernels, with its first guide."""
        first = self.words.ctypes.data
        count = (len(self.words) - self.before) // self.width
        return first + 8 * self.before, count, self.width, guides, first + 8 * self.fences, first


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
