"""Random statements beside DuckDB, in one batch and in nine with disorder, and as tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import icestream as ice
from icestream.sql.lowering.lower import Lowering
from tests.fixtures.sql_runs import by_duckdb, ran_here, streams_of, table_here
from tests.suites.random_statements import random_statement, random_tables

pytestmark = pytest.mark.spark

TABLES = random_tables(0)


@pytest.fixture(scope="module")
def sources(spark: SparkSession) -> dict[str, Any]:
    return streams_of(spark, TABLES, "ts")


def test_the_same_seed_draws_the_same_statement() -> None:
    assert random_statement(7) == random_statement(7)
    assert len({random_statement(seed).text for seed in range(50)}) > 45


@pytest.mark.sample(4)
@pytest.mark.parametrize("seed", range(400))
def test_oracle_random_statements(
    seed: int, sources: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as if the streams were of files, whose conditions are tested behind Spark
    monkeypatch.setattr(Lowering, "_is_of_files", lambda *_: seed % 2 == 0)
    statement = random_statement(seed)
    expected = by_duckdb(statement.duckdb, TABLES)
    query = ice.sql(statement.text, **sources)
    for batches in (1, 9):
        assert ran_here(query, tmp_path, batches=batches, disorder=seed) == expected
    assert table_here(query, tmp_path, disorder=seed) == expected
