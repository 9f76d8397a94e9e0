"""Rows of keys in a file, found by id: one page is read per key.

Idea: a file of small pages, doubled whenever it is three quarters full. Hashed bits of an id give
    the
page that a key is on, or after. Keys are put, looked up and taken many at a time, in the order of
their pages, through a mapped window that moves through the file.

Invariants:
1. It behaves like a dictionary of rows (`test_oracle_a_table_is_a_dictionary`).
2. A row that is overwritten or taken during `scan` is seen once (the same test).
3. Few pages are in memory at a time, whatever the size of the file
   (`test_bounded_a_table_maps_a_window_at_a_time`).

Cost: a page is read, and written if a row is put or taken, for each key; rows are copied once more,
on average, as the file grows. 8 bytes of the arena for each page if keys may be due.

Limits: like everything in an arena it is a cache of the log, and never synced. The operating system
caches the hot part of the file, outside the process.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Any

import numpy as np

from icestream.core.arrays import Ints, Mask
from icestream.core.times import INFINITY, MINUS_INFINITY, Micros
from icestream.kernels.queue import cold_pages as kernels
from icestream.state.arena import Arena
from icestream.state.files import WINDOW, storage_error
from icestream.state.identities import identities
from icestream.state.keys import Identity

#: bytes of a page, and its minimum number of rows
_PAGE_BYTES = 4096
_LEAST_ROWS = 4
#: fill factor at which the number of places is doubled
_FULL = 3 / 4
#: pages after the last home page, for keys that overflow from full ones
_TAIL = 16
_WORD = 8
_MIXERS = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)


class ColdTable:
    """Rows whose first two words are the id of their key."""

    def __init__(self, arena: Arena, name: str, width: int, due: int | None = None) -> None:
        """Attach to the arena's file, or start empty.

        Args:
            arena: owner of the file.
            name: prefix of its name.
            width: words of a row.
            due: word of a row that `due` compares.
        """
        self._arena = arena
        self._name = name
        self._width = width
        least = _WORD * (kernels.HEAD + _LEAST_ROWS * (1 + width))
        self._page_bytes = max(_PAGE_BYTES, 1 << (least - 1).bit_length())
        self._page_words = self._page_bytes // _WORD
        #: rows of a page
        self._room = (self._page_words - kernels.HEAD) // (1 + width)
        self._due = due
        self._fences = arena.array(f"{name}.fences", np.int64)
        #: number of the file, 0 for none; binary logarithm of its pages, and its rows
        self._header: dict[str, Any] = arena.header.setdefault(
            f"{name}.table", {"file": 0, "bits": 1, "rows": 0}
        )

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self._header["rows"])

    # -- keys ------------------------------------------------------------------------------

    def fetch(self, id_high: Identity, id_low: Identity) -> tuple[Mask, Ints]:
        """Return which of some keys have rows, and the rows."""
        return self._visit(id_high, id_low, kernels.LOOK)

    def take(self, id_high: Identity, id_low: Identity) -> tuple[Mask, Ints]:
        """Return which of some distinct keys have rows, and remove and return the rows."""
        found, rows = self._visit(id_high, id_low, kernels.TAKE)
        self._header["rows"] -= len(rows)
        return found, rows

    def over(self, rows: Ints) -> None:
        """Overwrite the rows of keys that are here."""
        if not len(rows):
            return
        order, tags, homes = self._places(*identities(rows))
        rows = rows[order]
        found = np.empty(len(rows), dtype=np.bool_)
        for some, first, pages in self._windows(homes):
            kernels.visit_rows(
                pages,
                self._room,
                homes[some] - first,
                tags[some],
                rows[some],
                found[some],
                kernels.OVER,
            )

    def put(self, rows: Ints) -> None:
        """Add rows of distinct keys that are not here."""
        if not len(rows):
            return
        self._make_room(len(self) + len(rows))
        self._put(rows)
        self._header["rows"] += len(rows)

    def scan(self) -> Iterator[Ints]:
        """Yield all rows, a batch at a time.

        Rows that were yielded may be taken or overwritten meanwhile; none may be put.
        """
        return self._all_rows(self._header["file"], self._header["bits"])

    def due(self, before: Micros) -> Iterator[Ints]:
        """Yield rows that are due before a time, a batch at a time; the caller must take them."""
        assert self._due is not None
        file, bits = self._header["file"], self._header["bits"]
        return self._collect(file, bits, self._due, before, self._fences.view)

    # -- internals -------------------------------------------------------------------------

    def _visit(self, id_high: Identity, id_low: Identity, mode: int) -> tuple[Mask, Ints]:
        found = np.zeros(len(id_high), dtype=np.bool_)
        if not len(self) or not len(id_high):
            return found, np.empty((0, self._width), dtype=np.int64)
        order, tags, homes = self._places(id_high, id_low)
        rows = np.empty((len(id_high), self._width), dtype=np.int64)
        rows[:, 0], rows[:, 1] = id_high.view(np.int64)[order], id_low.view(np.int64)[order]
        there = np.zeros(len(id_high), dtype=np.bool_)
        for some, first, pages in self._windows(homes):
            kernels.visit_rows(
                pages, self._room, homes[some] - first, tags[some], rows[some], there[some], mode
            )
        found[order] = there
        back = np.empty(len(order), dtype=np.int64)
        back[order] = np.arange(len(order))
        return found, rows[back[found]]

    def _put(self, rows: Ints) -> None:
        """Put rows for which there is room; if the last pages are full, grow first."""
        while len(rows):
            order, tags, homes = self._places(*identities(rows))
            rows = rows[order]
            left = len(rows)
            for some, first, pages in self._windows(homes):
                fences = self._fences_of(first, len(pages))
                due = 0 if self._due is None else self._due
                done = kernels.put_rows(
                    pages, self._room, homes[some] - first, tags[some], rows[some], due, fences
                )
                left -= done
                if done < some.stop - some.start:
                    rows = rows[some.start + done :]
                    break
            if not left:
                return
            self._grow(int(self._header["bits"]) + 1)

    def _all_rows(self, file: int, bits: int) -> Iterator[Ints]:
        fences = np.full((1 << bits) + _TAIL, MINUS_INFINITY, dtype=np.int64)
        return self._collect(file, bits, -1, INFINITY, fences)

    def _collect(
        self, file: int, bits: int, due: int, before: Micros, fences: Ints
    ) -> Iterator[Ints]:
        if not file:
            return
        per, pages = self._at_once, (1 << bits) + _TAIL
        out = np.empty((per * self._room, self._width), dtype=np.int64)
        with self._opened(file) as handle:
            for first in range(0, pages, per):
                last = min(first + per, pages)
                mine = fences[first:last]
                if (mine >= before).all():
                    continue
                window = self._map(handle, first, last)
                count = kernels.collect_rows(window, self._room, due, before, mine, out)
                del window
                if count:
                    yield out[:count].copy()

    def _places(self, id_high: Identity, id_low: Identity) -> tuple[Ints, Ints, Ints]:
        """Return the order of keys by home page, and their tags and homes in that order."""
        mixed = (id_high ^ (id_low << _HALF | id_low >> _HALF)) * _MIXERS[0]
        mixed = (mixed ^ (mixed >> _HALF)) * _MIXERS[1]
        # one bit less, so that tags are positive and sort as they are
        tags = (mixed >> np.uint64(1)).view(np.int64)
        order = np.argsort(tags)
        tags = tags[order]
        return order, tags, tags >> (63 - int(self._header["bits"]))

    def _windows(self, homes: Ints) -> Iterator[tuple[slice, int, Ints]]:
        """Yield which of ascending homes are in a window, its first page, and its pages."""
        per, pages = self._at_once, 1 << int(self._header["bits"])
        windows = homes // per
        cuts = [0, *(np.flatnonzero(np.diff(windows)) + 1).tolist(), len(homes)]
        with self._opened(self._header["file"]) as handle:
            for begin, end in pairwise(cuts):
                first = int(windows[begin]) * per
                last = min(first + per, pages) + _TAIL
                yield slice(begin, end), first, self._map(handle, first, last)

    @property
    def _at_once(self) -> int:
        """Pages of a window."""
        return max(1, WINDOW // self._page_bytes)

    def _fences_of(self, first: int, count: int) -> Ints:
        fences: Ints = np.zeros(count, dtype=np.int64)
        return fences if self._due is None else self._fences.view[first : first + count]

    def _make_room(self, rows: int) -> None:
        """Have enough pages for `rows` rows."""
        bits = int(self._header["bits"])
        while rows > _FULL * self._room * (1 << bits):
            bits += 1
        if not self._header["file"] or bits > self._header["bits"]:
            self._grow(bits)

    def _grow(self, bits: int) -> None:
        """Move to a file with more pages."""
        file, before = int(self._header["file"]), int(self._header["bits"])
        if self._due is not None:
            wanted = (1 << bits) + _TAIL
            if self._fences.capacity < wanted:
                self._fences.resize(wanted)
        self._allocate(file + 1, bits)
        if self._due is not None:
            self._fences.view[:] = INFINITY
        self._header.update(file=file + 1, bits=bits)
        for rows in self._all_rows(file, before):
            self._put(rows)
        self._remove(file)

    def _allocate(self, file: int, bits: int) -> None:
        path = self._path(file)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.posix_fallocate(handle, 0, ((1 << bits) + _TAIL) * self._page_bytes)
        except OSError as error:
            self._remove(file)
            refusal = storage_error(path, error)
            if refusal is None:
                raise
            raise refusal from error
        finally:
            os.close(handle)

    def _remove(self, file: int) -> None:
        if file:
            with suppress(FileNotFoundError):
                os.unlink(self._path(file))

    @contextmanager
    def _opened(self, file: int) -> Iterator[int]:
        handle = os.open(self._path(file), os.O_RDWR)
        try:
            yield handle
        finally:
            os.close(handle)

    def _map(self, handle: int, first: int, last: int) -> Ints:
        size = self._page_bytes
        window = mmap.mmap(handle, (last - first) * size, offset=first * size)
        return np.frombuffer(window, dtype=np.int64).reshape(-1, self._page_words)

    def _path(self, file: int) -> str:
        return self._arena.path(f"{self._name}-{file}")
