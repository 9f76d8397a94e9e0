"""Variable-length bytes by cell: a heap that is filled at its end and compacted in place.

Idea: a *cell* is a place that may hold bytes; `starts[cell]` is where its entry begins in the heap,
0 for none. The heap is an array of 32-bit words; an entry is `[cell][length][bytes, padded to whole
words]`. Because an entry contains its cell, the heap can be traversed from front to back: an entry
whose cell points elsewhere is garbage, and compaction needs neither a sort nor a copy.

Invariants:
    1. Gather returns what scatter wrote, whatever was scattered, freed and compacted in between
       (`test_oracle_a_heap_is_a_dictionary`).
    2. tail == 1 + live words + garbage words (same test).
    3. Compaction writes only below the place it reads (`test_compaction_slides_entries_down`).

Cost: 12 bytes per non-empty value plus its own bytes; one pass for every kernel.

Limits: 2**32 cells; 2**32 words (16 GB) of heap. Empty values are not stored: the caller must
distinguish empty from null.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from icestream.kernels.compile import kernel
from icestream.kernels.hashing import VALUE

ByteArray = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint32]
Cells = npt.NDArray[np.int64]

#: word 0 of a heap is never used, so that a start of 0 can mean "no entry"
FIRST = 1
#: words of an entry before its bytes
HEAD = 2


@kernel
def entry_words(length: int | np.int64) -> int:
    """Return the words that `length` variable-length bytes take; empty values have none."""
    return int(HEAD + (length + 3) // 4) if length > 0 else 0


@kernel
def words_needed(offsets: npt.NDArray[Any], mask: ByteArray) -> int:
    """Return the words that scattering the bytes of these rows appends to the heap."""
    words = 0
    for i in range(offsets.size - 1):
        if mask.size == 0 or mask[i] == VALUE:
            words += entry_words(np.int64(offsets[i + 1]) - np.int64(offsets[i]))
    return words


@kernel
def scatter_bytes(
    cells: Cells,
    offsets: npt.NDArray[Any],
    data: ByteArray,
    mask: ByteArray,
    starts: Words,
    heap: Words,
    tail: int,
) -> tuple[int, int]:
    """Store the bytes of each row in its cell; return the new tail and the new garbage words.

    Rows that are not values leave their cell empty. A cell that occurs twice keeps the later row.
    """
    raw = heap.view(np.uint8)
    garbage = 0
    for i in range(cells.size):
        cell = cells[i]
        old = np.int64(starts[cell])
        if old != 0:
            garbage += entry_words(np.int64(heap[old + 1]))
            starts[cell] = 0
        if mask.size != 0 and mask[i] != VALUE:
            continue
        begin = np.int64(offsets[i])
        length = np.int64(offsets[i + 1]) - begin
        if length == 0:
            continue
        starts[cell] = tail
        heap[tail] = cell
        heap[tail + 1] = length
        after = tail + entry_words(length)
        heap[after - 1] = 0
        place = (tail + HEAD) * 4
        for j in range(length):
            raw[place + j] = data[begin + j]
        tail = after
    return tail, garbage


@kernel
def free_bytes(cells: Cells, starts: Words, heap: Words) -> int:
    """Empty the cells of variable-length bytes; return the words that became garbage."""
    garbage = 0
    for i in range(cells.size):
        start = np.int64(starts[cells[i]])
        if start != 0:
            garbage += entry_words(np.int64(heap[start + 1]))
            starts[cells[i]] = 0
    return garbage


@kernel
def measure_bytes(cells: Cells, starts: Words, heap: Words, offsets: Cells) -> None:
    """Fill `offsets`, one more than cells, with the position of each cell's bytes in a gather."""
    total = np.int64(0)
    offsets[0] = 0
    for i in range(cells.size):
        start = np.int64(starts[cells[i]])
        if start != 0:
            total += np.int64(heap[start + 1])
        offsets[i + 1] = total


@kernel
def gather_bytes(cells: Cells, starts: Words, heap: Words, offsets: Cells, out: ByteArray) -> None:
    """Copy the bytes of each cell to the position that `measure_bytes` gave it."""
    raw = heap.view(np.uint8)
    for i in range(cells.size):
        place = (np.int64(starts[cells[i]]) + HEAD) * 4
        begin = offsets[i]
        for j in range(offsets[i + 1] - begin):
            out[begin + j] = raw[place + j]


@kernel
def compact_bytes(starts: Words, heap: Words, tail: int) -> int:
    """Slide live bytes in the heap down over garbage, in place; return the new tail."""
    write = FIRST
    read = FIRST
    while read < tail:
        words = entry_words(np.int64(heap[read + 1]))
        cell = np.int64(heap[read])
        if np.int64(starts[cell]) == read:
            starts[cell] = write
            if write != read:
                for j in range(words):
                    heap[write + j] = heap[read + j]
            write += words
        read += words
    return write
