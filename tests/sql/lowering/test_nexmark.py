"""Nexmark's statements as published, beside DuckDB over the same 20,000 events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import icestream as ice
from bench.nexmark.answers import STATEMENTS, answer, bag, determined
from bench.nexmark.events import Nexmark, side_input
from bench.nexmark.running import NUMBERS, registered, statement
from tests.fixtures.sql_runs import ran_here, streams_of

pytestmark = pytest.mark.spark

TABLES = {**Nexmark(20_000, rate=200).tables(), "side_input": side_input()}
#: the ones of every run; the others are slow
FIRST = ("q4", "q5", "q7", "q11", "q14", "q22")


@pytest.fixture(scope="module")
def sources(spark: SparkSession) -> dict[str, Any]:
    registered(spark)
    return streams_of(spark, TABLES, "dateTime")


def marked(number: str) -> Any:
    return pytest.param(number, marks=() if number in FIRST else pytest.mark.slow)


@pytest.mark.parametrize("number", [marked(number) for number in STATEMENTS])
def test_oracle_nexmark(number: str, sources: dict[str, Any], tmp_path: Path) -> None:
    query = ice.sql(statement(number), **sources)
    rows = ran_here(query, tmp_path, batches=3)
    assert determined(number, rows) == determined(number, answer(number, TABLES))


@pytest.mark.slow
@pytest.mark.parametrize("number", ["q4", "q5", "q7", "q8", "q20"])
@pytest.mark.parametrize("batches", [1, 9])
def test_oracle_batches_change_no_answer(
    number: str, batches: int, sources: dict[str, Any], tmp_path: Path
) -> None:
    rows = ran_here(ice.sql(statement(number), **sources), tmp_path, batches=batches)
    assert rows == answer(number, TABLES)


@pytest.mark.slow
@pytest.mark.parametrize("number", ["q5", "q7", "q8"])
def test_oracle_windows_append_each_row_once(
    number: str, sources: dict[str, Any], tmp_path: Path
) -> None:
    rows = ran_here(ice.sql(statement(number), **sources), tmp_path, mode="append")
    assert rows == answer(number, TABLES)


def test_all_statements_are_queries(sources: dict[str, Any]) -> None:
    kinds = {n: type(ice.sql(statement(n), **sources)).__name__ for n in NUMBERS}
    sparks = [number for number, kind in kinds.items() if kind == "DataFrame"]
    assert sparks == ["q0", "q1", "q2", "q10", "q13", "q14", "q21", "q22"]
    assert [number for number, kind in kinds.items() if kind == "Result"] == ["q11", "q12"]


def test_statements_for_spark_alone_have_the_rows_of_a_batch(sources: dict[str, Any]) -> None:
    query = ice.sql(statement("q13"), **sources)
    assert isinstance(query, DataFrame)
    assert bag([tuple(row) for row in query.collect()]) == answer("q13", TABLES)
