"""The obvious versions of the kernels in `icestream.kernels.field_words`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from icestream.core.arrays import Ints, Table
from icestream.kernels.field_words import ADD_DD, ADD_I64, ADD_I128, MAX, MIN, WORDS


def combine_sorted_reference(
    panes: Ints, rows: Table, ops: Ints, places: Ints
) -> list[tuple[int, list[Any]]]:
    """Do what sorting and `combine_sorted` do, with Python numbers: (pane, merged row), sorted."""
    merged: dict[tuple[int, int, int], list[int]] = {}
    for pane, row in zip(panes.tolist(), rows, strict=True):
        key = (pane, int(row[0]) % 2**64, int(row[1]) % 2**64)
        if key not in merged:
            merged[key] = row.tolist()
            continue
        words = merged[key]
        for op, place in zip(ops.tolist(), places.tolist(), strict=True):
            merge_words_reference(words, row.tolist(), place, op)
    return [(key[0], merged[key]) for key in sorted(merged)]


def merge_words_reference(target: list[int], source: list[int], place: int, op: int) -> None:
    """Merge one field with Python's own numbers (double-doubles by exact fractions)."""
    if op == ADD_I64:
        target[place] = _signed(target[place] + source[place], 64)
    elif op == ADD_I128:
        total = _int128(target, place) + _int128(source, place)
        target[place] = _signed(total, 64)
        target[place + 1] = _signed(total >> 64, 64)
    elif op == ADD_DD:
        pair = np.array(target[place : place + 2]).view(np.float64).tolist()
        other = np.array(source[place : place + 2]).view(np.float64).tolist()
        high = math.fsum(pair + other)
        low = math.fsum([*pair, *other, -high])
        words = np.array([high, low]).view(np.int64).tolist()
        target[place : place + 2] = words
    elif op == MIN:
        target[place] = min(target[place], source[place])
    elif op == MAX:
        target[place] = max(target[place], source[place])
    else:
        end = place + WORDS[op]
        target[place:end] = min(target[place:end], source[place:end])


def _int128(words: list[int], place: int) -> int:
    return (words[place + 1] << 64) + words[place] % 2**64


def _signed(value: int, bits: int) -> int:
    value %= 1 << bits
    return value - (1 << bits) if value >> (bits - 1) else value
