"""The directory of tuple blocks: which records of the log hold which stretch of tuples.

Idea: a block is a record of tuples sorted by (time, arrival); the directory keeps its marker, its
number of tuples and its first and last time, in the order the blocks were written. It is the only
thing kept in memory for tuples that wait on the log, 32 bytes for up to 64 KB.

Invariant: blocks come back in the order they were added, whatever was dropped in between
(`test_parity_blocks_beside_a_list`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from icestream.state.arena import Arena

BLOCK = np.dtype(
    [("marker", np.uint64), ("rows", np.int64), ("first", np.int64), ("last", np.int64)]
)
_WORDS = BLOCK.itemsize // 8

Blocks = npt.NDArray[np.void]


class BlockTable:
    """Blocks of one kind, in an arena."""

    def __init__(self, arena: Arena, name: str) -> None:
        """Attach to the arena's array `name`, or make it."""
        self._arena = arena
        self._name = name
        self._array = arena.array(name, np.int64, _WORDS)
        arena.header.setdefault(name, 0)

    def __len__(self) -> int:
        """Return the number of blocks."""
        return int(self._arena.header[self._name])

    @property
    def all(self) -> Blocks:
        """Return every block, in order; not to be kept across a change."""
        flat: npt.NDArray[Any] = self._array.view[: len(self)]
        return flat.reshape(-1).view(BLOCK)

    def append(self, blocks: Blocks) -> None:
        """Take in new blocks; raises `Refused`, with nothing changed, if the budget is full."""
        count = len(self)
        needed = count + len(blocks)
        if needed > self._array.capacity:
            self._array.resize(needed + needed // 4)
        self._array.view[count:needed] = blocks.view(np.int64).reshape(-1, _WORDS)
        self._arena.header[self._name] = needed

    def keep(self, chosen: npt.NDArray[np.bool_]) -> None:
        """Forget all blocks but the chosen ones."""
        kept = self.all[chosen].copy()
        self._array.view[: len(kept)] = kept.view(np.int64).reshape(-1, _WORDS)
        self._arena.header[self._name] = len(kept)
