"""Sketches within the bounds that the library states, however the events were cut."""

from __future__ import annotations

import datasketches as ds
import numpy as np
import pyarrow as pa
import pytest

from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.object_aggregates.functions import function_of
from icestream.operators.object_aggregates.protocol import ObjectFunction

TYPES = {"whole": pa.int64(), "double": pa.float64(), "text": pa.string()}


def cut(function: ObjectFunction, values: pa.Array, parts: int) -> pa.Array:
    """Lift values in parts and combine them two at a time, as levels of nodes do."""
    size = -(-len(values) // parts)
    chunks = [values.slice(at, size) for at in range(0, len(values), size)]
    states = [
        function.lift([chunk], np.zeros(len(chunk), dtype=np.int64), np.array([0, len(chunk)]))
        for chunk in chunks
    ]
    while len(states) > 1:
        pairs = [pa.concat_arrays(states[at : at + 2]) for at in range(0, len(states), 2)]
        states = [function.combine(pair, np.array([0, len(pair)])) for pair in pairs]
    return states[0]


@pytest.mark.parametrize("lg_k", [8, 12])
def test_a_distinct_count_does_not_depend_on_the_cut(lg_k: int) -> None:
    function = function_of(Aggregate("approx_count_distinct", "whole", "a", (), (lg_k,)), TYPES)
    values = pa.array(np.random.default_rng(1).integers(0, 20_000, 30_000))
    answers = {function.lower(cut(function, values, parts))[0].as_py() for parts in (1, 2, 7, 64)}
    assert len(answers) == 1
    exact = len(np.unique(values))
    error = ds.hll_sketch.get_rel_err(True, True, lg_k, 3)
    assert answers.pop() == pytest.approx(exact, rel=abs(error))


def test_few_distinct_values_are_counted_exactly() -> None:
    function = function_of(Aggregate("approx_count_distinct", "text", "a"), TYPES)
    values = pa.array([f"value {n % 90}" for n in range(1000)])
    assert function.lower(cut(function, values, 9)).to_pylist() == [90]


@pytest.mark.parametrize("parts", [1, 50])
def test_a_sketch_is_within_its_own_bounds(parts: int) -> None:
    fractions = (0.01, 0.25, 0.5, 0.9, 0.99)
    call = Aggregate("approx_percentile", "double", "a", (), (fractions, 200))
    function = function_of(call, TYPES)
    values = np.random.default_rng(2).normal(size=50_000)
    (answers,) = function.lower(cut(function, pa.array(values), parts)).to_pylist()
    ranked = np.sort(values)
    ranks = np.searchsorted(ranked, answers, side="right") / len(ranked)
    # the library states the error with 99 % confidence; twice that never happens in practice
    assert np.abs(ranks - fractions).max() <= 2 * ds.kll_doubles_sketch.get_normalized_rank_error(
        200, False
    )


@pytest.mark.parametrize("parts", [1, 40])
def test_frequent_items_are_found_with_counts_within_the_error(parts: int) -> None:
    call = Aggregate("approx_top_k", "text", "a", (), (5, 100))
    function = function_of(call, TYPES)
    dice = np.random.default_rng(3)
    numbers = dice.zipf(1.5, 40_000) % 5000
    values = pa.array([f"item {n}" for n in numbers.tolist()])
    (answers,) = function.lower(cut(function, values, parts)).to_pylist()
    exact = dict(zip(*np.unique(values.to_pylist(), return_counts=True), strict=True))
    error = ds.frequent_strings_sketch.get_apriori_error(8, len(values))
    best = sorted(exact.values(), reverse=True)[:5]
    assert [each["count"] for each in answers] == pytest.approx(best, abs=error)
    for each in answers:
        assert each["count"] == pytest.approx(exact[each["item"]], abs=error)


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1, 2, 2, None], pa.int16()),
        pa.array([0.0, -0.0, 1.5, float("nan")]),
        pa.array([1, 2, 2], pa.int32()).cast(pa.date32()),
        pa.array([1, 2, 2], pa.timestamp("us", "UTC")),
        pa.array(["1.50", "1.50", "2.25"]).cast(pa.decimal128(30, 2)),
        pa.array([True, False, None]),
        pa.array([b"a", b"\xff"], pa.binary()),
    ],
    ids=lambda each: str(each.type),
)
def test_sketches_take_every_type_of_value(values: pa.Array) -> None:
    types = {"x": values.type}
    distinct = function_of(Aggregate("approx_count_distinct", "x", "a"), types)
    expected = 3 if pa.types.is_floating(values.type) else 2
    assert distinct.lower(cut(distinct, values, 2)).to_pylist() == [expected]
    if not pa.types.is_binary(values.type):
        top = function_of(Aggregate("approx_top_k", "x", "a"), types)
        answers = top.lower(cut(top, values, 2))
        assert answers.type == top.result
        counts = [each["count"] for each in answers.to_pylist()[0]]
        assert sum(counts) == len(values) - values.null_count
