"""Nexmark's statements for Spark: as published, or with the same rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bench.nexmark.answers import answer, determined
from bench.nexmark.events import Nexmark, side_input
from bench.nexmark.nexmark import BY_SPARK, CLOSED_LATER
from bench.nexmark.running import closing, for_spark, statement, written_tables
from bench.peers.spark_nexmark import KEYS, rows_of

COUNT, RATE, PARTS = 3_000, 60, 2
OWN = [name for name in BY_SPARK if for_spark(name) != statement(name)]


def test_spark_has_statements_of_its_own_where_it_reads_none_as_published() -> None:
    assert OWN == ["q5", "q7", "q8", "q9", "q11", "q12", "q13", "q15", "q16", "q18", "q19"]
    assert set(KEYS) <= {*OWN, "q17"}


@pytest.mark.spark
@pytest.mark.sample(2)
@pytest.mark.parametrize("name", OWN)
def test_oracle_sparks_statements_have_the_rows_of_duckdb(
    name: str, spark: SparkSession, tmp_path: Path
) -> None:
    events = Nexmark(COUNT, rate=RATE)
    tables = written_tables(events, tmp_path / "in", PARTS)
    if name in CLOSED_LATER:
        closing(tmp_path / "in", COUNT)
    wanted = answer(name, {**tables, "side_input": side_input()})
    found = rows_of(spark, name, tmp_path / "in", str(tmp_path / "checkpoint"))
    assert determined(name, found) == determined(name, wanted)
