"""The obvious versions of the kernels in `icestream.kernels.sorted_run`."""

from __future__ import annotations

import numpy as np

from icestream.core.arrays import Ids, Mask, Table


def find_in_runs_reference(
    runs: list[Table], id_high: Ids, id_low: Ids, found: Mask
) -> dict[int, list[int]]:
    """Return what `find_in_runs` fills in, by place, with a dictionary for each run."""
    known = [{tuple(row[:2].view(np.uint64).tolist()): row.tolist() for row in run} for run in runs]
    places = {}
    for i, wanted in enumerate(zip(id_high.tolist(), id_low.tolist(), strict=True)):
        there = [run[wanted] for run in known if wanted in run]
        if there and not found[i]:
            places[i] = there[0]
    return places


def merge_runs_reference(runs: list[Table]) -> list[list[int]]:
    """Return what `merge_runs` makes of whole runs, with a dictionary."""
    rows = [row for run in runs for row in run]
    merged = {tuple(row[:2].view(np.uint64).tolist()): row.tolist() for row in rows}
    return [merged[identity] for identity in sorted(merged)]


def order_identities_reference(id_high: Ids, id_low: Ids) -> list[int]:
    """Return the order that `order_identities` fills in, by sorting pairs."""
    pairs = list(zip(id_high.tolist(), id_low.tolist(), strict=True))
    return sorted(range(len(pairs)), key=pairs.__getitem__)
