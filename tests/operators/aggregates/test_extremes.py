from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest

from icestream.core.errors import DefinitionError
from icestream.operators.aggregates.aggregate import Aggregate
from tests.fixtures.folding import folded


def answer(function: str, values: pa.Array) -> Any:
    return folded(Aggregate(function, "x", "answer"), {"x": values})


def test_nan_is_the_greatest_float() -> None:
    values = pa.array([1.0, math.nan, -math.inf, math.inf])
    assert math.isnan(answer("max", values))
    assert answer("min", values) == -math.inf
    assert answer("min", pa.array([math.nan, 2.0], pa.float32())) == 2.0
    assert math.isnan(answer("min", pa.array([math.nan])))


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32(), pa.int64()])
def test_extremes_of_integers_keep_the_ends_of_their_range(kind: pa.DataType) -> None:
    least, most = -(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1
    values = pa.array([0, least, most, None], kind)
    assert (answer("min", values), answer("max", values)) == (least, most)
    assert answer("min", pa.array([most], kind)) == most
    assert answer("max", pa.array([least], kind)) == least


@pytest.mark.parametrize(
    ("values", "every", "some"),
    [
        ([True, True, None], True, True),
        ([True, False], False, True),
        ([False, None], False, False),
        ([None], None, None),
    ],
)
def test_conditions_that_always_and_ever_hold(
    values: list[bool | None], every: bool | None, some: bool | None
) -> None:
    column = pa.array(values, pa.bool_())
    assert answer("bool_and", column) is every
    assert answer("bool_or", column) is some


@pytest.mark.parametrize("function", ["bool_and", "bool_or", "count_if"])
def test_conditions_are_booleans(function: str) -> None:
    with pytest.raises(DefinitionError, match=r"needs a boolean, got int64 .*'a'\): use a compar"):
        Aggregate(function, "x", "a").fields({"x": pa.int64()})
