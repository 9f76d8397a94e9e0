"""The obvious versions of the kernels in `icestream.kernels.groups.cold`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from icestream.core.arrays import Table
from icestream.kernels.groups.cold import MOST_HEAT
from icestream.kernels.groups.heap import HEAT, STAMP


def clock_sweep_reference(
    referenced: dict[int, bool], candidates: Sequence[int], start: int, k: int
) -> tuple[list[int], int]:
    """Move the hand slot by slot; return the slots taken and the slot it points to."""
    taken: list[int] = []
    at = start
    while len(taken) < min(k, len(candidates)):
        slot = candidates[at]
        at = (at + 1) % len(candidates)
        if slot in taken:
            continue
        if referenced[slot]:
            referenced[slot] = False
        else:
            taken.append(slot)
    return taken, at


def fade_hit_reference(
    hits: Sequence[int], tick: int, period: int, gain: float, retain: float
) -> float:
    """Return the score at `tick` of a slot that was hit at the ticks `hits`."""
    total = 0.0
    for hit in hits:
        total += gain * (retain ** (tick // period - hit // period) if period else 1.0)
    return total


def list_coldest_reference(table: Table, before: int, count: int) -> list[int]:
    """Return what `list_coldest` lists, by sorting."""
    there = np.flatnonzero((table[:, STAMP] > 0) & (table[:, STAMP] < before))
    heat = np.minimum(table[there, HEAT], MOST_HEAT)
    age = np.minimum(before - table[there, STAMP], MOST_HEAT)
    return sorted(there[np.lexsort((there, -age, heat))][:count].tolist())


def _mix_reference(x: int) -> int:
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        x = ((x ^ (x >> 33)) * factor) % 2**64
    return x ^ (x >> 33)
