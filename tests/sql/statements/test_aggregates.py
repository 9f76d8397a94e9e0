"""Aggregates by their names in SQL, and what may be written around them."""

from __future__ import annotations

from typing import Any

import pytest

from icestream.core.errors import DefinitionError
from icestream.sql.relations.names import Functions
from icestream.sql.statements.aggregates import ABSENT, NAMES, SIGNATURES, AggregateCall
from tests.fixtures.cql_statements import NameScope, describe

SCOPE = NameScope(
    {"s": ["ts", "x", "y", "flag", "price", "volume"]}, Functions(frozenset(["spread"]))
)


def call(text: str) -> AggregateCall:
    [statement] = describe(f"SELECT {text} FROM s [TUMBLE 1 HOUR]", SCOPE)
    [found] = statement.aggregates.values()
    return found


#: a call, the function, what it looks at, its literals
CALLS: dict[str, tuple[str, tuple[str, ...], tuple[Any, ...]]] = {
    "COUNT(*)": ("count", (), ()),
    "count(1)": ("count", (), ()),
    "COUNT(x)": ("count", ("x",), ()),
    "COUNT(DISTINCT x + 1)": ("count_distinct", ("x + 1",), ()),
    "COUNT(DISTINCT x, y)": ("count_distinct", ("x", "y"), ()),
    "count_if(x > 1)": ("count_if", ("x > 1",), ()),
    "mode(x)": ("mode", ("x",), ()),
    "any_value(x)": ("first", ("x",), ()),
    "SUM(volume*price)": ("sum", ("volume * price",), ()),
    "avg(x)": ("avg", ("x",), ()),
    "mean(x)": ("avg", ("x",), ()),
    "min(x)": ("min", ("x",), ()),
    "max(upper(x))": ("max", ("upper(x)",), ()),
    "var_pop(x)": ("var_pop", ("x",), ()),
    "var_samp(x)": ("var_samp", ("x",), ()),
    "variance(x)": ("var_samp", ("x",), ()),
    "stddev_pop(x)": ("stddev_pop", ("x",), ()),
    "stddev_samp(x)": ("stddev_samp", ("x",), ()),
    "stddev(x)": ("stddev_samp", ("x",), ()),
    "std(x)": ("stddev_samp", ("x",), ()),
    "covar_pop(x, y)": ("covar_pop", ("x", "y"), ()),
    "covar_samp(x, y)": ("covar_samp", ("x", "y"), ()),
    "corr(x, y)": ("corr", ("x", "y"), ()),
    "weighted_avg(x, y)": ("weighted_avg", ("x", "y"), ()),
    "VWAP(price, volume)": ("weighted_avg", ("price", "volume"), ()),
    "min_by(x, y)": ("min_by", ("x", "y"), ()),
    "arg_min(x, y)": ("min_by", ("x", "y"), ()),
    "max_by(x, y)": ("max_by", ("x", "y"), ()),
    "arg_max(x, y)": ("max_by", ("x", "y"), ()),
    "first(x)": ("first", ("x",), ()),
    "first_value(x)": ("first", ("x",), ()),
    "first(x, false)": ("first", ("x",), ()),
    "first(x, true)": ("first", ("x",), (True,)),
    "first(x) IGNORE NULLS": ("first", ("x",), (True,)),
    "last(x) RESPECT NULLS": ("last", ("x",), ()),
    "last_value(x) IGNORE NULLS": ("last", ("x",), (True,)),
    "collect_list(x)": ("collect_list", ("x",), ()),
    "array_agg(x)": ("collect_list", ("x",), ()),
    "collect_set(x)": ("collect_set", ("x",), ()),
    "bool_and(flag)": ("bool_and", ("flag",), ()),
    "every(flag)": ("bool_and", ("flag",), ()),
    "bool_or(flag)": ("bool_or", ("flag",), ()),
    "some(flag)": ("bool_or", ("flag",), ()),
    "any(x > 1)": ("bool_or", ("x > 1",), ()),
    "median(x)": ("median", ("x",), ()),
    "percentile(x, 0.95)": ("percentile", ("x",), (0.95,)),
    "percentile(x, array(0.5, 1))": ("percentile", ("x",), ((0.5, 1),)),
    "percentile_cont(0.9) WITHIN GROUP (ORDER BY x)": ("percentile", ("x",), (0.9,)),
    "percentile_cont(0.9) WITHIN GROUP (ORDER BY x DESC)": ("percentile", ("x",), (0.1,)),
    "percentile_cont(array(0.9, 0.5)) WITHIN GROUP (ORDER BY x DESC)": (
        "percentile", ("x",), ((0.1, 0.5),),
    ),
    "approx_percentile(x, 0.5)": ("approx_percentile", ("x",), (0.5,)),
    "percentile_approx(x, 0.5, 1000)": ("approx_percentile", ("x",), (0.5, 1000)),
    "approx_count_distinct(x)": ("approx_count_distinct", ("x",), ()),
    "approx_count_distinct(x, 0.01)": ("approx_count_distinct", ("x",), (0.01,)),
    "approx_top_k(x, 5)": ("approx_top_k", ("x",), (5,)),
}  # fmt: skip


@pytest.mark.parametrize("text", CALLS)
def test_names_stand_for_functions(text: str) -> None:
    function, arguments, parameters = CALLS[text]
    assert call(text) == AggregateCall(function, arguments, parameters)


def test_every_name_is_tested() -> None:
    tested = {text.split("(")[0].lower() for text in CALLS}
    assert {*SIGNATURES} - tested == {"argmin", "argmax"}


def test_no_name_is_both_there_and_absent() -> None:
    assert not NAMES & set(ABSENT)


def test_the_users_functions_come_first() -> None:
    assert call("spread(price, volume * 2)") == AggregateCall(
        "spread", ("price", "volume * 2"), (), True
    )


FILTERED = {
    "COUNT(*) FILTER (WHERE x > 1)": AggregateCall("count", ("CASE WHEN x > 1 THEN 1 END",)),
    "SUM(y) FILTER (WHERE x > 1 OR flag)": AggregateCall(
        "sum", ("CASE WHEN x > 1 OR flag THEN y END",)
    ),
    "corr(x, y) FILTER (WHERE flag)": AggregateCall(
        "corr", ("CASE WHEN flag THEN x END", "CASE WHEN flag THEN y END")
    ),
    "first(x) FILTER (WHERE flag) IGNORE NULLS": AggregateCall(
        "first", ("CASE WHEN flag THEN x END",), (True,)
    ),
    "COUNT(DISTINCT x) FILTER (WHERE flag)": AggregateCall(
        "count_distinct", ("CASE WHEN flag THEN x END",)
    ),
    "percentile_cont(0.5) WITHIN GROUP (ORDER BY x) FILTER (WHERE flag)": AggregateCall(
        "percentile", ("CASE WHEN flag THEN x END",), (0.5,)
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", FILTERED)
def test_a_filter_becomes_a_conditional_argument(text: str) -> None:
    assert call(text) == FILTERED[text]


BAD = {
    "sum()": r"sum is called like sum\(x\)",
    "sum(x, y)": r"sum is called like sum\(x\)",
    "corr(x)": r"corr is called like corr\(x, y\)",
    "count()": r"COUNT\(\*\) or COUNT\(x\)",
    "percentile(x)": r"percentile\(x, 0.95\)",
    "percentile(x, y)": "percentile needs a literal here",
    "percentile_cont(0.5)": "WITHIN GROUP",
    "max_by(x, y, 3)": r"max_by\(x, y\)",
    "first(x, true, false)": "to skip nulls",
    "sum(DISTINCT x)": "DISTINCT is for COUNT only",
    "collect_list(DISTINCT x)": r"collect_set\(x\)",
    "array_agg(x ORDER BY y)": "order of the stream",
    "median(x) WITHIN GROUP (ORDER BY x)": "percentile_cont only",
    "sum(x) IGNORE NULLS": "is for first and last",
    "count(x) IGNORE NULLS": "is for first and last",
    "first(x) FILTER (WHERE flag)": "needs IGNORE NULLS",
    "spread(x) FILTER (WHERE flag)": "is your own",
    "sum(max(x))": "max is an aggregate, not allowed here",
    "sum(x) FILTER (WHERE max(x) > 1)": "max is an aggregate, not allowed here",
    "skewness(x)": "a function of your own",
    "string_agg(x, ',')": "collect_list",
    "percentile_disc(0.5) WITHIN GROUP (ORDER BY x)": "percentile_cont",
}


@pytest.mark.parametrize("text", BAD)
def test_calls_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises(DefinitionError, match=BAD[text]):
        call(text)
