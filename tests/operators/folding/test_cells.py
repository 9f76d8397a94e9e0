from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.operators.folding import cells
from icestream.operators.folding.cells import CellFinder, Cells

KEYS = st.one_of(
    st.just(None),
    st.integers(-5, 5),
    st.sampled_from([-(2**63), 2**63 - 1]),
)
FURTHER = st.one_of(st.integers(-3, 3), st.sampled_from([-(2**63), 2**63 - 1]))
PANES = st.one_of(st.integers(-4, 4), st.just(2**40))


@given(
    st.lists(st.tuples(KEYS, FURTHER, PANES), min_size=1, max_size=60),
    st.integers(0, 2),
    st.integers(0, 59),
    st.sampled_from([0, 8, 1 << 16]),
)
def test_oracle_events_of_a_cell_agree(
    events: list[tuple[int | None, int, int]], columns: int, first: int, places: int
) -> None:
    first = min(first, len(events) - 1)
    given_keys = [[key for key, _, _ in events], [key for _, key, _ in events]][:columns]
    keys = _batch([pa.array(each, pa.int64()) for each in given_keys], len(events))
    panes = np.array([pane for _, _, pane in events], dtype=np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cells, "GRID_PLACES", places)
        found = _cells(keys, panes, first)
    heads, their_panes = found.one_each(keys, panes)
    numbers = np.arange(len(their_panes)) + 100
    entries = found.entries(numbers, len(events)).tolist()
    for row in range(first, len(events)):
        cell = entries[row] - 100
        assert their_panes[cell] == panes[row]
        assert heads.slice(cell, 1).equals(keys.slice(row, 1))
    reached = [found.reached(done) for done in range(len(numbers) + 1)]
    assert reached[0] == first
    assert reached[-1] == len(events)
    for done in range(len(numbers)):
        assert all(entries[row] - 100 < done for row in range(first, reached[done]))


def _cells(keys: pa.RecordBatch, panes: npt.NDArray[np.int64], first: int = 0) -> Cells:
    finder = CellFinder(panes)
    return finder.since(first, finder.codes(keys))


def _batch(columns: list[pa.Array], rows: int) -> pa.RecordBatch:
    if columns:
        return pa.RecordBatch.from_arrays(columns, names=[f"k{i}" for i in range(len(columns))])
    return pa.RecordBatch.from_struct_array(
        pa.StructArray.from_buffers(pa.struct([]), rows, [None])
    )


@pytest.mark.parametrize(
    "keys",
    [
        pa.array([1, 2, 1], pa.int8()),
        pa.array([1, 2, 1], pa.int32()),
        pa.array([2**40, 2**40 + 1, 2**40]),
    ],
    ids=str,
)
def test_narrow_keys_are_looked_up_once_per_cell(keys: pa.Array) -> None:
    found = _cells(_batch([keys], 3), np.zeros(3, dtype=np.int64))
    assert found.heads is not None
    assert found.heads.tolist() == [0, 1]


def test_keys_outside_a_grouping_leave_cells_as_they_are() -> None:
    absent, grouping = pa.nulls(3, pa.string()), pa.array([5, 5, 5])
    keys = _batch([absent, pa.array([1, 2, 1]), pa.nulls(3, pa.int32()), grouping], 3)
    found = _cells(keys, np.zeros(3, dtype=np.int64))
    assert found.heads is not None
    assert found.heads.tolist() == [0, 1]


@pytest.mark.parametrize(
    "keys",
    [pa.array([1, None, 1]), pa.array([0, 2**40, 0]), pa.array(["a", "b", "a"])],
    ids=str,
)
def test_other_keys_are_looked_up_for_every_event(keys: pa.Array) -> None:
    found = _cells(_batch([keys], 3), np.zeros(3, dtype=np.int64), 1)
    assert found.heads is None
    assert [found.reached(done) for done in range(3)] == [1, 2, 3]
