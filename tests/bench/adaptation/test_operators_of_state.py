from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from bench.adaptation.operators_of_state import OPERATORS, SCHEMA


@pytest.mark.spark
def test_every_query_can_be_asked(spark: SparkSession) -> None:
    frame = (
        spark.readStream.format("rate").load().selectExpr("timestamp AS ts", "0L AS key", "value")
    )
    assert [(f.name, f.dataType.simpleString()) for f in frame.schema] == [
        tuple(column.split()) for column in SCHEMA.split(", ")
    ]
    for name, kept in OPERATORS.items():
        assert kept.query(frame).writeStream is not None, name


def test_rows_that_depend_on_time_are_those_of_updates() -> None:
    assert [name for name, kept in OPERATORS.items() if kept.last_rows] == [
        "updates",
        "update windows",
    ]
