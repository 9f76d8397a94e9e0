"""The rows of a large group by kind, so that all rows that may cancel each other come together.

Idea: batches of the group are sorted by ranges of the kinds' ids and written to a scratch file, one
run after the other. A part consists of one range of every run. So a group of any size is read once,
written once and read once more.

Invariants:
1. Parts have all rows of the group; those of one kind are in one part, in the order of appending
   (`test_bounded_worn_groups_beyond_memory_are_consolidated`).

Cost: a copy of the group on the local disk, one read for each part and run.

Limits: the rows of one kind must fit into memory.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from tempfile import mkstemp

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ids, Ints
from icestream.state.arena import write_at
from icestream.state.groups.spec import GroupPieces, GroupRows, Kinds
from icestream.state.rows import RowCodec


class KindParts:
    """The rows of one group in a scratch file, in parts; the file lives as long as this object."""

    def __init__(
        self, count: int, codec: RowCodec, folder: str, check: Callable[[int], None]
    ) -> None:
        """Make `count` parts of rows that are added; `check` may refuse the bytes of one."""
        self._count, self._codec, self._check = count, codec, check
        self._file, self._path = mkstemp(dir=folder)
        weakref.finalize(self, os.close, self._file)
        os.unlink(self._path)
        #: where the parts of each run begin and the last one's end: numbers of rows, and bytes
        self._rows: list[Ints] = []
        self._places: list[Ints] = []
        self._end = 0

    def add(self, rows: pa.RecordBatch, kinds: Kinds) -> None:
        """Add a run of rows."""
        part = self._part(kinds(rows))
        order = np.argsort(part, kind="stable")
        first = np.searchsorted(part[order], np.arange(self._count + 1))
        encoded = self._codec.encode(rows.take(pa.array(order)))
        write_at(self._path, self._file, encoded.words.view(np.uint8).data, self._end)
        self._rows.append(first)
        self._places.append(self._end + 8 * encoded.offsets[first])
        self._end += encoded.words.nbytes

    def _part(self, kinds: Ids) -> Ints:
        """Return the part of each kind: the upper half of its id, scaled."""
        half = np.uint64(32)
        return np.asarray((kinds >> half) * np.uint64(self._count) >> half).astype(np.int64)

    def pieces(self) -> GroupPieces:
        """Return the parts, once all rows were added."""
        rows, places = np.array(self._rows), np.array(self._places)
        sizes, counts = np.diff(places), np.diff(rows).sum(axis=0)

        def read(number: int) -> GroupRows:
            size, count = int(sizes[:, number].sum()), int(counts[number])
            self._check(size)
            words: Ints = np.empty(size // 8, dtype=np.int64)
            view, done = words.view(np.uint8).data, 0
            for run in np.flatnonzero(sizes[:, number]).tolist():
                part = view[done : done + int(sizes[run, number])]
                done += os.preadv(self._file, [part], int(places[run, number]))
            return GroupRows(np.zeros(count, dtype=np.int64), self._codec.decode(words, count))

        return GroupPieces(self._count, read, self._part)
