from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from bench.joins.multi_join_agreement import ExpectedResults, expected, of_csv, of_parquet
from bench.multi_join_rows import STREAMS

ROWS = 9_000


@pytest.fixture(scope="module")
def joined() -> pa.Table:
    with duckdb.connect() as connection:
        for stream in STREAMS:
            connection.register(stream.name, stream.table(0, ROWS).drop_columns(["ts"]))
        found: pa.Table = connection.sql(
            "SELECT a_id, b_id, c_id, d_id, e_id FROM a, b, c, d, e "
            "WHERE a1 = b1 AND b1 = c1 AND c2 = d1 AND d2 = e1"
        ).to_arrow_table()
        return found


def written(rows: pa.Table, folder: Path) -> ExpectedResults:
    folder.mkdir()
    pq.write_table(rows, folder / "rows.parquet")
    return of_parquet(folder)


def test_oracle_expected_results_are_those_of_duckdb(joined: pa.Table, tmp_path: Path) -> None:
    assert joined.num_rows > 1_000
    assert written(joined, tmp_path / "whole") == expected(ROWS)
    csv.write_csv(joined, tmp_path / "part-0", csv.WriteOptions(include_header=False))
    (tmp_path / "whole" / "rows.parquet").unlink()
    assert of_csv(tmp_path) == expected(ROWS)


def test_a_wrong_result_shows(joined: pa.Table, tmp_path: Path) -> None:
    missing = joined.slice(1)
    twice = pa.concat_tables([missing, joined.slice(5, 1)])
    swapped = joined.rename_columns(["b_id", "a_id", "c_id", "d_id", "e_id"])
    for place, rows in enumerate((missing, twice, swapped)):
        assert written(rows, tmp_path / str(place)) != expected(ROWS)
