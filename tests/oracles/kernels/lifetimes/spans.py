"""The obvious versions of the kernels in `icestream.kernels.lifetimes.spans`."""

from __future__ import annotations

from tests.oracles.kernels.field_words import merge_words_reference


def merge_spans_reference(
    first: list[int],
    last: list[int],
    rows: list[list[int]],
    ops: list[int],
    places: list[int],
    identity: list[int],
    segments: int,
) -> list[list[int]]:
    """Merge the rows that span each segment, one segment at a time."""
    out = []
    for segment in range(segments):
        total = list(identity)
        for row, begin, end in zip(rows, first, last, strict=True):
            if begin <= segment < end:
                for op, place in zip(ops, places, strict=True):
                    merge_words_reference(total, row, place, op)
        out.append(total)
    return out
