from __future__ import annotations

import numpy as np
import pytest

from icestream.state.budget import Budget, Refused
from icestream.state.queue.arrays import HeapArrays, grow, grow_ahead


def test_a_refused_resize_changes_nothing() -> None:
    budget = Budget(1000)
    arrays = HeapArrays(budget.account("arrays"))
    array = arrays.array("a", np.int64, 1, 50)
    array.view[:] = 7
    with pytest.raises(Refused):
        array.resize(90)
    assert (array.capacity, budget.held, int(array.view.sum())) == (50, 400, 350)


def test_resizing_keeps_rows_and_zeroes_new_ones() -> None:
    array = HeapArrays().array("a", np.int32, 2, 3)
    array.view[:] = 5
    array.resize(2)
    array.resize(4)
    assert array.view.tolist() == [[5, 5], [5, 5], [0, 0], [0, 0]]


def test_grow_is_all_or_nothing() -> None:
    budget = Budget(1000)
    arrays = HeapArrays(budget.account("arrays"))
    first, second = arrays.array("a", np.int64), arrays.array("b", np.int64)
    with pytest.raises(Refused):
        grow([(first, 50), (second, 100)])
    assert (first.capacity, second.capacity, budget.held) == (0, 0, 0)


def test_growing_ahead_takes_what_is_needed_where_more_does_not_fit() -> None:
    budget = Budget(1000)
    array = HeapArrays(budget.account("arrays")).array("a", np.int64)
    grow_ahead([(array, 40)])
    assert array.capacity == 60
    array.resize(0)
    grow_ahead([(array, 100)])
    assert array.capacity == 100


def test_an_array_is_opened_as_it_was_made() -> None:
    arrays = HeapArrays()
    made = arrays.array("a", np.int64, 2, 3)
    assert arrays.array("a", np.int64, 2, 5) is made
    assert made.capacity == 5
    with pytest.raises(ValueError, match="asked for 1 of"):
        arrays.array("a", np.int64)
