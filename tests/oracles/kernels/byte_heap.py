"""The obvious versions of the kernels in `icestream.kernels.byte_heap`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from icestream.kernels.byte_heap import FIRST, HEAD, ByteArray, Cells, Words
from icestream.kernels.hashing import VALUE


def words_needed_reference(offsets: npt.NDArray[Any], mask: ByteArray) -> int:
    """Do what `words_needed` does, on whole arrays."""
    lengths = np.diff(offsets.astype(np.int64))
    stored = (lengths > 0) & ((mask == VALUE) if mask.size else True)
    return int(((lengths + 3) // 4 + HEAD)[stored].sum())


def scatter_bytes_reference(
    cells: Cells,
    offsets: npt.NDArray[Any],
    data: ByteArray,
    mask: ByteArray,
    starts: Words,
    heap: Words,
    tail: int,
) -> tuple[int, int]:
    """Do what `scatter_bytes` does, one slice at a time."""
    garbage = free_bytes_reference(cells, starts, heap)
    for i, cell in enumerate(cells.tolist()):
        garbage += free_bytes_reference(cells[i : i + 1], starts, heap)
        text = data[int(offsets[i]) : int(offsets[i + 1])].tobytes()
        if text and (mask.size == 0 or mask[i] == VALUE):
            words = np.frombuffer(text + b"\0" * (-len(text) % 4), np.uint32)
            heap[tail : tail + HEAD] = cell, len(text)
            heap[tail + HEAD : tail + HEAD + len(words)] = words
            starts[cell] = tail
            tail += HEAD + len(words)
    return tail, garbage


def free_bytes_reference(cells: Cells, starts: Words, heap: Words) -> int:
    """Do what `free_bytes` does, on whole arrays."""
    begins = starts[np.unique(cells)].astype(np.int64)
    lengths = heap[begins[begins > 0] + 1].astype(np.int64)
    starts[cells] = 0
    return int(((lengths + 3) // 4 + HEAD).sum())


def measure_bytes_reference(cells: Cells, starts: Words, heap: Words, offsets: Cells) -> None:
    """Do what `measure_bytes` does, on whole arrays."""
    begins = starts[cells].astype(np.int64)
    lengths = np.where(begins > 0, heap[np.where(begins > 0, begins + 1, 0)], 0)
    offsets[0] = 0
    offsets[1:] = np.cumsum(lengths)


def gather_bytes_reference(
    cells: Cells, starts: Words, heap: Words, offsets: Cells, out: ByteArray
) -> None:
    """Do what `gather_bytes` does, one slice at a time."""
    raw = heap.view(np.uint8)
    for i, cell in enumerate(cells.tolist()):
        place = (int(starts[cell]) + HEAD) * 4
        begin, end = offsets[i : i + 2].tolist()
        out[begin:end] = raw[place : place + end - begin]


def compact_bytes_reference(starts: Words, heap: Words, tail: int) -> int:
    """Do what `compact_bytes` does, by a sort of the starts and a copy."""
    copy, write = heap.copy(), FIRST
    for cell in np.argsort(starts, kind="stable").tolist():
        start = int(starts[cell])
        if start:
            words = HEAD + (int(copy[start + 1]) + 3) // 4
            heap[write : write + words] = copy[start : start + words]
            starts[cell] = write
            write += words
    return write
