"""The obvious object aggregates by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from icestream.operators.aggregates.aggregate import Aggregate
from tests.oracles.object_aggregates import obvious_answer, settled

EVENTS: list[dict[str, Any]] = [
    {"time": 2, "x": 3.0, "y": "b"},
    {"time": 1, "x": None, "y": "a"},
    {"time": 2, "x": -0.0, "y": None},
    {"time": 3, "x": 0.0, "y": "b"},
]


@pytest.mark.parametrize(
    ("aggregate", "expected"),
    [
        (Aggregate("collect_list", "y", "a"), ["a", "b", "b"]),
        (Aggregate("collect_set", "x", "a"), [0.0, 3.0]),
        (Aggregate("count_distinct", "x", "a"), 2),
        (Aggregate("count_distinct", "x", "a", ("y",)), 2),
        (Aggregate("median", "x", "a"), 0.0),
        (Aggregate("percentile", "x", "a", (), ((0.5, 0.75),)), [0.0, 1.5]),
        (Aggregate("mode", "y", "a"), "b"),
        (Aggregate("first", "x", "a"), None),
        (Aggregate("first", "x", "a", (), (True,)), 3.0),
        (Aggregate("last", "y", "a"), "b"),
        (Aggregate("min_by", "y", "a", ("x",)), None),
        (Aggregate("max", "y", "a"), "b"),
        (Aggregate("approx_count_distinct", "y", "a"), 2),
        (Aggregate("approx_top_k", "y", "a", (), (1,)), [{"item": "b", "count": 2}]),
    ],
    ids=lambda each: each.text if isinstance(each, Aggregate) else "",
)
def test_answers_by_hand(aggregate: Aggregate, expected: Any) -> None:
    assert obvious_answer(aggregate, EVENTS) == expected


def test_settled_rows_are_equal_when_their_lists_are() -> None:
    row = (0, 1, "key", [math.nan, 1.0], [{"item": math.nan, "count": 1}])
    other = (0, 1, "key", [float("nan"), 1.0], [{"item": float("nan"), "count": 1}])
    assert settled([row]) == settled([other])
