"""The obvious versions of the kernels in `icestream.kernels.lifetimes.top`."""

from __future__ import annotations


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
