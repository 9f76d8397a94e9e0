"""The obvious versions of the kernels in `icestream.kernels.session`."""

from __future__ import annotations

from icestream.core.arrays import Ids, Ints, Table
from tests.oracles.kernels.field_words import merge_words_reference


def cut_fragments_reference(
    id_high: Ids, id_low: Ids, time: Ints, ends: Ints
) -> tuple[list[int], list[tuple[int, int]]]:
    """Number fragments with a list per group: (fragment of each event, their starts and ends)."""
    groups: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for i, key in enumerate(zip(id_high.tolist(), id_low.tolist(), strict=True)):
        groups.setdefault(key, []).append((int(time[i]), i))
    slots = [0] * len(time)
    spans: list[tuple[int, int]] = []
    for key in sorted(groups):
        fresh = True
        for at, i in sorted(groups[key]):
            if fresh or at > spans[-1][1]:
                spans.append((at, at))
            spans[-1] = (spans[-1][0], max(spans[-1][1], int(ends[i])))
            slots[i] = len(spans) - 1
            fresh = False
    return slots, spans


def merge_sessions_reference(
    left: Table, right: Table, ops: Ints, places: Ints
) -> tuple[list[list[int]], list[int]]:
    """Merge with Python's sort and numbers: (rows, sources)."""
    everything = [row.tolist() for table in (left, right) for row in table]

    def rank(at: int) -> tuple[int, int, int, int]:
        row = everything[at]
        return row[0] % 2**64, row[1] % 2**64, row[2], at

    rows: list[list[int]] = []
    sources: list[int] = []
    for at in sorted(range(len(everything)), key=rank):
        row = everything[at]
        if rows and rows[-1][:2] == row[:2] and row[2] <= rows[-1][3]:
            rows[-1][3] = max(rows[-1][3], row[3])
            for op, place in zip(ops.tolist(), places.tolist(), strict=True):
                merge_words_reference(rows[-1], row, place, op)
        else:
            rows.append(row)
            sources.append(at)
    return rows, sources
