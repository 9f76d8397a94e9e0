"""The obvious versions of the kernels in `icestream.kernels.lifetimes.sweep`."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from icestream.kernels.field_words import ADD_DD, ADD_I128
from icestream.kernels.lifetimes.sweep import _NEVER
from tests.oracles.kernels.field_words import merge_words_reference

#: group, time and words of a stretch between two edges
Segment = tuple[int, int, tuple[int, ...]]


def fold_equal_reference(
    keys: list[tuple[int, int, int]], rows: list[list[int]], ops: list[int], places: list[int]
) -> dict[tuple[int, int, int], list[int]]:
    """Add up rows by slot and lifetime with a dict."""
    sums: dict[tuple[int, int, int], list[int]] = {}
    for key, row in zip(keys, rows, strict=True):
        into = sums.setdefault(key, [0] * len(row))
        for op, place in zip(ops, places, strict=True):
            merge_words_reference(into, row, place, op)
    return {key: row for key, row in sums.items() if not _adds_nothing(row, ops, places)}


def segments_reference(
    edges: list[tuple[int, list[int]]], ops: list[int], places: list[int], guards: list[int]
) -> list[Segment]:
    """Return (from, to, words) of all segments of a step function, with Python's lists."""
    steps: dict[int, list[int]] = {}
    marks = {t for t, row in edges if _adds_nothing(row, ops, places)}
    for t, row in edges:
        into = steps.setdefault(t, [0] * len(row))
        for op, place in zip(ops, places, strict=True):
            merge_words_reference(into, row, place, op)
    total: list[int] = []
    found = []
    cuts = [t for t in sorted(steps) if t in marks or not _adds_nothing(steps[t], ops, places)]
    for t, end in pairwise([*cuts, _NEVER]):
        total = total or [0] * len(steps[t])
        for op, place in zip(ops, places, strict=True):
            merge_words_reference(total, steps[t], place, op)
        for op, place, guard in zip(ops, places, guards, strict=True):
            if guard >= 0 and total[guard] == 0:
                size = 2 if op in (ADD_I128, ADD_DD) else 1
                total[place : place + size] = [0] * size
        found.append((t, end, tuple(total)))
    return found


def _adds_nothing(row: list[int], ops: list[int], places: list[int]) -> bool:
    """Return whether all words are zero; negative zeros of floats count."""
    zeros = {0, -(2**63)}
    floats = {p + w for op, p in zip(ops, places, strict=True) if op == ADD_DD for w in (0, 1)}
    return all(word in zeros if at in floats else word == 0 for at, word in enumerate(row))


def sweep_edges_reference(
    kept: list[tuple[int, list[int]]],
    added: list[tuple[int, list[int]]],
    ops: list[int],
    places: list[int],
    guards: list[int],
) -> dict[Segment, int]:
    """Return the segments in which all edges differ from the stored ones, -1 for the stored."""
    old = set(segments_reference(kept, ops, places, guards))
    new = set(segments_reference(kept + added, ops, places, guards))
    return {**dict.fromkeys(old - new, -1), **dict.fromkeys(new - old, 1)}


def scale_rows_reference(
    row: list[int], count: int, ops: list[int], places: list[int]
) -> list[int]:
    """Multiply the fields of a row with Python's numbers."""
    out = [0] * len(row)
    for op, place in zip(ops, places, strict=True):
        if op == ADD_DD:
            pair = np.array(row[place : place + 2]).view(np.float64) * count
            out[place : place + 2] = pair.view(np.int64).tolist()
        else:
            bits = 128 if op == ADD_I128 else 64
            whole = row[place] if bits == 64 else (row[place + 1] << 64) + row[place] % 2**64
            whole = (whole * count) % 2**bits
            parts = [whole % 2**64, whole >> 64][: bits // 64]
            out[place : place + len(parts)] = [p - 2**64 if p >> 63 else p for p in parts]
    return out
