"""The obvious versions of the kernels in `icestream.kernels.lifetimes.pairs`."""

from __future__ import annotations

from itertools import pairwise

from icestream.core.arrays import Ids


def pair_up_reference(
    probes: list[tuple[int, int, int]], stored: list[tuple[int, int, int]]
) -> list[tuple[int, int]]:
    """Return positions of all pairs of (group, le, re) that share a group and a time."""
    return [
        (i, j)
        for i, (group, start, end) in enumerate(probes)
        for j, (other, le, re) in enumerate(stored)
        if group == other and max(start, le) < min(end, re)
    ]


def stretches_reference(
    before: list[tuple[int, int, int, int]], after: list[tuple[int, int, int, int]]
) -> list[tuple[int, int, int, int]]:
    """Count rows (owner, le, re, count) at every time: (owner, start, end, sign)."""
    everything = before + after
    found: list[tuple[int, int, int, int]] = []
    for owner in sorted({row[0] for row in everything}):
        edges = sorted({edge for row in everything if row[0] == owner for edge in row[1:3]})
        for start, end in pairwise(edges):
            was, now = (
                sum(n for other, le, re, n in rows if other == owner and le <= start < re) > 0
                for rows in (before, after)
            )
            sign = int(was) - int(now)
            if sign == 0:
                continue
            if found and found[-1][0] == owner and found[-1][2:] == (start, sign):
                found.append((owner, found.pop()[1], end, sign))
            else:
                found.append((owner, start, end, sign))
    return found


def number_pairs_reference(id_high: Ids, id_low: Ids) -> tuple[list[int], list[int]]:
    """Number rows with a dict: (number of each row, first row of each number)."""
    known: dict[tuple[int, int], int] = {}
    numbers, heads = [], []
    for row, key in enumerate(zip(id_high.tolist(), id_low.tolist(), strict=True)):
        if key not in known:
            known[key] = len(known)
            heads.append(row)
        numbers.append(known[key])
    return numbers, heads
