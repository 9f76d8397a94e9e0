"""Aggregates that users write."""

from __future__ import annotations

import pickle
import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from icestream.core.errors import InputError
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.object_aggregates.functions import function_of
from icestream.operators.object_aggregates.protocol import ObjectFunction
from icestream.operators.object_aggregates.user_aggregates import UserAggregate, UserFunction

TYPES = {"x": pa.int64(), "y": pa.int64()}


@dataclass
class Sums:
    """A state of a class of its own."""

    x: int
    xy: int


def lift(x: int | None, y: int | None) -> Sums | None:
    return None if x is None or y is None else Sums(x, x * y)


def combine(a: Sums, b: Sums) -> Sums:
    return Sums(a.x + b.x, a.xy + b.xy)


def lower(state: Sums) -> list[int]:
    return [state.x, state.xy]


SUMS = UserAggregate(lift, combine, lower, pa.list_(pa.int64()))


def made(user: UserAggregate) -> ObjectFunction:
    return function_of(Aggregate("user", "x", "sums", ("y",), (user,)), TYPES)


def lifted(function: ObjectFunction, rows: list[tuple[Any, Any]]) -> pa.Array:
    columns = [pa.array([row[i] for row in rows], pa.int64()) for i in (0, 1)]
    return function.lift(columns, np.zeros(len(rows), dtype=np.int64), np.array([0, len(rows)]))


ROWS = st.lists(st.tuples(st.one_of(st.none(), st.integers(0, 9)), st.integers(0, 9)), min_size=1)


@given(st.lists(ROWS, min_size=1, max_size=4))
def test_oracle_a_user_aggregate_folds_all_events(parts: list[list[tuple[Any, Any]]]) -> None:
    function = made(SUMS)
    states = pa.concat_arrays([lifted(function, rows) for rows in parts])
    (answer,) = function.lower(function.combine(states, np.array([0, len(parts)]))).to_pylist()
    some = [(x, y) for rows in parts for x, y in rows if x is not None]
    assert answer == ([sum(x for x, _ in some), sum(x * y for x, y in some)] if some else None)


def test_a_changed_aggregate_is_another_plan() -> None:
    texts = {
        Aggregate("user", "x", "sums", ("y",), (user,)).text
        for user in (SUMS, replace(SUMS, version="2"), replace(SUMS, title="sums"))
    }
    assert len(texts) == 3
    assert (
        Aggregate("user", "x", "a", (), (replace(SUMS),)).text
        == Aggregate("user", "x", "a", (), (SUMS,)).text
    )
    assert "test_user_aggregates.lift version 1" in SUMS.name


def test_an_aggregate_travels_with_the_query() -> None:
    assert pickle.loads(pickle.dumps(SUMS)) == SUMS


def test_answers_of_another_type_are_an_error_that_names_the_aggregate() -> None:
    function = made(replace(SUMS, result=pa.int64(), title="my sums"))
    assert isinstance(function, UserFunction)
    assert function.lower(lifted(function, [(1, 2)])).to_pylist() == [None]
    ((place, error),) = function.failures
    assert place == 0
    assert isinstance(error, InputError)
    assert re.search(r"my sums.*'sums'.*int64", str(error))


def test_events_on_which_an_aggregate_fails_are_refused() -> None:
    def inverse(x: int | None, y: int | None) -> int:
        return 12 // (x or 0)

    function = made(UserAggregate(inverse, lambda a, b: a + b, lambda a: a, pa.int64()))
    assert isinstance(function, UserFunction)
    states = lifted(function, [(2, 0), (0, 0), (3, 0), (None, 0)])
    assert function.lower(states).to_pylist() == [10]
    assert [place for place, _ in function.failures] == [1, 3]
