"""How tuples are stored in a block: a header of 16 bytes, then one column after the other.

Idea: a block has a fixed number of bytes and stores a fixed number of fixed-width tuples (the block
factor). Its columns are contiguous, so a loop over one of them reads nothing else. The header holds
the block's number and a checksum of the rest, seeded by that number: a block read from the wrong
place, or changed on disk, raises `DamageError` and is never taken for data.

    number u64 | xxh3 of what follows u64 | column 0 | column 1 | ... | unused

Invariants:
1. A changed byte or a block with another number is damage (`test_a_changed_block_is_damage`,
   `test_a_block_of_another_number_is_damage`).
2. Frames are aligned to pages, as direct I (`test_frames_are_aligned_to_pages`).

Limits: blocks are multiples of 4096 bytes; the first column is the time (int64).
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from icestream.core.errors import DamageError, DefinitionError

#: bytes of a block by default
BLOCK_BYTES = 64 << 10
HEADER_BYTES = 16
PAGE = 4096


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """The columns of a tuple and the size of a block."""

    #: names and numpy types; the first is the time, widest columns first
    columns: tuple[tuple[str, str], ...]
    block_bytes: int = BLOCK_BYTES
    #: tuples in a block; 0 means as many as fit
    factor: int = 0

    def __post_init__(self) -> None:
        """Check sizes and fix the block factor."""
        widths = [np.dtype(kind).itemsize for _, kind in self.columns]
        if not widths or np.dtype(self.columns[0][1]) != np.int64:
            msg = f"the first column of a block must be the time, an int64; got {self.columns}"
            raise DefinitionError(msg)
        if widths != sorted(widths, reverse=True):
            msg = f"wider columns must come before narrower ones, for alignment: {self.columns}"
            raise DefinitionError(msg)
        if self.block_bytes <= 0 or self.block_bytes % PAGE:
            msg = f"the block size must be a multiple of {PAGE} bytes; got {self.block_bytes}"
            raise DefinitionError(msg)
        fitting = (self.block_bytes - HEADER_BYTES) // sum(widths)
        if not 0 <= self.factor <= fitting:
            msg = f"a block of {self.block_bytes} bytes fits {fitting} tuples, not {self.factor}"
            raise DefinitionError(msg)
        object.__setattr__(self, "factor", self.factor or fitting)

    @property
    def tuple_bytes(self) -> int:
        """Bytes of a tuple."""
        return sum(np.dtype(kind).itemsize for _, kind in self.columns)


class Frames:
    """Memory for a number of blocks, and the columns over it."""

    def __init__(self, layout: BlockLayout, count: int) -> None:
        """Map memory for `count` blocks."""
        self.layout = layout
        self.count = count
        self._memory = mmap.mmap(-1, count * layout.block_bytes)
        self._words = np.frombuffer(self._memory, np.uint64).reshape(count, -1)
        self._blocks = [
            memoryview(self._memory)[i * layout.block_bytes : (i + 1) * layout.block_bytes]
            for i in range(count)
        ]
        #: one array `[frame, row]` per column
        self.columns: tuple[npt.NDArray[Any], ...] = tuple(self._columns())

    @property
    def bytes(self) -> int:
        """Bytes of all frames."""
        return self.count * self.layout.block_bytes

    def block(self, frame: int) -> memoryview:
        """Return the bytes of a frame."""
        return self._blocks[frame]

    def seal(self, frame: int, number: int) -> memoryview:
        """Write the header of a block and return its bytes, ready to be written."""
        block = self._blocks[frame]
        words = self._words[frame]
        words[0] = number
        words[1] = xxhash.xxh3_64_intdigest(block[HEADER_BYTES:], number)
        return block

    def check(self, frame: int, number: int, path: str) -> None:
        """Raise `DamageError` unless a frame holds the block with this number, unchanged."""
        words = self._words[frame]
        digest = xxhash.xxh3_64_intdigest(self._blocks[frame][HEADER_BYTES:], number)
        if int(words[0]) != number or int(words[1]) != digest:
            raise DamageError(path, f"window block {number} differs from what was written")

    def _columns(self) -> list[npt.NDArray[Any]]:
        found, place = [], HEADER_BYTES
        for _, kind in self.layout.columns:
            width = np.dtype(kind).itemsize
            found.append(
                np.ndarray(
                    (self.count, self.layout.factor),
                    kind,
                    self._memory,
                    place,
                    (self.layout.block_bytes, width),
                )
            )
            place += width * self.layout.factor
        return found
