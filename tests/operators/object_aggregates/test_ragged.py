"""Ranks and tallies beside sorting and counting in Python."""

from __future__ import annotations

import math
from collections import Counter
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.operators.object_aggregates.ragged import (
    chosen_of,
    lengths,
    lists_of,
    owners,
    rank,
    spread,
    tally,
)
from tests.oracles.object_aggregates import rank as rank_of_value

KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "double": (
        pa.float64(),
        st.sampled_from((-0.0, 0.0, math.nan, math.inf, -math.inf, 1.5, -2.25)),
    ),
    "single": (pa.float32(), st.sampled_from((-0.0, 0.0, math.nan, 0.5, -0.5))),
    "whole": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "text": (pa.string(), st.text(st.sampled_from("aäz\U0001f600\uffff"), max_size=3)),
    "bytes": (pa.binary(), st.binary(max_size=2)),
    "flag": (pa.bool_(), st.booleans()),
    "wide": (
        pa.decimal128(38, 2),
        st.integers(-(10**30), 10**30).map(lambda n: Decimal(n).scaleb(-2)),
    ),
    "instant": (pa.timestamp("us", "UTC"), st.datetimes()),
}


def test_runs_own_their_places() -> None:
    assert owners(np.array([0, 2, 2, 5])).tolist() == [0, 0, 2, 2, 2]


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=30)
def test_oracle_ranks_order_values_as_spark_does(kind: str, data: st.DataObject) -> None:
    dtype, values = KINDS[kind]
    array = pa.array(data.draw(st.lists(values, max_size=20)), dtype)
    ranks, distinct = rank(array)
    key = _utf8 if kind == "text" else rank_of_value
    listed = array.to_pylist()
    assert [key(v) for v in distinct.to_pylist()] == sorted({key(v) for v in listed})
    assert [key(v) for v in distinct.take(pa.array(ranks)).to_pylist()] == [key(v) for v in listed]


def _utf8(value: str) -> bytes:
    return value.encode()


def test_structs_are_ranked_field_by_field_with_nulls_first() -> None:
    rows = [{"a": 2, "b": None}, {"a": 1, "b": "x"}, {"a": 2, "b": "a"}, {"a": 2, "b": None}]
    ranks, distinct = rank(pa.array(rows))
    assert ranks.tolist() == [1, 0, 2, 1]
    assert distinct.to_pylist() == [rows[1], rows[0], rows[2]]


@given(
    groups=st.lists(st.lists(st.integers(-3, 3), max_size=6), max_size=6),
    weight=st.sampled_from((None, 1, 3)),
)
def test_oracle_tallies_equal_counters(groups: list[list[int]], weight: int | None) -> None:
    flat = [value for group in groups for value in group]
    owner = np.array([n for n, group in enumerate(groups) for _ in group], dtype=np.int64)
    weights = None if weight is None else np.full(len(flat), weight)
    found = tally(pa.array(flat, pa.int64()), owner, len(groups), weights)
    for number, group in enumerate(groups):
        first, last = found.bounds[number : number + 2].tolist()
        counted = dict(
            zip(
                found.values[first:last].to_pylist(),
                found.counts[first:last].tolist(),
                strict=True,
            )
        )
        assert counted == {v: n * (weight or 1) for v, n in Counter(group).items()}
        assert list(counted) == sorted(counted)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=12))
def test_the_first_of_the_least_is_chosen(pairs: list[tuple[int, int]]) -> None:
    groups, keys = (np.array([p[i] for p in pairs], dtype=np.int64) for i in (0, 1))
    expected = [
        min(
            (i for i, p in enumerate(pairs) if p[0] == g),
            key=lambda i: (pairs[i][1], i),
            default=None,
        )
        for g in range(4)
    ]
    assert chosen_of(groups, keys, 4).to_pylist() == expected


def test_lists_of_a_slice_are_spread_like_any_others() -> None:
    kind = pa.list_(pa.int64())
    lists = lists_of(np.array([0, 1, 3, 3, 4]), pa.array([7, 8, 9, 10]), kind).slice(1)
    groups, values = spread(lists, np.array([0, 2, 3]))
    assert lengths(lists).tolist() == [2, 0, 1]
    assert groups.tolist() == [0, 0, 1]
    assert values.to_pylist() == [8, 9, 10]
