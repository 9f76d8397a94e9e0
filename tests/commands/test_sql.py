from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from icestream.commands.sql import (
    FileStream,
    cell,
    plain,
    print_table,
    query_of,
    sql_command,
    statement,
)
from icestream.core.errors import DefinitionError

TEXT = "SELECT shop, COUNT(*) AS n FROM orders [RANGE 20 SECONDS SLIDE 10 SECONDS] GROUP BY shop"


def write(folder: Path, name: str, *seconds: int) -> None:
    folder.mkdir(exist_ok=True)
    times = [datetime(2026, 3, 1, 12, 0, second, tzinfo=UTC) for second in seconds]
    shops = ["Oslo" for _ in seconds]
    rows = pa.table({"at": pa.array(times, pa.timestamp("us", "UTC")), "shop": shops})
    pq.write_table(rows, folder / f"{name}.parquet")


def ask(
    folder: Path, *, output: Path | None = None, checkpoint: Path | None = None, **more: str
) -> None:
    source = FileStream(folder, more.get("format", "parquet"), "at", "0 seconds")
    sql_command(
        TEXT,
        source,
        memory="64 MB",
        output=output,
        checkpoint=checkpoint,
        follow=False,
        as_json="json" in more,
    )


@pytest.mark.spark
def test_oracle_a_statement_over_files_prints_its_rows(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    write(tmp_path / "orders", "a", 1, 2, 12)
    ask(tmp_path / "orders", json="yes")
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["window"]["start"][-2:], row["shop"], row["n"]) for row in rows] == [
        ("50", "Oslo", 2),
        ("00", "Oslo", 3),
        ("10", "Oslo", 1),
    ]


@pytest.mark.spark
def test_a_checkpoint_goes_on_where_it_stopped(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    orders, kept = tmp_path / "orders", tmp_path / "kept"
    write(orders, "a", 1, 12)
    ask(orders, checkpoint=kept)
    write(orders, "b", 25)
    ask(orders, checkpoint=kept)
    reported = [line.split("\t")[1:] for line in capsys.readouterr().out.splitlines()]
    assert reported == [["shop", "n"], ["Oslo", "1"], ["shop", "n"], ["Oslo", "2"]]


@pytest.mark.spark
def test_rows_go_to_files_if_asked_for(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "orders", "a", 1)
    ask(tmp_path / "orders", output=tmp_path / "out")
    assert pq.read_table(tmp_path / "out", columns=["n"]).num_rows == 2
    assert capsys.readouterr().out == ""


@pytest.mark.spark
def test_what_cannot_be_asked_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match="must be one of parquet"):
        ask(tmp_path, format="avro")
    with pytest.raises(DefinitionError, match=r"cannot be read as .* --schema"):
        ask(tmp_path)
    write(tmp_path / "orders", "a", 1)
    stream = FileStream(tmp_path / "orders", "parquet", "at", "0 seconds").stream(spark)
    for text in ("SELECT 1", "EXPLAIN", "WITH a AS (SELECT 1) SELECT * FROM a"):
        with pytest.raises(DefinitionError, match="must name its stream"):
            statement(text, stream)
    with pytest.raises(DefinitionError, match="one statement at a time"):
        statement(f"{TEXT}; {TEXT}", stream)


@pytest.mark.spark
@pytest.mark.parametrize(
    "text",
    [
        "SELECT extract(SECOND FROM at) AS s, COUNT(*) AS n FROM orders [TUMBLE 1 HOUR] GROUP BY 1",
        "SELECT ' from at' AS t, COUNT(*) AS n FROM orders [TUMBLE 1 HOUR]",
        "SELECT COUNT(*) AS n FROM TABLE(TUMBLE(TABLE orders, DESCRIPTOR(at), INTERVAL '1' HOUR))",
        "WITH a AS (SELECT * FROM orders) SELECT COUNT(*) AS n FROM a [TUMBLE 1 HOUR]",
    ],
)
def test_the_stream_is_found_in_any_statement(
    text: str, spark: SparkSession, tmp_path: Path
) -> None:
    write(tmp_path / "orders", "a", 1)
    stream = FileStream(tmp_path / "orders", "parquet", "at", "0 seconds").stream(spark)
    assert query_of(text, stream).columns[-1] == "n"


@pytest.mark.spark
def test_tables_with_values_of_any_type_are_printed(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = spark.sql("SELECT TIMESTAMP'2026-03-01' AS at, map('a', array(1)) AS m, X'78' AS b")
    rows.selectExpr("*", "struct(array(2) AS l) AS s").write.parquet(f"{tmp_path}/in")
    stream = FileStream(tmp_path / "in", "parquet", "at", "0 seconds").stream(spark)
    print_table(query_of("SELECT m, s, b FROM t", stream), f"{tmp_path}/chk", "64 MB", as_json=True)
    assert json.loads(capsys.readouterr().out) == {"m": {"a": [1]}, "s": {"l": [2]}, "b": "x"}


def test_values_are_written_for_people_and_for_programs() -> None:
    assert cell((1, None, "a")) == "1 ..  .. a"
    assert plain(datetime(2026, 1, 1)) == "2026-01-01T00:00:00"
    assert plain(b"ab") == "ab"
