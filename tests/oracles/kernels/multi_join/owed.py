"""The obvious versions of the kernels in `icestream.kernels.multi_join.owed`."""

from __future__ import annotations

from itertools import product


def owed_reference(
    ports: list[list[tuple[int, int, int, int, int]]],
) -> list[tuple[tuple[int, ...], int, int]]:
    """Return all owed combinations of (id_high, id_low, le, re, generation), with lifetimes.

    The last bit of a generation says whether the row is new.
    """
    made = []
    for numbers in product(*(range(len(rows)) for rows in ports)):
        members = [rows[n] for rows, n in zip(ports, numbers, strict=True)]
        start, end = max(row[2] for row in members), min(row[3] for row in members)
        one_key = len({row[:2] for row in members}) == 1
        several, new = len({row[4] >> 1 for row in members}) > 1, any(r[4] & 1 for r in members)
        if one_key and start < end and several and new:
            made.append((numbers, start, end))
    return made
