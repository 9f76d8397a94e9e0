"""The obvious versions of the kernels in `icestream.kernels.frames.moving`."""

from __future__ import annotations

from icestream.core.arrays import Ints, Table
from icestream.kernels.field_words import IDENTITY, op_words
from tests.oracles.kernels.field_words import merge_words_reference


def window_reference(tuples: Table, ops: Ints, places: Ints) -> list[int]:
    """Fold the tuples of a window with Python's numbers: the words of its fields."""
    words = [0, 0] + [IDENTITY[op] for op in ops.tolist() for _ in range(op_words(op))]
    for row in tuples.tolist():
        for op, place in zip(ops.tolist(), places.tolist(), strict=True):
            merge_words_reference(words, row, place, op)
    return words[2:]
