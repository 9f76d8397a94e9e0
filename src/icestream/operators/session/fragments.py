"""The fragments of a batch: runs in memory and on the local disk, read range by range.

Idea: fragments that fit into memory are one sorted run there; the others are written to a file of
the arena, run by run. A pass over the open sessions reads all of them in the order of `id_high`. It
holds about two pieces of every run in memory; each portion ends where the shortest two pieces end.

Invariant: a pass returns every fragment once, sorted, those of a group together
(`test_oracle_fragments_of_many_runs_equal_one`).

Cost: each fragment that does not fit is written and read once, on the local disk. Memory: the run
in memory, and up to three pieces of every other run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from icestream.core.arrays import Ids, Mask
from icestream.operators.session.page_file import PAGE, Directory, PageFile, PageWriter
from icestream.operators.session.rows import Sessions, united
from icestream.operators.session.spec import SessionSpec

#: the greatest id_high
LAST_ID_HIGH = np.uint64(2**64 - 1)
#: maximum number of runs on disk
MOST_RUNS = 32


class Fragments:
    """Fragments to be merged with the open sessions."""

    def __init__(self, spec: SessionSpec, path: str, piece_bytes: int) -> None:
        """Start empty; runs go to the file `path`, in pieces of about `piece_bytes`."""
        self._spec = spec
        self._path = path
        self._piece_bytes = piece_bytes
        self._runs: list[Directory] = []
        self._size = 0
        #: the run in memory
        self.newest = Sessions.none(spec)

    @property
    def full(self) -> bool:
        """Return whether there are as many runs as can be merged at once."""
        return len(self._runs) >= MOST_RUNS

    def spill(self, run: Sessions) -> None:
        """Write a sorted run to the disk."""
        with PageFile(self._path, self._spec) as file:
            cutter = PageWriter(file, self._size, self._piece_bytes)
            cutter.add(run)
            cutter.finish()
        self._runs.append(cutter.directory)
        self._size = cutter.place

    def clear(self) -> None:
        if self._runs:
            os.unlink(self._path)
        self._runs, self._size = [], 0
        self.newest = Sessions.none(self._spec)

    def touched(self, lows: Ids) -> Mask:
        """Return which ranges of id_high, each up to the next one's low, may have fragments."""
        if self._runs:
            return np.ones(len(lows), dtype=np.bool_)
        bounds = np.append(np.searchsorted(self.newest.id_high, lows), len(self.newest))
        return np.diff(bounds) > 0

    @contextmanager
    def ahead(self) -> Iterator[FragmentCursor]:
        """Open a cursor over all fragments in the order of id_high."""
        if not self._runs:
            yield FragmentCursor(self._spec, [_Cursor(self.newest)])
            return
        with PageFile(self._path, self._spec) as file:
            none = Sessions.none(self._spec)
            spilled = [_Cursor(none, file, pieces) for pieces in self._runs]
            yield FragmentCursor(self._spec, [*spilled, _Cursor(self.newest)])


class FragmentCursor:
    """Fragments in the order of id_high, merged on demand."""

    def __init__(self, spec: SessionSpec, cursors: list[_Cursor]) -> None:
        self._spec = spec
        self._none = Sessions.none(spec)
        self._cursors = cursors

    def up_to(self, last: np.uint64) -> Iterator[tuple[np.uint64, Sessions]]:
        """Yield fragments with id_high up to `last`, in portions, each with its last id_high."""
        reached = None
        while reached != last:
            reached = min([last, *(cursor.reach for cursor in self._cursors)])
            found = [cursor.take(reached) for cursor in self._cursors]
            found = [part for part in found if len(part)]
            yield reached, united(found, self._spec) if found else self._none


class _Cursor:
    """A position in one run: its part in memory, and the pieces that are not."""

    def __init__(
        self, rest: Sessions, file: PageFile | None = None, pieces: Directory | None = None
    ) -> None:
        self._rest = rest
        self._file = file
        self._pieces = np.empty(0, dtype=PAGE) if pieces is None else pieces

    @property
    def reach(self) -> np.uint64:
        """Return the id_high up to which the next two pieces reach."""
        if len(self._pieces) <= 2:
            return LAST_ID_HIGH
        low: np.uint64 = self._pieces["low"][2]
        return low - np.uint64(1)

    def take(self, last: np.uint64) -> Sessions:
        """Return the fragments with id_high up to `last`, and move past them."""
        needed = int(np.searchsorted(self._pieces["low"], last, side="right"))
        if needed and self._file is not None:
            loaded = map(self._file.read, self._pieces[:needed])
            self._rest = Sessions.concatenated([self._rest, *loaded])
            self._pieces = self._pieces[needed:]
        taken, self._rest = self._rest.split_after(last)
        return taken
