"""The obvious versions of the kernels in `icestream.kernels.lifetimes.top`."""

from __future__ import annotations

from tests.oracles.kernels.field_words import merge_words_reference


def fill_segments_reference(
    order: list[int], first: list[int], last: list[int], counts: list[int], k: int, segments: int
) -> list[dict[int, int]]:
    """Return the rows in each segment and how often they are there, one segment at a time."""
    found = []
    for segment in range(segments):
        inside = [r for r in order if first[r] <= segment < last[r] for _ in range(counts[r])]
        held: dict[int, int] = {}
        for row in inside[:k]:
            held[row] = held.get(row, 0) + 1
        found.append(held)
    return found


def cover_segments_reference(
    first: list[int],
    last: list[int],
    rows: list[list[int]],
    ops: list[int],
    places: list[int],
    segments: int,
) -> list[list[int]]:
    """Add up the rows that span each segment, with Python's numbers."""
    out = []
    for segment in range(segments):
        total = [0] * (len(rows[0]) if rows else 0)
        for i, row in enumerate(rows):
            if first[i] <= segment < last[i]:
                for op, place in zip(ops, places, strict=True):
                    merge_words_reference(total, row, place, op)
        out.append(total)
    return out
