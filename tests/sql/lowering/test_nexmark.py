"""Nexmark's statements as published, beside DuckDB over the same 6,000 events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import icestream as ice
from bench.nexmark.answers import STATEMENTS, answer, bag, determined
from bench.nexmark.events import Nexmark, side_input
from bench.nexmark.page import explained, section
from bench.nexmark.running import NUMBERS, registered, statement
from bench.nexmark.running import TABLES as KEYED
from tests.fixtures.sql_runs import ran_here, streams_of, table_here

pytestmark = pytest.mark.spark

TABLES = {**Nexmark(6_000, rate=60).tables(), "side_input": side_input()}
#: how the same events come
WAYS: dict[str, dict[str, Any]] = {
    "in 1 batch": {"batches": 1},
    "in 9 batches": {"batches": 9},
    "in 90 batches": {"batches": 90},
    "out of order": {"batches": 9, "disorder": 1},
    "with the least memory": {"batches": 9, "memory": None},
}


@pytest.fixture(scope="module")
def sources(spark: SparkSession) -> dict[str, Any]:
    registered(spark)
    return streams_of(spark, TABLES, "dateTime")


@pytest.mark.sample(6)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("number", STATEMENTS)
def test_oracle_nexmark(number: str, way: str, sources: dict[str, Any], tmp_path: Path) -> None:
    rows = ran_here(ice.sql(statement(number), **sources), tmp_path, **WAYS[way])
    assert determined(number, rows) == determined(number, answer(number, TABLES))


@pytest.mark.sample(2)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("number", KEYED)
def test_oracle_tables_by_key_hold_the_rows_of_nexmark(
    number: str, way: str, sources: dict[str, Any], tmp_path: Path
) -> None:
    rows = table_here(ice.sql(statement(number), **sources), tmp_path, **WAYS[way])
    assert determined(number, rows) == determined(number, answer(number, TABLES))


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


def test_the_page_shows_what_explain_returns(sources: dict[str, Any]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "nexmark.md").read_text()
    for number in NUMBERS:
        assert section(number, explained(number, sources)) in page


def test_statements_for_spark_alone_have_the_rows_of_a_batch(sources: dict[str, Any]) -> None:
    query = ice.sql(statement("q13"), **sources)
    assert isinstance(query, DataFrame)
    assert bag([tuple(row) for row in query.collect()]) == answer("q13", TABLES)
