"""Cells of a batch: the (group, pane) pairs in it, numbered without hashing every event.

Idea: if groups are identified by small numbers, a cell is a place in a grid that fits into the
processor's cache, and finding its number is one load. The expensive work for a group or an entry is
then done only for the first event of each cell, its *head*.

Invariant: two events share a cell exactly when code and pane are equal, and cells are numbered in
the order of their heads (`test_parity_cells_are_numbered_in_the_order_they_come`).

Cost: O(events), and the grid.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from icestream.core.arrays import Ints
from icestream.kernels.compile import kernel

Grid = npt.NDArray[np.int32]


@kernel
def number_cells(
    codes: Ints,
    least: int,
    panes: Ints,
    earliest: int,
    first: int,
    grid: Grid,
    cells: Ints,
    heads: Ints,
    sizes: Ints,
) -> int:
    """Number the (group, pane) cells of a batch's events from `first` on; return how many.

    `grid` is empty, a row for each pane from `earliest` on, a column for each code from `least` on.
    Fills `cells` (cell of each event), `heads` (first event of each cell) and `sizes` (how many
    events it has).
    """
    places = grid.reshape(-1)
    width = grid.shape[1]
    count = 0
    for i in range(first, codes.size):
        # unsigned places, so that no negative index has to be handled
        place = np.uint64((panes[i] - earliest) * width + (codes[i] - least))
        number = int(places[place])
        if number == 0:
            heads[count] = i
            sizes[count] = 0
            count += 1
            number = count
            places[place] = number
        sizes[np.uint64(number - 1)] += 1
        cells[i] = number - 1
    return count


@kernel
def slots_of_cells(cells: Ints, numbers: Ints, first: int, last: int) -> None:
    """Replace the (group, pane) cell of each event by the number of that cell's entry."""
    for i in range(first, last):
        cells[i] = numbers[cells[i]]
