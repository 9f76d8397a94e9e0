"""Jobs on Spark: what is written is what plain Python computes; several results are one query."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import icestream as ice
from icestream.core.errors import DefinitionError
from tests.fixtures.parquet_feed import Feed

MINUTE = 60_000_000


def _loans(count: int = 600) -> pa.Table:
    dice = np.random.default_rng(5)
    times = np.sort(dice.integers(0, 40 * MINUTE, count))
    return pa.table(
        {
            "at": pa.array(times).cast(pa.timestamp("us", "UTC")),
            "area": pa.array([f"a{number}" for number in dice.integers(0, 5, count)]),
            "amount": dice.integers(1, 50, count) / 2,
        }
    )


def doubled(row: dict[str, Any]) -> dict[str, Any]:
    return {"twice": 2 * row["amount"]}


def add(state: dict[str, Any], tuples: Any) -> list[Any]:
    return [state["n"] + tuples.sizes, state["total"] + tuples.reduce(np.add, "twice")]


def merge(partials: Any) -> list[Any]:
    return [partials.reduce(np.add, "n"), partials.reduce(np.add, "total")]


def _results(spark: SparkSession, folder: Path, table: pa.Table) -> tuple[ice.Tuples, ice.Tuples]:
    stream = ice.stream(Feed(spark, str(folder / "in"), table).stream(), time="at")
    areas = (
        ice.job(stream)
        .map(doubled)
        .compute(add, key="area", initial={"n": 0, "total": 0.0}, vectorised=True)
        .consolidate(merge, windows=["5 minutes", "20 minutes"], vectorised=True)
    )
    return areas, areas.consolidate(
        merge, windows="20 minutes", key=(), vectorised=True, name="everyone"
    )


@pytest.mark.spark
def test_oracle_several_results_of_a_job_are_one_query(spark: SparkSession, tmp_path: Path) -> None:
    table = _loans()
    areas, everyone = _results(spark, tmp_path, table)
    query = ice.start(
        areas.writeStream.option("path", str(tmp_path / "areas")),
        everyone.writeStream.option("path", str(tmp_path / "everyone")),
        checkpointLocation=str(tmp_path / "chk"),
        memory="64 MB",
        shards=2,
        trigger={"availableNow": True},
        flush=True,
    )
    query.awaitTermination()
    expected: dict[Any, list[float]] = {}
    times = table["at"].cast(pa.int64()).to_pylist()
    for at, row in zip(times, table.to_pylist(), strict=True):
        for length, key in ((5, row["area"]), (20, row["area"]), (20, None)):
            start = at // (length * MINUTE) * length * MINUTE
            found = expected.setdefault((key, start, start + length * MINUTE), [0, 0.0])
            found[0] += 1
            found[1] += 2 * row["amount"]
    reported: dict[Any, list[float]] = {}
    for name in ("areas", "everyone"):
        rows = pq.read_table(tmp_path / name)
        span = rows["lifetime"].combine_chunks()
        keys = rows["area"].to_pylist() if name == "areas" else [None] * len(rows)
        edges = [
            span.field(edge).cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
            for edge in ("start", "end")
        ]
        values = zip(rows["n"].to_pylist(), rows["total"].to_pylist(), strict=True)
        reported |= dict(zip(zip(keys, *edges, strict=True), map(list, values), strict=True))
    assert reported == expected


def _reported(path: Path) -> list[tuple[Any, ...]]:
    rows = pq.read_table(path)
    return sorted(tuple(map(str, row.values())) for row in rows.to_pylist())


@pytest.mark.slow
@pytest.mark.spark
def test_parity_fusions_that_flip_on_spark_give_equal_results(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Operators run together and apart from batch to batch, and the query is started again."""
    table = _loans()
    parts = [table.slice(first, 150) for first in range(0, 600, 150)]
    ways: list[Any] = ["none", [["add", "merge"]], "none", [["add", "merge"]]]
    fused: list[Any] = []
    for name in ("fixed", "flipping"):
        folder = tmp_path / name
        feed = Feed(spark, str(folder / "in"), parts[0].slice(0, 0))
        stream = ice.stream(feed.stream(), time="at")
        job = (
            ice.job(stream)
            .map(doubled)
            .compute(add, key="area", initial={"n": 0, "total": 0.0}, vectorised=True)
            .consolidate(merge, windows=["5 minutes", "20 minutes"], vectorised=True)
        )
        writer = (
            job.fused("none")
            .writeStream.option("path", str(folder / "out"))
            .option("checkpointLocation", str(folder / "chk"))
            .memory("64 MB")
            .shards(2)
        )
        query = writer.start()
        for at, part in enumerate(parts):
            if name == "flipping":
                query.fuse(ways[at])
            feed.add(part)
            query.processAllAvailable()
            progress = query.lastProgress
            assert progress is not None
            fused.append(progress["icestream"]["fused"])
            if at == 2:
                query.stop()
                query = writer.start()
        query.stop()
    assert _reported(tmp_path / "flipping" / "out") == _reported(tmp_path / "fixed" / "out")
    assert _reported(tmp_path / "fixed" / "out")
    assert [["add", "merge"]] in fused
    assert [["add"], ["merge"]] in fused


@pytest.mark.spark
def test_drawings_have_every_operator_and_exchange(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    areas, everyone = _results(spark, tmp_path, _loans(10))
    areas.explain(everyone, svg=tmp_path / "job.svg")
    text, drawing = capsys.readouterr().out, (tmp_path / "job.svg").read_text()
    for name in ("doubled", "add", "merge", "everyone"):
        assert name in text
        assert drawing.count(f">{name}<") == 1
    assert text.count("exchange from") == 2
    assert drawing.count('stroke-width="3"') == 2
    assert "component 0, partitioned by area; stateful, rigid" in text


@pytest.mark.spark
def test_results_of_other_kinds_are_not_started_with_a_job(
    spark: SparkSession, tmp_path: Path
) -> None:
    areas, _ = _results(spark, tmp_path, _loans(10))
    stream = ice.stream(Feed(spark, str(tmp_path / "other"), _loans(10)).stream(), time="at")
    counts = stream.window("5 minutes").groupBy("area").count()
    with pytest.raises(DefinitionError, match="of the same job"):
        ice.start(
            areas.writeStream.option("path", str(tmp_path / "a")),
            counts.writeStream.option("path", str(tmp_path / "b")),
            checkpointLocation=str(tmp_path / "chk"),
        )
    with pytest.raises(DefinitionError, match="union takes other tuples"):
        areas.union(counts)  # type: ignore[arg-type]
