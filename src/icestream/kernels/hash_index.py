"""An open-addressing index over rows that begin with the two words of an id."""

from __future__ import annotations

import numpy as np

from icestream.core.arrays import Ids, Slots, Table
from icestream.kernels.compile import kernel
from icestream.kernels.fold import Index


@kernel
def find(index: Index, rows: Table, id_high: Ids, id_low: Ids, slots: Slots) -> int:
    """Look up groups in a hash index: fill `slots` with their rows, -1 for none; count those."""
    mask = index.size - 1
    missing = 0
    for i in range(id_high.size):
        place = np.int64(id_low[i] >> np.uint64(20)) & mask
        slot = -1
        while True:
            at = index[place] - 1
            if at < 0:
                missing += 1
                break
            if np.uint64(rows[at, 0]) == id_high[i] and np.uint64(rows[at, 1]) == id_low[i]:
                slot = at
                break
            place = (place + 1) & mask
        slots[i] = slot
    return missing


@kernel
def insert(index: Index, rows: Table, slot: int) -> None:
    """Insert row `slot` into a hash index; its group must not be there."""
    mask = index.size - 1
    place = np.int64(np.uint64(rows[slot, 1]) >> np.uint64(20)) & mask
    while index[place] != 0:
        place = (place + 1) & mask
    index[place] = slot + 1


@kernel
def insert_all(index: Index, rows: Table, slots: Slots) -> None:
    """Insert several rows into a hash index."""
    for k in range(slots.size):
        insert(index, rows, slots[k])


@kernel
def remove(index: Index, rows: Table, slot: int) -> None:
    """Remove row `slot` from a hash index, closing the gap it leaves."""
    mask = index.size - 1
    place = np.int64(np.uint64(rows[slot, 1]) >> np.uint64(20)) & mask
    while index[place] != slot + 1:
        place = (place + 1) & mask
    gap = place
    while True:
        place = (place + 1) & mask
        at = index[place]
        if at == 0:
            break
        home = np.int64(np.uint64(rows[at - 1, 1]) >> np.uint64(20)) & mask
        if ((place - home) & mask) >= ((place - gap) & mask):
            index[gap] = at
            gap = place
    index[gap] = 0


@kernel
def remove_all(index: Index, rows: Table, slots: Slots) -> None:
    """Remove several rows from a hash index."""
    for k in range(slots.size):
        remove(index, rows, slots[k])
