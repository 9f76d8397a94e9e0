"""Rows of keys in a file, found by id, and read and written many at a time in the file's order.

Idea: the file is a row of *regions* of 32 KB, small hash tables (`kernels.queue.cold_rows`). Keys
are looked up, taken and put in the order of their regions; regions that are near each other are
read and written together. It grows by a quarter when its regions fill up. Files are not mapped:
writing to a mapped page costs a fault, which takes some twenty times as long.

Invariants:
1. It behaves like a dictionary of rows (`test_oracle_a_table_is_a_dictionary`).
2. What is due is found without reading other regions
   (`test_oracle_what_is_due_is_found_by_fences`).
3. A window of the file is in memory at a time (`test_bounded_a_table_reads_a_window_at_a_time`).

Cost: a region is read, and written if a row is put or taken, for one or many keys. Rows are copied
four times more, on average, as the file grows. 8 bytes of the arena for each region and due word.

Limits: like everything in an arena it is a cache of the log, and never synced. The operating system
caches the hot part of the file, outside the process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from icestream.core.arrays import Ints, Mask, Table
from icestream.core.times import INFINITY, Micros
from icestream.kernels.queue import cold_rows as kernels
from icestream.state.arena import Arena
from icestream.state.files import WINDOW, storage_error
from icestream.state.identities import identities
from icestream.state.keys import Identity

#: bytes of a region, and its minimum number of places
_REGION_BYTES = 32 << 10
_LEAST_PLACES = 64
#: regions without a key that are read between two with one, rather than asked for apart
_GAP = 2
_WORD = 8
_MIXERS = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)


#: which keys or regions, the first region, its places and those after it, and how to write them
_Window = tuple[slice, int, Table, Callable[[], None]]


class ColdTable:
    """Rows whose first two words are the id of their key."""

    def __init__(
        self,
        arena: Arena,
        name: str,
        blank: Ints,
        words: Sequence[int],
        dues: Sequence[int],
        window: int = WINDOW,
    ) -> None:
        """Attach to the arena's file, or start empty.

        Args:
            arena: owner of the file.
            name: prefix of its name.
            blank: a row, which says what the words are that the file does not have.
            words: the words of a row that the file has, first those of the id.
            dues: the words among them that `take_due` compares.
            window: bytes of the file that are in memory at once.
        """
        self._arena = arena
        self._name = name
        self._blank = blank
        self._words = np.array(words, dtype=np.int64)
        self._others = np.setdiff1d(np.arange(len(blank)), self._words)
        self._dues = np.array(dues, dtype=np.int64)
        self._row_words = 1 + len(words)
        least = _WORD * self._row_words * _LEAST_PLACES
        #: places of a region, and how many of them may be taken on average
        self._places = max(_REGION_BYTES, least) // (_WORD * self._row_words)
        self._full = int(self._places - 3 * self._places**0.5)
        self._region_bytes = _WORD * self._row_words * self._places
        #: regions in memory at once
        self._at_once = max(1, window // self._region_bytes)
        self._fences = arena.array(f"{name}.fences", np.int64, len(dues))
        #: number of the file, 0 for none; its regions, and its rows
        self._header: dict[str, Any] = arena.header.setdefault(
            f"{name}.table", {"file": 0, "regions": 0, "rows": 0}
        )

    def __len__(self) -> int:
        return int(self._header["rows"])

    def blank(self, count: int) -> Ints:
        """Return rows without contents."""
        return np.tile(self._blank, (count, 1))

    def fences(self, due: int) -> Ints:
        """Return for each region a number that the due words of its rows are not below."""
        return self._all_fences()[:, due]

    # -- keys ------------------------------------------------------------------------------

    def fetch(self, id_high: Identity, id_low: Identity) -> tuple[Mask, Ints]:
        """Return which of some keys have rows, and the rows."""
        return self._visit(id_high, id_low, taking=False)

    def take(self, id_high: Identity, id_low: Identity) -> tuple[Mask, Ints]:
        """Return which of some distinct keys have rows, and remove and return the rows."""
        found, rows = self._visit(id_high, id_low, taking=True)
        self._header["rows"] -= len(rows)
        return found, rows

    def put(self, rows: Ints) -> None:
        """Add rows of distinct keys, or replace those that are here."""
        if len(rows):
            self._make_room(len(self) + len(rows))
            self._put(*_by_mark(rows))

    def change(self, marks: Ints, rows: Ints, change: Callable[[slice, Mask], Mask]) -> None:
        """Read and write the rows of distinct keys in one pass, some at a time.

        Args:
            marks: those of the keys, ascending.
            rows: what the keys are if they are not here; gets the rows that are here.
            change: is called with a part of the keys and which of them are here, may change the
                rows of that part, and returns which of them to put.
        """
        if not len(self):
            self._make_room(1)
        chosen = np.zeros(len(rows), dtype=np.bool_)
        for some, first, table, write in self._visited(marks):
            found = np.zeros(some.stop - some.start, dtype=np.bool_)
            regions = self._regions(marks[some]) - first
            kernels.visit_rows(
                table, self._places, regions, marks[some], self._words, rows[some], found, False
            )
            chosen[some] = change(some, found)
            self._put_here(table, first, regions, marks[some], rows[some], chosen[some])
            write()
        self._put(marks[chosen], rows[chosen])
        self._make_room(len(self))

    def scan(self) -> Iterator[Ints]:
        """Yield all rows, a batch at a time.

        Rows that were yielded may be taken or replaced meanwhile; none may be added.
        """
        return self._collected(-1, INFINITY, self._header["file"], self._header["regions"])

    def take_due(self, due: int, before: Micros) -> Iterator[Ints]:
        """Remove and yield rows whose due word is before a time or a turn, a batch at a time."""
        file, regions = self._header["file"], self._header["regions"]
        for rows in self._collected(due, before, file, regions):
            self._header["rows"] -= len(rows)
            yield rows

    def due_words(self, due: int, before: Micros) -> Ints:
        """Return the due words of rows before a time or a turn."""
        wanted = np.flatnonzero(self.fences(due) < before)
        column = 1 + int(np.flatnonzero(self._words == self._dues[due])[0])
        found = [np.empty(0, dtype=np.int64)]
        for _, _, table, _ in self._windows(wanted, self._header["file"]):
            words = table[:, column]
            found.append(words[(words < before) & (table[:, 0] != 0)])
        return np.concatenate(found)

    def change_due(self, due: int, before: Micros, change: Callable[[Ints], None]) -> None:
        """Let `change` change rows whose due word is before a time or a turn, where they are."""
        wanted = np.flatnonzero(self.fences(due) < before)
        for some, first, table, write in self._windows(wanted, self._header["file"]):
            rows = self._collect(due, before, wanted[some], first, table)
            change(rows)
            marks = marks_of(*identities(rows))
            chosen = np.ones(len(rows), dtype=np.bool_)
            self._header["rows"] -= len(rows)
            self._put_here(table, first, self._regions(marks) - first, marks, rows, chosen)
            write()

    # -- internals -------------------------------------------------------------------------

    def _visit(self, id_high: Identity, id_low: Identity, *, taking: bool) -> tuple[Mask, Ints]:
        found = np.zeros(len(id_high), dtype=np.bool_)
        if not len(self) or not len(id_high):
            return found, self.blank(0)
        marks = marks_of(id_high, id_low)
        order = np.argsort(marks)
        marks, rows = marks[order], self.blank(len(marks))
        rows[:, 0], rows[:, 1] = id_high.view(np.int64)[order], id_low.view(np.int64)[order]
        there = np.zeros(len(marks), dtype=np.bool_)
        for some, first, table, write in self._visited(marks):
            regions = self._regions(marks[some]) - first
            kernels.visit_rows(
                table,
                self._places,
                regions,
                marks[some],
                self._words,
                rows[some],
                there[some],
                taking,
            )
            if taking:
                write()
        found[order] = there
        back = np.empty(len(order), dtype=np.int64)
        back[order] = np.arange(len(order))
        return found, rows[back[found]]

    def _put(self, marks: Ints, rows: Ints) -> None:
        """Put rows in the order of their marks; if a region is full, grow and go on."""
        chosen = np.ones(len(rows), dtype=np.bool_)
        while len(marks):
            for some, first, table, write in self._visited(marks):
                regions = self._regions(marks[some]) - first
                self._put_here(table, first, regions, marks[some], rows[some], chosen[some])
                write()
            if not chosen.any():
                return
            marks, rows, chosen = marks[chosen], rows[chosen], chosen[chosen]
            self._grow(self._header["regions"] + 1)

    def _put_here(
        self, table: Table, first: int, regions: Ints, marks: Ints, rows: Ints, chosen: Mask
    ) -> None:
        fences = self._all_fences()[first:]
        self._header["rows"] += kernels.put_rows(
            table, self._places, regions, marks, self._words, rows, chosen, self._dues, fences
        )

    def _collected(self, due: int, before: Micros, file: int, regions: int) -> Iterator[Ints]:
        wanted = np.arange(regions) if due < 0 else np.flatnonzero(self.fences(due) < before)
        for some, first, table, write in self._windows(wanted, file):
            rows = self._collect(due, before, wanted[some], first, table)
            if due >= 0:
                write()
            if len(rows):
                yield rows

    def _collect(self, due: int, before: Micros, regions: Ints, first: int, table: Table) -> Ints:
        """Take the rows that are due out of some regions of a window, or copy all."""
        fences = self._all_fences()[first : int(regions[-1]) + 1]
        out = np.empty((len(table), len(self._blank)), dtype=np.int64)
        found = kernels.collect_rows(
            table, self._places, self._words, self._dues, due, before, fences, out
        )
        out[:found, self._others] = self._blank[self._others]
        return out[:found]

    def _regions(self, marks: Ints) -> Ints:
        return (marks >> kernels.PLACE_BITS) * int(self._header["regions"]) >> 32

    def _visited(self, marks: Ints) -> Iterator[_Window]:
        return self._windows(self._regions(marks), self._header["file"])

    def _windows(self, regions: Ints, file: int) -> Iterator[_Window]:
        """Yield which of ascending regions are read together."""
        if not len(regions):
            return
        windows = regions // self._at_once
        apart = (np.diff(windows) > 0) | (np.diff(regions) > 1 + _GAP)
        cuts = [0, *(np.flatnonzero(apart) + 1).tolist(), len(regions)]
        size = self._region_bytes
        buffer = np.empty(min(self._at_once, int(regions[-1]) + 1) * size, dtype=np.uint8)
        with self._opened(file) as handle:
            for begin, end in pairwise(cuts):
                first, last = int(regions[begin]), int(regions[end - 1]) + 1
                part = buffer[: (last - first) * size]
                _moved(os.preadv, handle, part, first * size)
                table = part.view(np.int64).reshape(-1, self._row_words)
                write = partial(_moved, os.pwritev, handle, part, first * size)
                yield slice(begin, end), first, table, write

    def _all_fences(self) -> Table:
        fences: Table = self._fences.view.reshape(-1, len(self._dues))
        return fences[: int(self._header["regions"])]

    def _make_room(self, rows: int) -> None:
        """Have enough regions for `rows` rows."""
        regions = -(-rows // self._full)
        if regions > self._header["regions"]:
            self._grow(regions)

    def _grow(self, regions: int) -> None:
        """Move to a file with a quarter more regions, at least so many."""
        file, before = int(self._header["file"]), int(self._header["regions"])
        regions = max(regions, before * 5 // 4)
        if self._fences.capacity < regions:
            self._fences.resize(regions)
        self._allocate(file + 1, regions)
        self._header.update(file=file + 1, regions=regions, rows=0)
        self._all_fences()[:] = INFINITY
        for rows in self._collected(-1, INFINITY, file, before):
            self._put(*_by_mark(rows))
        self._remove(file)

    def _allocate(self, file: int, regions: int) -> None:
        path = self._path(file)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.posix_fallocate(handle, 0, regions * self._region_bytes)
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

    def _path(self, file: int) -> str:
        return self._arena.path(f"{self._name}-{file}")


def marks_of(id_high: Identity, id_low: Identity) -> Ints:
    """Return the marks of keys in a cold table: hashes of ids that are positive."""
    mixed = (id_high ^ (id_low << _HALF | id_low >> _HALF)) * _MIXERS[0]
    mixed = (mixed ^ (mixed >> _HALF)) * _MIXERS[1]
    return (mixed >> np.uint64(1) | np.uint64(1)).view(np.int64)


def _by_mark(rows: Ints) -> tuple[Ints, Ints]:
    """Return the marks of rows, ascending, and the rows in their order."""
    marks = marks_of(*identities(rows))
    order = np.argsort(marks)
    return marks[order], rows[order]


def _moved(move: Callable[..., int], handle: int, part: Any, offset: int) -> None:
    """Read or write all of a part of a file."""
    done = 0
    while done < len(part):
        done += move(handle, [part[done:]], offset + done)
