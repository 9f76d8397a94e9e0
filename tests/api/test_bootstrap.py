from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import icestream as ice
from icestream.api.writer import StreamWriter
from icestream.core.errors import CheckpointError, DefinitionError
from icestream.inspect.access.adapter_protocol import as_text
from icestream.inspect.state_rows import Reading

pytestmark = pytest.mark.spark

SECOND = 1_000_000
SCHEMA = "at timestamp, key long, value long"


def write(folder: Path, first: int, last: int, seed: int) -> Path:
    """Write events of some seconds, a little out of order."""
    folder.mkdir()
    dice = np.random.default_rng(seed)
    at = dice.integers(first * SECOND, last * SECOND, 400)
    at = at[np.argsort(at + dice.integers(0, 2 * SECOND, 400))]
    columns = {
        "at": pa.array(at, pa.timestamp("us", "UTC")),
        "key": dice.integers(0, 9, 400),
        "value": dice.integers(0, 100, 400),
    }
    pq.write_table(pa.table(columns), folder / "part.parquet")
    return folder


def sliding(df: DataFrame) -> StreamWriter:
    events = ice.stream(df, time="at", slack="5 seconds")
    windows = events.window("60 seconds", "10 seconds").groupBy("key")
    return windows.agg(ice.count("*").alias("n"), ice.max("value").alias("most")).writeStream


def sessions(df: DataFrame) -> StreamWriter:
    events = ice.stream(df, time="at", slack="5 seconds")
    return events.session("3 seconds").groupBy("key").count().writeStream


def totals(df: DataFrame) -> StreamWriter:
    events = ice.stream(df, time="at", slack="5 seconds").events()
    summed = events.groupApply("key", lambda group: group.agg(ice.sum("value").alias("s")))
    return summed.writeStream


QUERIES: dict[str, Callable[[DataFrame], StreamWriter]] = {
    "windows": sliding,
    "sessions": sessions,
    "groups": totals,
}


def placed(writer: StreamWriter, folder: Path) -> StreamWriter:
    writer = writer.option("checkpointLocation", str(folder / "chk")).shards(2)
    return writer.memory("64 MB").trigger(availableNow=True)


def state(folder: Path) -> list[str]:
    batches = Reading(str(folder / "chk")).batches()
    rows = [row for batch in batches for row in batch.to_pylist()]
    return sorted(as_text(row) for row in rows)


@pytest.mark.parametrize(
    "query",
    ["windows", *(pytest.param(each, marks=pytest.mark.slow) for each in ("sessions", "groups"))],
)
def test_oracle_history_leaves_the_state_that_streaming_it_leaves(
    spark: SparkSession, query: str, tmp_path: Path
) -> None:
    made, begun, whole = QUERIES[query], tmp_path / "begun", tmp_path / "whole"
    older, newer = write(tmp_path / "1", 0, 100, 1), write(tmp_path / "2", 95, 200, 2)
    history = spark.read.schema(SCHEMA).parquet(str(older))
    assert placed(made(history), begun).bootstrap() == 400
    streamed = tmp_path / "streamed"
    streamed.mkdir()

    def run(source: Path, folder: Path) -> None:
        stream = spark.readStream.schema(SCHEMA).parquet(str(source))
        placed(made(stream), folder).format("noop").start().awaitTermination()

    shutil.copy(older / "part.parquet", streamed / "1.parquet")
    run(streamed, whole)
    assert state(begun) == state(whole)
    shutil.copy(newer / "part.parquet", streamed / "2.parquet")
    run(streamed, whole)
    run(newer, begun)
    assert state(begun) == state(whole)
    assert len(state(whole)) > 5


def test_history_that_closes_windows_reports_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    older, newer = write(tmp_path / "1", 0, 100, 1), write(tmp_path / "2", 100, 200, 2)
    history = spark.read.schema(SCHEMA).parquet(str(older))
    placed(sliding(history), tmp_path).bootstrap()
    reported: list[Any] = []

    def keep(rows: DataFrame, version: int) -> None:
        reported.extend(rows.collect())

    stream = spark.readStream.schema(SCHEMA).parquet(str(newer))
    writer = placed(sliding(stream), tmp_path).option("flush", True).foreachBatch(keep)
    writer.start().awaitTermination()
    both = spark.read.schema(SCHEMA).parquet(str(older), str(newer))
    batch = {
        (row.window.end, row.key): (row.n, row.most)
        for row in both.selectExpr("window(at, '60 seconds', '10 seconds') window", "key", "value")
        .groupBy("window", "key")
        .agg({"*": "count", "value": "max"})
        .toDF("window", "key", "n", "most")
        .collect()
    }
    found = {(row.window.end, row.key): (row.n, row.most) for row in reported}
    closed = min(end for end, _ in found)
    assert found == {at: value for at, value in batch.items() if at[0] >= closed}
    assert closed > min(end for end, _ in batch)


def test_history_comes_before_the_first_batch(spark: SparkSession, tmp_path: Path) -> None:
    older = write(tmp_path / "1", 0, 100, 1)
    stream = spark.readStream.schema(SCHEMA).parquet(str(older))
    placed(sliding(stream), tmp_path).format("noop").start().awaitTermination()
    history = spark.read.schema(SCHEMA).parquet(str(older))
    with pytest.raises(CheckpointError, match="history must come before the first"):
        placed(sliding(history), tmp_path).bootstrap()


def test_a_stream_is_started_and_a_batch_is_history(spark: SparkSession, tmp_path: Path) -> None:
    older = write(tmp_path / "1", 0, 100, 1)
    with pytest.raises(DefinitionError, match=r"this query is over a stream: define it over a"):
        placed(sliding(spark.readStream.schema(SCHEMA).parquet(str(older))), tmp_path).bootstrap()
    with pytest.raises(DefinitionError, match=r"spark.readStream instead of spark.read"):
        placed(sliding(spark.read.schema(SCHEMA).parquet(str(older))), tmp_path).format(
            "noop"
        ).start()
