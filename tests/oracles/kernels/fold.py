"""The obvious versions of the kernels in `icestream.kernels.fold`."""

from __future__ import annotations

import math

from icestream.core.arrays import Ids, Ints


def assign_entries_reference(id_high: Ids, id_low: Ids, pane: Ints) -> tuple[list[int], list[int]]:
    """Number entries with a dict: (entry of each event, events that opened one)."""
    numbers: dict[tuple[int, int, int], int] = {}
    slots: list[int] = []
    opened: list[int] = []
    for i, key in enumerate(zip(id_high.tolist(), id_low.tolist(), pane.tolist(), strict=True)):
        if key not in numbers:
            numbers[key] = len(numbers)
            opened.append(i)
        slots.append(numbers[key])
    return slots, opened


def new_keys_reference(
    id_high: Ids, id_low: Ids, pane: Ints, rows: list[int]
) -> tuple[list[int], list[int]]:
    """List the first event of each group and each group's latest pane, with a dict."""
    last: dict[tuple[int, int], int] = {}
    fresh = []
    for i in rows:
        key = (int(id_high[i]), int(id_low[i]))
        if key not in last:
            fresh.append(i)
        last[key] = max(last.get(key, int(pane[i])), int(pane[i]))
    return fresh, list(last.values())


def order_floats_reference(values: list[float]) -> list[int]:
    """Rank floats by Python's order, -0.0 below 0.0, NaN last: equal ranks for equal floats."""
    keys = [(v != v, 0.0 if v != v else v, v == v and math.copysign(1.0, v)) for v in values]
    ranks = {key: rank for rank, key in enumerate(sorted(set(keys)))}
    return [ranks[key] for key in keys]


def routes_of_reference(id_high: Ids, key_groups: int, route: Ints) -> list[int]:
    """Compute routes with Python's numbers."""
    return [int(route[((h >> 32) * key_groups) >> 32]) for h in id_high.tolist()]
