"""The obvious versions of the kernels in `icestream.kernels.grid.groups`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from icestream.core.arrays import Ints, Table
from icestream.kernels.grid.groups import CHANGED, FIELDS, LAST


def empty_rows_reference(rows: Table, identity: Ints, end: int) -> tuple[Table, list[int]]:
    """Return what `empty_rows` makes of rows, and the groups it lists, by selection."""
    emptied, held = rows.copy(), rows[:, FIELDS] != 0
    emptied[held, FIELDS:] = identity[FIELDS:]
    emptied[held, CHANGED] = 1
    return emptied, np.flatnonzero(held & (rows[:, LAST] < end)).tolist()


def take_next_reference(
    rows: Table, backs: Sequence[int], identity: Ints, front: int, width: int
) -> Table:
    """Return what `take_next` makes of rows, given the words of their backs, by selection."""
    taken, behind = rows.copy(), front + width
    taken[:, front:behind] = rows[:, behind : behind + width]
    taken[:, backs] = rows[:, behind + width : behind + 2 * width]
    taken[:, behind : behind + 2 * width] = identity[behind : behind + 2 * width]
    return taken
