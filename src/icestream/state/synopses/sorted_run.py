"""Entries of groups in a sorted file of small pages.

Idea: entries, sorted by identity, fill a file of the arena page by page; of each page the first hi
and the first instant at which one of its groups is due are kept as *fences* by the owner. Lookups
are sorted and look into the mapped file, a window of it at a time.

Invariants:
1. What was written is found, and nothing else (`test_parity_a_run_beside_a_dictionary`).
2. Few pages are in memory at a time (`test_bounded_a_run_reads_a_few_pages_at_a_time`).

Cost: a lookup touches a page.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from icestream.core.times import INFINITY
from icestream.kernels.synopses import pages as kernels
from icestream.state.files import WINDOW, mapped, storage_error
from icestream.state.synopses.spec import Ids, Ints

Mask = npt.NDArray[np.bool_]

_SIDES: tuple[Literal["left", "right"], ...] = ("left", "right")


@dataclass(frozen=True)
class Shape:
    """How entries are kept."""

    #: words of an entry
    width: int
    #: its words that are instants
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

    def __init__(self, path: str, shape: Shape, count: int, fences: Ints) -> None:
        """Read a file of `count` entries; `fences` is a view that `due` changes."""
        self._path = path
        self._shape = shape
        self._count = count
        self._fences = fences

    def fetch(self, hi: Ids, lo: Ids, found: Mask, entries: Ints) -> None:
        """Fill in the entries of sorted groups that are not found yet and are here."""
        order = np.flatnonzero(~found)
        if not len(order) or not self._count:
            return
        page, first_hi = self._shape.page, self._fences[:, 0].view(np.uint64)
        # equal hi may begin in the page before
        firsts, lasts = (
            np.maximum(np.searchsorted(first_hi, hi[order], side=side) - 1, 0) for side in _SIDES
        )
        windows = firsts * page * 8 * self._shape.width // WINDOW
        cuts = [0, *(np.flatnonzero(np.diff(windows)) + 1).tolist(), len(order)]
        for begin, end in itertools.pairwise(cuts):
            which, start = order[begin:end], int(firsts[begin]) * page
            rows, at = self._mapped(start), np.empty(end - begin, dtype=np.int64)
            least = firsts[begin:end] * page - start
            most = np.minimum((lasts[begin:end] + 1) * page, self._count) - start
            kernels.find_entries(rows, least, most, hi[which], lo[which], at)
            there = at >= 0
            found[which[there]] = True
            entries[which[there]] = rows[at[there]]

    def _mapped(self, first: int) -> Ints:
        """Return the entries from `first` on, read where they are looked at."""
        size = 8 * self._shape.width
        with self._reading() as handle:
            data = mapped(handle, self._count * size, first * size)
        return np.frombuffer(data, dtype=np.int64).reshape(-1, self._shape.width)

    def scan(self, since: int = 0) -> Iterator[Ints]:
        """Yield all entries in order, some at a time; pages without a hi of `since` are skipped."""
        some = self._shape.entries_at_once
        first_hi = self._fences[:, 0].view(np.uint64)
        page = max(0, int(np.searchsorted(first_hi, np.uint64(since), side="left")) - 1)
        with self._reading() as handle:
            for first in range(page * self._shape.page, self._count, some):
                yield self._read(handle, first, min(first + some, self._count))

    def due(self, place: int, watermark: int) -> Iterator[Ints]:
        """Yield entries that are due by one of their instants, page by page.

        A page left behind waits for its next instant, which may be another one of its entries that
        has come already.
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
        """Return the entries of ascending pages, and where each page begins and the last ends."""
        size = self._shape.page
        cuts = np.flatnonzero(np.diff(pages) != 1) + 1
        ends = np.minimum((pages + 1) * size, self._count)
        firsts = (pages * size)[np.concatenate(([0], cuts))].tolist()
        lasts = ends[np.concatenate((cuts - 1, [len(pages) - 1]))].tolist()
        runs = [self._read(handle, *ends_of) for ends_of in zip(firsts, lasts, strict=True)]
        starts = np.concatenate(([0], np.cumsum(ends - pages * size)))
        return np.concatenate(runs), starts

    def _read(self, handle: int, first: int, last: int) -> Ints:
        """Return the entries from first to last, the last one left out."""
        size = 8 * self._shape.width
        data = os.pread(handle, (last - first) * size, first * size)
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

    def __init__(self, path: str, shape: Shape) -> None:
        """Create the file, or begin it anew."""
        self._path = path
        self._shape = shape
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._waiting = np.empty((0, shape.width), dtype=np.int64)
        self._fences = [np.empty((0, 2), dtype=np.int64)]
        #: entries written
        self.count = 0

    @property
    def fences(self) -> Ints:
        """First hi and earliest instant of each page."""
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
        data = np.ascontiguousarray(rows).view(np.uint8).reshape(-1).data
        try:
            while data.nbytes:
                data = data[os.write(self._handle, data) :]
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


def merged(older: Iterator[Ints], newer: Iterator[Ints]) -> Iterator[Ints]:
    """Merge blocks of sorted entries; of two entries of a group the newer one stays."""
    sides = [older, newer]
    blocks: list[Ints | None] = [next(older, None), next(newer, None)]
    while blocks[0] is not None and blocks[1] is not None:
        lasts = [_identity(block[-1]) for block in blocks if block is not None]
        shorter = 0 if lasts[0] <= lasts[1] else 1
        longer = 1 - shorter
        whole, cut = blocks[shorter], blocks[longer]
        assert whole is not None
        assert cut is not None
        end = _end(cut, lasts[shorter])
        pair = (whole, cut[:end]) if shorter == 0 else (cut[:end], whole)
        yield _merge(*pair)
        blocks[longer] = cut[end:] if end < len(cut) else next(sides[longer], None)
        blocks[shorter] = next(sides[shorter], None)
    for block, side in zip(blocks, sides, strict=True):
        if block is not None:
            yield block
            yield from side


def _identity(entry: Ints) -> tuple[int, int]:
    hi, lo = entry[:2].view(np.uint64).tolist()
    return hi, lo


def _end(entries: Ints, last: tuple[int, int]) -> int:
    """Return how many entries are at or before an identity."""
    hi = np.ascontiguousarray(entries[:, 0]).view(np.uint64)
    end = int(np.searchsorted(hi, np.uint64(last[0]), side="left"))
    while end < len(entries) and _identity(entries[end]) <= last:
        end += 1
    return end


def _merge(older: Ints, newer: Ints) -> Ints:
    out = np.empty((len(older) + len(newer), older.shape[1]), dtype=np.int64)
    return out[: kernels.merge_entries(older, newer, out)]
