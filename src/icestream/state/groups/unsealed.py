"""Records of segments that are not sealed yet, so that they can be read before that.

Idea: a group evicted in the middle of a batch may be requested in the same batch, but its segment
is readable only once it is sealed. Its record is therefore stored in a plain file of the arena too,
until the segment of the next version begins. The file is never synced, and usually truncated before
the kernel would write it back.

Invariants:
1. A stored record is read back until another segment of its class begins
   (`test_unsealed_records_are_read_back`).

Cost: one more copy of what is evicted inside a batch; none for what a version's end writes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np

from icestream.core.arrays import Ints, Mask
from icestream.state.arena import Arena
from icestream.state.log.format import ordinal_of
from icestream.state.log.reader import RecordRange


class UnsealedRecords:
    """Records of open segments, by marker."""

    def __init__(self, arena: Arena, name: str) -> None:
        self._arena = arena
        self._name = f"{name}.tail"
        #: marker, place in the file and words of records, in the order of markers, by ordinal
        self._places: dict[int, list[tuple[int, int, int]]] = {}
        self._size = 0

    def keep(self, marker: int, record: Ints) -> None:
        """Store a record that was just appended."""
        with self._file(os.O_WRONLY | os.O_CREAT | (0 if self._size else os.O_TRUNC)) as handle:
            os.pwrite(handle, record.view(np.uint8).data, self._size)
        places = self._places.setdefault(ordinal_of(marker), [])
        places.append((marker, self._size, len(record)))
        self._size += record.nbytes

    def begin(self, ordinals: set[int]) -> None:
        """Drop records of segments that are no longer being written."""
        if not set(self._places) <= ordinals:
            self._places = {n: kept for n, kept in self._places.items() if n in ordinals}
        if not self._places and self._size:
            self._size = 0
            with suppress(FileNotFoundError):
                os.unlink(self._arena.path(self._name))

    @property
    def ordinals(self) -> set[int]:
        return set(self._places)

    def holds(self, markers: Ints) -> Mask:
        """Return which words of one segment are here."""
        places = self._places.get(ordinal_of(int(markers[0])))
        if places is None:
            return np.zeros(len(markers), dtype=np.bool_)
        kept = np.array(places)
        at = np.searchsorted(kept[:, 0], markers, side="right") - 1
        return np.asarray((at >= 0) & (markers < kept[at, 0] + kept[at, 2]))

    def stretches(self, markers: Ints) -> Iterator[RecordRange]:
        """Yield the records that ascending markers of one segment point into; all must be here."""
        places = self._places[ordinal_of(int(markers[0]))]
        starts = np.array([place[0] for place in places])
        at = np.searchsorted(starts, markers, side="right") - 1
        with self._file(os.O_RDONLY) as handle:
            for part in np.split(at, np.flatnonzero(np.diff(at)) + 1):
                marker, place, words = places[int(part[0])]
                data = os.pread(handle, 8 * words, place)
                yield RecordRange(marker, np.frombuffer(data, dtype=np.int64), len(part))

    @contextmanager
    def _file(self, flags: int) -> Iterator[int]:
        handle = os.open(self._arena.path(self._name), flags, 0o600)
        try:
            yield handle
        finally:
            os.close(handle)
