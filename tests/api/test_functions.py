from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import icestream as ice
from icestream.core.errors import DefinitionError

pytestmark = pytest.mark.spark

ONE = (
    "any_value", "approx_count_distinct", "avg", "collect_list", "collect_set", "count",
    "count_distinct", "first", "last", "max", "mean", "median", "min", "mode", "stddev",
    "stddev_pop", "stddev_samp", "sum", "var_pop", "var_samp", "variance",
)  # fmt: skip
PAIRS = ("corr", "count_distinct", "covar_pop", "covar_samp", "max_by", "min_by")
CONDITIONS = ("bool_and", "bool_or", "count_if", "every", "some")
FRACTIONS = ("approx_percentile", "percentile", "percentile_approx")


def _names(spark: SparkSession, *calls: Callable[[Any], Any]) -> tuple[list[str], list[str]]:
    """Return what Icestream and what Spark call the same functions."""
    df = spark.readStream.format("rate").load()
    windows = ice.stream(df, "timestamp").window("1 second")
    return (
        windows.agg(*(call(ice) for call in calls)).columns[1:],
        df.select(*(call(sf) for call in calls)).columns,
    )


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", ONE)
def test_results_are_named_as_sparks(name: str, spark: SparkSession) -> None:
    ours, theirs = _names(
        spark,
        lambda f: getattr(f, name)("value"),
        lambda f: getattr(f, name)(sf.col("value") + 1),
    )
    assert ours == theirs


def test_results_of_several_columns_and_literals_are_named_as_sparks(spark: SparkSession) -> None:
    shifted = sf.col("value") + 1
    calls: list[Callable[[Any], Any]] = [
        *(partial(_call, name, "value", shifted) for name in PAIRS),
        *(partial(_call, name, sf.col("value") > 3) for name in CONDITIONS),
        *(partial(_call, name, "value", 0.5) for name in ("percentile",)),
        *(partial(_call, name, shifted, [0.5, 1.0]) for name in ("percentile",)),
        *(partial(_call, name, "value", [0.5], 50) for name in FRACTIONS if "approx" in name),
        partial(_call, "first", shifted, True),
        partial(_call, "approx_count_distinct", shifted, 0.05),
    ]
    ours, theirs = _names(spark, *calls)
    assert ours == theirs


def _call(name: str, *arguments: Any) -> Any:
    *given, functions = arguments
    return getattr(functions, name)(*given)


def test_functions_that_spark_has_not_are_named_in_its_manner(spark: SparkSession) -> None:
    df = spark.readStream.format("rate").load()
    windows = ice.stream(df, "timestamp").window("1 second")
    spread = ice.UserAggregate(
        lift=lambda value: (value, value),
        combine=lambda a, b: (min(a[0], b[0]), max(a[1], b[1])),
        lower=lambda state: state[1] - state[0],
        result=pa.int64(),
        title="spread",
    )
    result = windows.agg(
        ice.weighted_avg("value", sf.col("value") + 1),
        ice.approx_top_k("value", 3),
        ice.user(spread, "value"),
    )
    names = ["weighted_avg(value, (value + 1))", "approx_top_k(value)", "spread(value)"]
    assert result.columns == ["window", *names]


def test_columns_of_several_functions_are_read_once(spark: SparkSession) -> None:
    df = spark.readStream.format("rate").load()
    windows = ice.stream(df, "timestamp").window("1 second")
    result = windows.agg(
        ice.corr("value", sf.col("value") + 1),
        ice.min_by(sf.col("value") + 1, "value"),
        ice.count(),
        ice.first("value", ignorenulls=True),
    )
    aggregates = result._built.plan.views[0].aggregates
    assert [each.text for each in aggregates] == [
        "corr(x0, x1)",
        "min_by(x1, x0)",
        "count(*)",
        "first(x0, True)",
    ]


def test_an_alias_names_the_result(spark: SparkSession) -> None:
    assert ice.count("x").alias("n").name == "n"


def test_what_is_no_column_is_refused(spark: SparkSession) -> None:
    with pytest.raises(DefinitionError, match="expected a column or its name; got 3"):
        ice.sum(3)  # type: ignore[arg-type]
