"""Values of keys that wait outside memory: words in one file, written one after the other.

Idea: keys are evicted many at a time, in the order of their turns, and their values are written
together; they are read the same way. Dead values stay until they are half of the file.

Invariants:
1. A value is read as it was written (`test_oracle_cold_keys_are_a_dictionary`).
2. The file has at most twice the live words, and a little
   (`test_bounded_dead_values_are_cleaned_away`).

Cost: a copy when written, one when read, and at most one more for cleaning.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import numpy as np

from icestream.core.arrays import Ints
from icestream.state.arena import Arena
from icestream.state.files import storage_error

#: words that may be dead, however few are live
_LITTLE = 1 << 17
_WORD = 8


class ColdValues:
    """The file of one queue's values."""

    def __init__(self, arena: Arena, name: str) -> None:
        """Attach to the arena's file, or start without one."""
        self._arena = arena
        self._name = f"{name}.values"
        #: number of the file, its words, and the live ones
        self._header: dict[str, Any] = arena.header.setdefault(
            self._name, {"file": 0, "words": 0, "live": 0}
        )

    @property
    def words(self) -> int:
        return int(self._header["words"])

    @property
    def is_half_dead(self) -> bool:
        """Return whether the file should be rewritten."""
        return self.words > 2 * int(self._header["live"]) + _LITTLE

    def add(self, words: Ints) -> int:
        """Write values; return where they begin."""
        first = self.words
        path = self._path(self._header["file"])
        data = np.ascontiguousarray(words).view(np.uint8).data
        try:
            with open(path, "ab", buffering=0) as file:
                os.ftruncate(file.fileno(), first * _WORD)
                while data.nbytes:
                    data = data[file.write(data) :]
        except OSError as error:
            refusal = storage_error(path, error)
            if refusal is None:
                raise
            raise refusal from error
        self._header["words"] += len(words)
        self._header["live"] += len(words)
        return first

    def read(self, begins: Ints, sizes: Ints) -> tuple[Ints, Ints]:
        """Return values, one after the other, and the bounds of each."""
        offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
        np.cumsum(sizes, out=offsets[1:])
        file = self._header["file"]
        return self._gathered(file, self.words, begins - offsets[:-1], sizes), offsets

    def drop(self, words: int) -> None:
        """Record that words are no longer needed."""
        self._header["live"] -= words

    def begin_anew(self) -> None:
        """Switch to a new, empty file."""
        self._header.update(file=self._header["file"] + 1, words=0, live=0)

    def remove_before(self) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._path(self._header["file"] - 1))

    def read_before(self, words: int, begins: Ints, sizes: Ints) -> Ints:
        """Return values of the previous file, which had `words` words."""
        shifts = begins - (np.cumsum(sizes) - sizes)
        return self._gathered(self._header["file"] - 1, words, shifts, sizes)

    def _gathered(self, file: int, words: int, shifts: Ints, sizes: Ints) -> Ints:
        """Return values from a file; `shifts` is how far each moves forward."""
        total = int(sizes.sum())
        if not total:
            return np.empty(0, dtype=np.int64)
        mapped = np.memmap(self._path(file), np.int64, "r", shape=words)
        return np.asarray(mapped[np.repeat(shifts, sizes) + np.arange(total)])

    def _path(self, file: int) -> str:
        return self._arena.path(f"{self._name}-{file}")
