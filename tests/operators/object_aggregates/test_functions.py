"""Every object function beside the obvious computation, cut and combined in any way."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.core.errors import DefinitionError, InputError
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.object_aggregates.functions import (
    function_of,
    is_object,
    needs_objects,
    result_type,
)
from icestream.operators.object_aggregates.user_aggregates import UserAggregate
from tests.oracles.object_aggregates import obvious_answer, settled

TYPES: dict[str, pa.DataType] = {
    "double": pa.float64(),
    "whole": pa.int32(),
    "text": pa.string(),
    "wide": pa.decimal128(38, 3),
    "instant": pa.timestamp("us", "UTC"),
    "flag": pa.bool_(),
    "list": pa.list_(pa.int64()),
    "count": pa.int16(),
}

TEXTS = UserAggregate(
    lambda text, whole: None if text is None else (text, whole or 0),
    max,
    lambda state: f"{state[0]}{state[1]}",
    pa.string(),
)

CASES = (
    Aggregate("collect_list", "text", "a"),
    Aggregate("collect_list", "list", "a"),
    Aggregate("collect_set", "double", "a"),
    Aggregate("collect_set", "flag", "a"),
    Aggregate("count_distinct", "wide", "a"),
    Aggregate("count_distinct", "text", "a", ("whole",)),
    Aggregate("percentile", "double", "a", (), (0.3,)),
    Aggregate("percentile", "wide", "a", (), ((0.0, 0.5, 1.0),)),
    Aggregate("percentile", "double", "a", ("count",), (0.7,)),
    Aggregate("median", "whole", "a"),
    Aggregate("mode", "text", "a"),
    Aggregate("mode", "double", "a"),
    Aggregate("min", "text", "a"),
    Aggregate("max", "wide", "a"),
    Aggregate("first", "text", "a"),
    Aggregate("first", "text", "a", (), (True,)),
    Aggregate("last", "list", "a"),
    Aggregate("last", "instant", "a", (), (True,)),
    Aggregate("min_by", "text", "a", ("double",)),
    Aggregate("max_by", "list", "a", ("text",)),
    Aggregate("approx_count_distinct", "text", "a"),
    Aggregate("approx_percentile", "double", "a", (), ((0.1, 0.5),)),
    Aggregate("approx_top_k", "text", "a", (), (2,)),
    Aggregate("approx_top_k", "whole", "a", (), (3, 50)),
    Aggregate("user", "text", "a", ("whole",), (TEXTS,)),
)

Event = dict[str, Any]


def _or_null(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), values)


EVENTS = st.fixed_dictionaries(
    {
        "time": st.integers(0, 4),
        "double": _or_null(st.sampled_from((-0.0, 0.0, math.nan, math.inf, -2.5, 1.0, 3.25))),
        "whole": _or_null(st.integers(-3, 3)),
        "count": _or_null(st.integers(0, 3)),
        "text": _or_null(st.sampled_from(("", "a", "b", "aa", "é"))),
        "wide": _or_null(st.integers(-4, 4).map(lambda n: Decimal(n * 10**30).scaleb(-3))),
        "instant": _or_null(st.integers(0, 3).map(lambda n: datetime(2020, 1, 1 + n, tzinfo=UTC))),
        "flag": _or_null(st.booleans()),
        "list": _or_null(st.lists(st.integers(0, 2), max_size=2)),
    }
)


def lifted(aggregate: Aggregate, groups: Sequence[Sequence[Event]]) -> pa.Array:
    """Lift groups of events that come in arrival order."""
    ordered = [event for group in groups for event in sorted(group, key=lambda e: e["time"])]
    bounds = np.cumsum([0, *(len(group) for group in groups)])
    columns = [
        pa.array([event[name] for event in ordered], TYPES[name]) for name in aggregate.columns
    ]
    times = np.array([event["time"] for event in ordered], dtype=np.int64)
    return function_of(aggregate, TYPES).lift(columns, times, bounds)


def combined(aggregate: Aggregate, parts: Sequence[pa.Array], groups: int) -> pa.Array:
    """Combine the states of all groups, given by arrival."""
    together = pa.concat_arrays(parts)
    order = [part * groups + group for group in range(groups) for part in range(len(parts))]
    bounds = np.arange(groups + 1) * len(parts)
    return function_of(aggregate, TYPES).combine(together.take(pa.array(order)), bounds)


def shown(answers: pa.Array) -> list[Any]:
    """Return answers so that equal ones are equal, NaN too."""
    rows = settled((0, 0, value) for value in answers.to_pylist())
    return ["NaN" if value != value else value for _, _, value in rows]


@pytest.mark.sample(12)
@pytest.mark.parametrize("aggregate", CASES, ids=lambda each: each.text)
@given(st.lists(st.lists(EVENTS, min_size=1, max_size=9), min_size=1, max_size=3))
@settings(max_examples=25)
def test_oracle_every_function_equals_the_obvious_one(
    aggregate: Aggregate, groups: list[list[Event]]
) -> None:
    function = function_of(aggregate, TYPES)
    states = lifted(aggregate, groups)
    assert states.type == function.state
    answers = function.lower(states)
    assert answers.type == function.result == result_type(aggregate, TYPES)
    expected = [obvious_answer(aggregate, group) for group in groups]
    assert shown(answers) == shown(pa.array(expected, function.result))


@pytest.mark.sample(10)
@pytest.mark.parametrize("aggregate", CASES, ids=lambda each: each.text)
@given(
    st.lists(
        st.lists(st.lists(EVENTS, min_size=1, max_size=4), min_size=2, max_size=2),
        min_size=1,
        max_size=4,
    ),
    st.data(),
)
@settings(max_examples=25)
def test_parity_combining_any_cut_of_the_events(
    aggregate: Aggregate, parts: list[list[list[Event]]], data: st.DataObject
) -> None:
    """Parts are combined in one go, and one after the other in any bracketing."""
    function = function_of(aggregate, TYPES)
    whole = [[event for part in parts for event in part[group]] for group in range(2)]
    expected = shown(function.lower(lifted(aggregate, whole)))
    states = [lifted(aggregate, part) for part in parts]
    assert shown(function.lower(combined(aggregate, states, 2))) == expected
    while len(states) > 1:
        at = data.draw(st.integers(0, len(states) - 2))
        states[at : at + 2] = [combined(aggregate, states[at : at + 2], 2)]
    assert shown(function.lower(states[0])) == expected


@pytest.mark.parametrize("aggregate", CASES, ids=lambda each: each.text)
def test_a_group_of_nulls_has_sparks_answer(aggregate: Aggregate) -> None:
    nothing: Event = dict.fromkeys((*TYPES, "count"))
    states = lifted(aggregate, [[nothing | {"time": 1}, nothing | {"time": 2}]])
    found = function_of(aggregate, TYPES).lower(states).to_pylist()
    if aggregate.function in ("count_distinct", "approx_count_distinct"):
        assert found == [0]
    elif aggregate.function in ("collect_list", "collect_set", "approx_top_k"):
        assert found == [[]]
    else:
        assert found == [None]


@pytest.mark.parametrize("aggregate", CASES, ids=lambda each: each.text)
@given(st.lists(st.lists(EVENTS, min_size=1, max_size=4), min_size=3, max_size=3))
@settings(max_examples=10)
def test_states_survive_the_log(aggregate: Aggregate, groups: list[list[Event]]) -> None:
    states = lifted(aggregate, groups)
    batch = pa.record_batch([states], names=["s"])
    read = pa.ipc.read_record_batch(batch.slice(1).serialize(), batch.schema).column(0)
    function = function_of(aggregate, TYPES)
    assert shown(function.lower(read)) == shown(function.lower(states))[1:]


@given(st.lists(EVENTS, min_size=1, max_size=30))
def test_oracle_duckdb_agrees(events: list[Event]) -> None:
    plain = [e for e in events if e["double"] is None or math.isfinite(e["double"])]
    if not plain:
        return
    table = pa.table(
        {name: pa.array([e[name] for e in plain], TYPES[name]) for name in ("double", "text")}
    )
    connection = duckdb.connect()
    connection.register("events", table)
    (row,) = connection.execute(
        "SELECT median(double), quantile_cont(double, 0.3), count(DISTINCT text),"
        " list_sort(list(text) FILTER (text IS NOT NULL)), max(text) FROM events"
    ).fetchall()
    calls = (
        Aggregate("median", "double", "a"),
        Aggregate("percentile", "double", "a", (), (0.3,)),
        Aggregate("count_distinct", "text", "a"),
        Aggregate("collect_list", "text", "a"),
        Aggregate("max", "text", "a"),
    )
    found = [function_of(each, TYPES).lower(lifted(each, [plain])).to_pylist()[0] for each in calls]
    assert found[:2] == [None if v is None else pytest.approx(v, abs=1e-12) for v in row[:2]]
    assert (found[2], sorted(found[3], key=str.encode), found[4]) == (row[2], row[3] or [], row[4])


@pytest.mark.parametrize(
    ("values", "fraction", "of_spark"),
    [
        ((0.1, 0.7), 0.3, 0.28),
        ((-math.inf, -math.inf, 0.0), 0.75, math.nan),
        ((-math.inf, 1.0), 0.0, -math.inf),
        ((1.0, math.inf), 0.5, math.inf),
    ],
)
def test_parity_percentiles_are_rounded_as_by_spark(
    values: tuple[float, ...], fraction: float, of_spark: float
) -> None:
    call = Aggregate("percentile", "double", "a", (), (fraction,))
    events = [dict.fromkeys(TYPES) | {"time": 0, "double": value} for value in values]
    found = function_of(call, TYPES).lower(lifted(call, [events])).to_pylist()
    assert shown(pa.array(found)) == shown(pa.array([of_spark]))


def test_equal_times_stay_in_the_order_of_arrival() -> None:
    call = Aggregate("collect_list", "text", "a")
    early, late = lifted(call, [[_event(1, "a"), _event(2, "b")]]), lifted(call, [[_event(1, "c")]])
    function = function_of(call, TYPES)
    assert function.lower(combined(call, [early, late], 1)).to_pylist() == [["a", "c", "b"]]
    assert function.lower(combined(call, [late, early], 1)).to_pylist() == [["c", "a", "b"]]


def _event(time: int, text: str) -> Event:
    return dict.fromkeys(TYPES) | {"time": time, "text": text}


def test_words_are_left_to_words() -> None:
    for call, ours, must in (
        (Aggregate("min", "double", "a"), False, False),
        (Aggregate("min", "text", "a"), True, True),
        (Aggregate("max", "wide", "a"), True, True),
        (Aggregate("first", "double", "a"), True, False),
        (Aggregate("first", "text", "a"), True, True),
        (Aggregate("max_by", "double", "a", ("text",)), True, True),
        (Aggregate("sum", "double", "a"), False, False),
        (Aggregate("count", None, "a"), False, False),
        (Aggregate("median", "double", "a"), True, True),
    ):
        assert is_object(call, TYPES) is ours, call.text
        assert needs_objects(call, TYPES) is must, call.text
    assert result_type(Aggregate("sum", "whole", "a"), TYPES) == pa.int64()


@pytest.mark.parametrize(
    "aggregate",
    [
        Aggregate("percentile", "text", "a", (), (0.5,)),
        Aggregate("percentile", "double", "a", (), (95,)),
        Aggregate("percentile", "double", "a"),
        Aggregate("percentile", "double", "a", ("double",), (0.5,)),
        Aggregate("median", "flag", "a"),
        Aggregate("count_distinct", "list", "a"),
        Aggregate("min", "list", "a"),
        Aggregate("max_by", "double", "a", ("list",)),
        Aggregate("max_by", "double", "a"),
        Aggregate("approx_count_distinct", "text", "a", (), (40,)),
        Aggregate("approx_percentile", "double", "a", (), (0.5, 1)),
        Aggregate("approx_top_k", "text", "a", (), ("x",)),
        Aggregate("approx_top_k", "text", "a", (), (5, 3)),
        Aggregate("user", "text", "a", (), (max,)),
    ],
    ids=lambda each: each.text,
)
def test_what_has_no_meaning_is_refused_by_name(aggregate: Aggregate) -> None:
    with pytest.raises(DefinitionError, match="'a'"):
        result_type(aggregate, TYPES)


def test_a_negative_frequency_is_an_error() -> None:
    call = Aggregate("percentile", "double", "a", ("count",), (0.5,))
    event: Mapping[str, Any] = {"time": 0, "double": 1.0, "count": -1}
    with pytest.raises(InputError, match="negative"):
        lifted(call, [[dict(event)]])
