"""Finished segments of the log, mapped into memory so that chains can be followed through them.

Idea: a segment is mapped when a chain first leads into it, and stays mapped until its version ends.
After every call, the pages that were read are released to the operating system: they belong to its
page cache, which the process only reads. Segments that cannot be mapped, or that are compressed,
are read block by block elsewhere.

Invariants:
1. A segment is mapped once per version (`test_a_segment_is_mapped_once`).
2. At most `most` segments are mapped (`test_bounded_few_segments_are_mapped`).

Limits: during a call, the pages around what it reads count as memory of the process, up to the
size of the segments.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from icestream.core.arrays import Ints
from icestream.state.files import release
from icestream.state.log.reader import Log

#: segments mapped at a time
MOST = 256
_NOTHING = np.empty((3, 0), dtype=np.int64)


class MappedSegments:
    """Segments by ordinal that can be mapped."""

    def __init__(self, log: Log, most: int = MOST) -> None:
        self._log = log
        self._most = most
        #: the words of each, None if it cannot be mapped
        self._known: dict[int, Ints | None] = {}
        #: a row of ascending ordinals, one of addresses and one of word counts
        self.table = _NOTHING

    def words(self, ordinal: int) -> Ints | None:
        """Return the words of a segment; None if it cannot be mapped."""
        self.add((ordinal,))
        return self._known.get(ordinal)

    def add(self, ordinals: Iterable[int]) -> bool:
        """Map segments; return whether any is new."""
        before = self.table.shape[1]
        for ordinal in ordinals:
            if ordinal not in self._known and self.table.shape[1] < self._most:
                self._add(ordinal)
        return self.table.shape[1] > before

    def rest(self, ordinals: Iterable[int] | None = None) -> None:
        """Release the pages that were read, of all segments or of some."""
        for ordinal in self._known if ordinals is None else ordinals:
            words = self._known.get(ordinal)
            if words is not None:
                give_back(words)

    def clear(self) -> None:
        """Unmap all segments; they are mapped again when they are needed."""
        self._known.clear()
        self.table = _NOTHING

    def _add(self, ordinal: int) -> None:
        words = self._known[ordinal] = self._log.mapped(ordinal)
        if words is not None:
            at = int(np.searchsorted(self.table[0], ordinal))
            row = [[ordinal], [words.ctypes.data], [len(words)]]
            self.table = np.concatenate((self.table[:, :at], row, self.table[:, at:]), axis=1)


def give_back(words: Ints) -> None:
    """Release the pages of a mapped segment from the process; an access brings them back."""
    view: Any = words.base
    release(view if isinstance(view, memoryview) else memoryview(view))
