from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from icestream.kernels.cells import number_cells, slots_of_cells
from tests.oracles.kernels.cells import number_cells_reference


@given(
    st.lists(st.tuples(st.integers(10, 14), st.integers(-3, 3)), max_size=40), st.integers(0, 40)
)
def test_parity_cells_are_numbered_in_the_order_they_come(
    events: list[tuple[int, int]], first: int
) -> None:
    first = min(first, len(events))
    codes = np.array([code for code, _ in events], dtype=np.int64)
    panes = np.array([pane for _, pane in events], dtype=np.int64)
    cells = np.full(len(events), -1, dtype=np.int64)
    heads = np.empty(len(events), dtype=np.int64)
    grid = np.zeros((7, 5), dtype=np.int32)
    sizes = np.empty(len(events), dtype=np.int64)
    count = number_cells(codes, 10, panes, -3, first, grid, cells, heads, sizes)
    expected, heads_expected = number_cells_reference(codes, panes, first)
    assert cells[first:].tolist() == expected
    assert (cells[:first] == -1).all()
    assert heads[:count].tolist() == heads_expected
    assert sizes[:count].tolist() == [expected.count(cell) for cell in range(count)]


def test_parity_events_get_the_entry_of_their_cell() -> None:
    cells = np.array([0, 1, 0, 2, 1], dtype=np.int64)
    numbers = np.array([7, 5, 9], dtype=np.int64)
    expected = [0, *(int(numbers[cell]) for cell in cells[1:4]), 1]
    slots_of_cells(cells, numbers, 1, 4)
    assert cells.tolist() == expected
