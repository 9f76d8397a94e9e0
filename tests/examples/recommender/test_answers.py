from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.recommender.answers import Recommendations, RecommendedItem, Request, wrong
from examples.recommender.offline import SimilarityModel
from examples.recommender.ratings import SCHEMA

TIME = pa.timestamp("us", tz="UTC")
#: user, asked, item, score, start, end, change
Row = tuple[int, int, int, float, int, int | None, int]


def rows_of(rows: list[Row], time: pa.DataType = TIME, *, changes: bool = True) -> pa.Table:
    user, asked, item, score, start, end, change = zip(*rows, strict=True)

    def times(values: Any) -> pa.Array:
        return pa.array(values, TIME).cast(time)

    lifetime = pa.StructArray.from_arrays([times(start), times(end)], ["start", "end"])
    columns: dict[str, Any] = {"lifetime": lifetime, "change": pa.array(change, pa.int32())}
    columns |= {"user": user, "asked": times(asked), "item": item, "score": score}
    return pa.table(columns if changes else {n: c for n, c in columns.items() if n != "change"})


changes = st.tuples(
    st.integers(1, 2),
    st.integers(0, 2),
    st.integers(1, 3),
    st.sampled_from([1.0, 2.5]),
    st.integers(0, 5),
    st.one_of(st.none(), st.integers(6, 9)),
    st.just(1),
)


@given(st.lists(changes, min_size=1, max_size=12), st.data())
def test_oracle_changes_add_up_to_the_answers_of_an_instant(
    rows: list[Row], data: st.DataObject
) -> None:
    gone = data.draw(st.lists(st.sampled_from(rows), unique=True, max_size=4))
    reported = data.draw(st.permutations([*rows, *((*row[:6], -1) for row in gone)]))
    answers = Recommendations()
    cut = data.draw(st.integers(0, len(reported)))
    for part in (reported[:cut], reported[cut:]):
        if part:
            answers.take(rows_of(list(part)))
    left = list(rows)
    for row in gone:
        left.remove(row)
    for instant in range(10):
        expected: dict[Request, set[RecommendedItem]] = {}
        for user, asked, item, score, start, end, _ in left:
            if start <= instant and (end is None or instant < end):
                expected.setdefault(Request(user, asked), set()).add(RecommendedItem(item, score))
        found = answers.at(instant)
        assert {request: set(answer) for request, answer in found.items()} == expected


@pytest.mark.parametrize("unit", ["us", "ns"])
def test_rows_of_either_mode_and_of_any_unit_are_understood(unit: str) -> None:
    answers = Recommendations()
    answers.take(rows_of([(1, 7, 5, 2.0, 7, 8, 1)], pa.timestamp(unit, "UTC"), changes=False))
    assert answers.at(7) == {Request(1, 7): [RecommendedItem(5, 2.0)]}
    assert answers.at(8) == {}


def test_the_latest_answers_come_first() -> None:
    answers = Recommendations()
    answers.take(
        rows_of(
            [
                (1, 1, 5, 2.0, 1, 2, 1),
                (2, 3, 6, 2.0, 3, 4, 1),
                (2, 3, 7, 4.0, 3, 4, 1),
                # a standing one, that will change after the present
                (3, 2, 8, 3.0, 2, 9, 1),
                (3, 2, 9, 3.0, 9, None, 1),
            ]
        )
    )
    second = (Request(2, 3), [RecommendedItem(7, 4.0), RecommendedItem(6, 2.0)])
    third = (Request(3, 2), [RecommendedItem(8, 3.0)])
    assert answers.latest(5, most=2) == [second, third]
    assert answers.latest(9, most=1) == [(Request(3, 2), [RecommendedItem(9, 3.0)])]
    assert answers.latest(0, most=5) == []


def test_answers_that_are_wrong_are_reported() -> None:
    # user 1 rated 10, 20 and 30, user 2 rated 10 only: 20 and 30 are equally good
    table = pa.Table.from_arrays(
        [
            pa.array(np.zeros(4, dtype=np.int64)).cast(TIME),
            pa.array([1, 1, 1, 2]),
            pa.array([10, 20, 30, 10]),
            pa.array([3.0, 5.0, 5.0, 4.0]),
        ],
        schema=SCHEMA,
    )
    model = SimilarityModel.at(table, 0)
    right = [RecommendedItem(20, 4.0), RecommendedItem(30, 4.0)]
    assert wrong(right, model, user=2, k=5) is None
    assert wrong(right[:1], model, user=2, k=1) is None
    assert wrong(right[1:], model, user=2, k=1) is None
    assert wrong([], model, user=7, k=5) is None
    reported = wrong(right[:1], model, user=2, k=5)
    assert reported == "user 2 got 1 items instead of 2"
    reported = wrong([RecommendedItem(20, 4.0), RecommendedItem(30, 3.9)], model, user=2, k=5)
    assert reported == "user 2, place 2: score 3.9 instead of 4.0"
    reported = wrong([RecommendedItem(20, 4.0), RecommendedItem(10, 4.0)], model, user=2, k=5)
    assert reported == "user 2: item 10 does not have the score 4.0"
