"""Windows that slide over states, beside combining each of them anew."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from icestream.core.arrays import numbers_of
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.object_aggregates.sliding import Slides
from icestream.operators.object_aggregates.states import any_function_of
from tests.operators.object_aggregates.test_functions import CASES, TYPES, shown

WORDS = (Aggregate("sum", "double", "a"), Aggregate("avg", "whole", "a"))


def _columns(dice: np.random.Generator, count: int) -> dict[str, pa.Array]:
    def some(values: list[object], kind: pa.DataType) -> pa.Array:
        return pa.array([values[n] for n in dice.integers(0, len(values), count)], kind)

    return {
        "double": some([None, 0.0, -0.0, float("nan"), 1.5, -3.0, 2.0], pa.float64()),
        "whole": some([None, -1, 0, 5], pa.int32()),
        "text": some([None, "", "a", "bb", "é"], pa.string()),
        "wide": some([None, 1, 2], TYPES["wide"]),
        "instant": some([None, 5, 6], TYPES["instant"]),
        "flag": some([None, True, False], pa.bool_()),
        "list": some([None, [1], [2, 3]], TYPES["list"]),
        "count": some([None, 0, 1, 4], pa.int16()),
    }


@pytest.mark.parametrize("aggregate", [*CASES, *WORDS], ids=lambda each: each.text)
def test_oracle_sliding_equals_combining_each_window(aggregate: Aggregate) -> None:
    dice = np.random.default_rng(len(aggregate.text))
    for count in (1, 2, 45):
        groups = np.sort(dice.integers(0, 4, count))
        begins = np.searchsorted(groups, groups)
        last = np.arange(1, count + 1)
        first = np.maximum(begins, last - np.sort(dice.integers(1, 12, count))[::-1])
        # windows of a group never move back
        for at in range(1, count):
            if groups[at] == groups[at - 1]:
                first[at] = max(first[at], first[at - 1])
        chosen = np.sort(dice.choice(count, max(1, count // 2), replace=False))
        slides = Slides(groups, first[chosen], last[chosen])
        function = any_function_of(aggregate, TYPES)
        made = _columns(dice, count)
        columns = [made[name] for name in aggregate.columns]
        states = function.lift(columns, np.arange(count), np.arange(count + 1))
        places = numbers_of(slides.first, slides.last)
        bounds = np.concatenate([[0], np.cumsum(slides.last - slides.first)])
        alone = function.lower(function.combine(states.take(pa.array(places)), bounds))
        assert shown(function.over(states, slides)) == shown(alone)
