from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import icestream as ice
from icestream.core.errors import DefinitionError

pytestmark = pytest.mark.spark

NAMES = (
    "avg", "count", "max", "mean", "min", "stddev", "stddev_pop", "stddev_samp", "sum", "var_pop",
    "var_samp", "variance",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_results_are_named_as_sparks(name: str, spark: SparkSession) -> None:
    df = spark.readStream.format("rate").load()
    windows = ice.stream(df, "timestamp").window("1 second")
    ours = windows.agg(getattr(ice, name)("value"), getattr(ice, name)(sf.col("value") + 1))
    theirs = df.select(getattr(sf, name)("value"), getattr(sf, name)(sf.col("value") + 1))
    assert ours.columns == ["window", *theirs.columns]


def test_an_alias_names_the_result(spark: SparkSession) -> None:
    assert ice.count("x").alias("n").name == "n"


def test_what_is_no_column_is_refused(spark: SparkSession) -> None:
    with pytest.raises(DefinitionError, match="expected a column or its name; got 3"):
        ice.sum(3)  # type: ignore[arg-type]
