from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.core.errors import DefinitionError
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.testing.sources import StreamShape, random_column
from tests.fixtures.folding import folded
from tests.fixtures.plans import EVERY_INPUT
from tests.oracles.answers import answer as obvious

ALL = (
    Aggregate("first", "x", "a"),
    Aggregate("last", "x", "a"),
    Aggregate("first", "x", "a", (), (True,)),
    Aggregate("last", "x", "a", (), (True,)),
    Aggregate("min_by", "x", "a", ("y",)),
    Aggregate("max_by", "x", "a", ("y",)),
)
FIRST, LAST, FIRST_VALID, LAST_VALID, MIN_BY, MAX_BY = ALL


def same(a: Any, b: Any) -> bool:
    """Tell whether values agree, NaN with itself and zeros with their sign."""
    return repr(a) == repr(b)


def test_time_comes_before_arrival() -> None:
    # by (time, arrival): 30 at 1, None at 1, 10 at 2, 20 at 2
    values = {"x": pa.array([10, 30, 20, None])}
    times = [2, 1, 2, 1]
    assert folded(FIRST, values, times=times) == 30
    assert folded(LAST, values, times=times) == 20
    reverse = [-time for time in times]
    assert folded(FIRST, values, times=reverse) == 10
    assert folded(LAST, values, times=reverse) is None
    assert folded(LAST_VALID, values, times=reverse) == 30
    assert folded(FIRST_VALID, {"x": pa.array([None, 5])}) == 5
    assert folded(FIRST, {"x": pa.array([None, 5])}) is None


def test_ties_go_to_the_first_event_of_the_stream() -> None:
    columns = {"x": pa.array([1, 2, 3, 4]), "y": pa.array([5.0, 0.0, -0.0, 5.0])}
    assert folded(MIN_BY, columns) == 2
    assert folded(MAX_BY, columns) == 1
    assert folded(MIN_BY, columns, times=[4, 3, 2, 1]) == 3
    assert folded(MAX_BY, columns, times=[4, 3, 2, 1]) == 4


def test_events_without_ordering_are_passed_over_and_values_may_be_null() -> None:
    columns = {
        "x": pa.array([1, None, 3, 4], pa.int32()),
        "y": pa.array([2.0, 1.0, None, math.nan]),
    }
    assert folded(MIN_BY, columns) is None
    assert folded(MAX_BY, columns) == 4
    nothing = {"x": pa.array([1]), "y": pa.nulls(1, pa.date32())}
    assert folded(MIN_BY, nothing) is None
    assert folded(MAX_BY, nothing) is None


@pytest.mark.parametrize("kind", [pa.int8(), pa.int64(), pa.timestamp("us"), pa.duration("us")])
def test_the_ends_of_a_range_are_values_like_others(kind: pa.DataType) -> None:
    words = pa.int64() if kind.bit_width == 64 else kind
    most = 2 ** (kind.bit_width - 1) - 1
    ends = pa.array([most, -most - 1], words)
    values = ends.view(kind) if kind.bit_width == 64 else ends
    plain = pa.array([1, 2])
    assert folded(MIN_BY, {"x": plain, "y": values}) == 2
    assert folded(MAX_BY, {"x": plain, "y": values}) == 1
    for end in (0, 1):
        one = values.slice(end, 1)
        if pa.types.is_integer(kind):
            assert folded(FIRST, {"x": one}) == one[0].as_py()
            assert folded(MAX_BY, {"x": one, "y": one}) == one[0].as_py()
    assert folded(MAX_BY, {"x": plain.slice(0, 1), "y": values.slice(1, 1)}) == 1


@pytest.mark.parametrize(
    "values",
    [
        pa.array([math.nan, -0.0]),
        pa.array([-math.inf, 1.5], pa.float32()),
        pa.array([True, False]),
        pa.array([dt.date(1960, 2, 29), dt.date(2024, 2, 29)]),
        pa.array([Decimal("-12345678901234.5678"), Decimal(0)], pa.decimal128(18, 4)),
        pa.array([-1, 1], pa.timestamp("us", "UTC")),
    ],
)
def test_ordered_words_turn_back_into_their_values(values: pa.Array) -> None:
    expected = values.to_pylist()
    assert same(folded(FIRST, {"x": values}), expected[0])
    assert same(folded(LAST, {"x": values}), expected[1])


@pytest.mark.sample(48)
@pytest.mark.parametrize("aggregate", ALL, ids=lambda a: a.text)
@pytest.mark.parametrize("field", list(EVERY_INPUT), ids=EVERY_INPUT.names)
@pytest.mark.parametrize("seed", range(3))
def test_oracle_choices_do_not_depend_on_grouping(
    aggregate: Aggregate, field: pa.Field, seed: int
) -> None:
    if pa.types.is_decimal(field.type) and field.type.precision > 18:
        return
    dice = np.random.default_rng(seed)
    shape = StreamShape(nulls=0.3, specials=0.3)
    columns = {
        "x": random_column(field.type, 40, shape, dice),
        "y": random_column(pa.float64() if seed else field.type, 40, shape, dice),
    }
    if seed == 2:
        columns["y"] = pa.array(dice.choice([0.0, -0.0, math.nan, 1.0], 40))
    times = dice.integers(0, 12, 40).tolist()
    plain = {name: values.to_pylist() for name, values in columns.items()}
    events = [{"time": t, "x": plain["x"][i], "y": plain["y"][i]} for i, t in enumerate(times)]
    types = {name: values.type for name, values in columns.items()}
    expected = obvious(aggregate, events, types)
    for _ in range(4):
        cuts = dice.integers(0, 41, 4).tolist()
        found = folded(
            aggregate, columns, times=times, cuts=cuts, merged=dice.permutation(5).tolist()
        )
        assert same(found, expected), (found, expected)


drawn = st.lists(
    st.tuples(
        st.integers(-2, 2),
        st.none() | st.integers(-3, 3),
        st.none() | st.sampled_from([0.0, -0.0, 1.0, math.nan, math.inf, -math.inf]),
    ),
    min_size=1,
    max_size=12,
)


@pytest.mark.parametrize("aggregate", ALL, ids=lambda a: a.text)
@given(events=drawn, cut=st.integers(0, 12))
@settings(max_examples=60)
def test_oracle_choices_beside_sorting(
    aggregate: Aggregate, events: list[tuple[int, int | None, float | None]], cut: int
) -> None:
    columns = {
        "x": pa.array([x for _, x, _ in events], pa.int64()),
        "y": pa.array([y for _, _, y in events], pa.float64()),
    }
    found = folded(
        aggregate, columns, times=[t for t, _, _ in events], cuts=[min(cut, len(events))]
    )
    named = [{"time": t, "x": x, "y": y} for t, x, y in events]
    assert found == obvious(aggregate, named, {})


def test_types_that_fit_no_word_are_refused_with_advice() -> None:
    for function, others in (("first", ()), ("min_by", ("y",)), ("max_by", ("y",))):
        aggregate = Aggregate(function, "x", "alias", others)
        with pytest.raises(DefinitionError, match=r"'alias'\): use .*ice\.collect_set"):
            aggregate.fields({"x": pa.string(), "y": pa.int64()})
    with pytest.raises(DefinitionError, match=r"min_by of a string .*'alias'\): use"):
        Aggregate("min_by", "x", "alias", ("y",)).fields({"x": pa.int64(), "y": pa.string()})
