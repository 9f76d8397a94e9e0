"""The obvious versions of the kernels in `icestream.kernels.multi_join.owed`."""

from __future__ import annotations

from itertools import product


def owed_reference(
    ports: list[list[tuple[int, int, int, int, int]]],
) -> list[tuple[tuple[int, ...], int, int]]:
    """Return all owed combinations of (id_high, id_low, le, re, generation), with lifetimes."""
    made = []
    for numbers in product(*(range(len(rows)) for rows in ports)):
        members = [rows[n] for rows, n in zip(ports, numbers, strict=True)]
        start, end = max(row[2] for row in members), min(row[3] for row in members)
        one_key = len({row[:2] for row in members}) == 1
        if one_key and start < end and len({row[4] for row in members}) > 1:
            made.append((numbers, start, end))
    return made
