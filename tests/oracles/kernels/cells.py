"""The obvious versions of the kernels in `icestream.kernels.cells`."""

from __future__ import annotations

from icestream.core.arrays import Ints


def number_cells_reference(codes: Ints, panes: Ints, first: int) -> tuple[list[int], list[int]]:
    """Number cells with a dict: (cell of each event from `first` on, first event of each cell)."""
    numbers: dict[tuple[int, int], int] = {}
    cells, heads = [], []
    for i in range(first, len(codes)):
        cell = (int(codes[i]), int(panes[i]))
        if cell not in numbers:
            numbers[cell] = len(numbers)
            heads.append(i)
        cells.append(numbers[cell])
    return cells, heads
