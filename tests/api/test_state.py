from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import icestream as ice
from icestream.core.errors import CheckpointError
from icestream.inspect.access.adapter_protocol import as_text
from icestream.inspect.state_rows import Reading, write_parquet
from tests.fixtures.checkpoints import make
from tests.fixtures.parquet_feed import Feed

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    ("kind", "kept"), [("tumbling", None), ("pairs", None), ("pairs", "0: left")]
)
def test_a_data_frame_has_the_rows_of_an_export(
    spark: SparkSession, kind: str, kept: str | None, tmp_path: Path
) -> None:
    root = make(kind, str(tmp_path))
    frame = ice.read_state(spark, root, kept=kept)
    target = tmp_path / "state.parquet"
    write_parquet(Reading(root, kept=kept), target)
    exported = pq.read_table(target)
    assert frame.columns == exported.schema.names
    assert Counter(map(as_text, frame.toArrow().to_pylist())) == Counter(
        map(as_text, exported.to_pylist())
    )
    older = ice.read_state(spark, root, version=4, kept=kept)
    assert older.columns == frame.columns
    assert older.toArrow() != frame.toArrow()


def test_a_data_frame_becomes_the_state(spark: SparkSession, tmp_path: Path) -> None:
    root, kept = make("pairs", str(tmp_path)), "0: left"
    before = ice.read_state(spark, root, kept=kept)
    rows = before.count()
    assert ice.write_state(before, root, kept=kept) == 5
    moved = before.withColumn("__le", before["__le"] - 1).where("user = 3")
    wanted = Counter(map(as_text, moved.toArrow().to_pylist()))
    assert ice.write_state(moved, root, kept=kept, others="keep") == 6
    after = ice.read_state(spark, root, kept=kept)
    mine = after.where("user = 3").toArrow().to_pylist()
    assert Counter(map(as_text, mine)) == wanted
    assert after.count() == rows


BEGAN = datetime(2026, 3, 1, 12, tzinfo=UTC)


def orders(*rows: tuple[int, str, int]) -> pa.Table:
    """Return orders: second, shop, price."""
    return pa.table(
        {
            "at": pa.array(
                [BEGAN + timedelta(seconds=s) for s, _, _ in rows], pa.timestamp("us", "UTC")
            ),
            "shop": [shop for _, shop, _ in rows],
            "price": [price for *_, price in rows],
        }
    )


class Sums(ice.StatefulProcessor):
    """Adds prices up."""

    output = "shop string, total long"

    def init(self, handle: Any) -> None:
        self.seen = handle.getValueState("seen", "total long")

    def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Iterator[dict[str, Any]]:  # noqa: N802
        [before] = self.seen.get() or [0]
        total = before + sum(row["price"] for row in rows)
        self.seen.update((total,))
        yield {"shop": key[0], "total": total}


def windows(stream: ice.Stream) -> ice.StreamWriter:
    groups = stream.window("20 seconds", slide="10 seconds").groupBy("shop")
    return groups.agg(ice.count().alias("orders"), ice.sum("price").alias("total")).writeStream


def processors(stream: ice.Stream) -> ice.StreamWriter:
    return stream.events().groupApply("shop", lambda shop: shop.process(Sums())).writeStream


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["windows", "groups"])
def test_rewritten_state_goes_on_into_the_same_files(
    spark: SparkSession, kind: str, tmp_path: Path
) -> None:
    """Stop, rewrite, restart: rows told before are neither lost nor repeated.

     12:00:00      :10        :20        :30        :40        :50
    a 1, b 2 | a 4      |          | a 8      |          | a 16
    written before the rewrite: windows that end by :20; after it a's open panes have 100 more
    """
    feed = Feed(spark, str(tmp_path / "events"), orders((1, "a", 1), (2, "b", 2), (12, "a", 4)))
    feed.add(orders((25, "a", 8)))
    out, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")
    define = windows if kind == "windows" else processors

    def run() -> list[tuple[Any, ...]]:
        stream = ice.stream(feed.stream(), time="at", slack="5 seconds")
        writer = define(stream).format("parquet").option("path", out)
        writer = writer.option("checkpointLocation", checkpoint).memory("64 MB")
        writer.trigger(availableNow=True).start().awaitTermination()
        rows = spark.read.parquet(out).toArrow().to_pylist()
        if kind == "groups":
            return sorted((row["shop"], row["total"]) for row in rows)
        return sorted(
            ((row["window"]["end"] - BEGAN).seconds, row["shop"], row["orders"], row["total"])
            for row in rows
        )

    before = run()
    kept = "panes" if kind == "windows" else None
    column = "__sum_i128(price)" if kind == "windows" else "total"
    state = ice.read_state(spark, checkpoint, kept=kept)
    assert run() == before
    mine = "shop = 'a'" if kind == "windows" else "total = 13"
    raised = state.where(mine).withColumn(column, state[f"`{column}`"] + 100)
    version = ice.write_state(raised, checkpoint, kept=kept, others="keep")
    assert run() == before
    feed.add(orders((51, "a", 16), (51, "b", 32)))
    after = run()
    assert Counter(before) <= Counter(after)
    new = sorted((Counter(after) - Counter(before)).elements())
    if kind == "groups":
        assert before == [("a", 5), ("a", 13), ("b", 2)]
        assert new == [("a", 129), ("b", 34)]
    else:
        assert before == [(10, "a", 1, 1), (10, "b", 1, 2), (20, "a", 2, 5), (20, "b", 1, 2)]
        assert new == [(30, "a", 2, 212), (40, "a", 1, 108)]
    assert Reading(checkpoint).commit.version > version


@pytest.mark.slow
def test_a_restarted_query_serves_rewritten_values_that_waited(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A slow step lets shops wait; stopped, one value is edited and one is dropped; then all go."""
    shops = [f"s{number:02}" for number in range(40)]
    prices = orders(*((1, shop, place) for place, shop in enumerate(shops)))
    feed = Feed(spark, str(tmp_path / "events"), prices)
    out, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")
    slow = str(tmp_path / "slow")
    Path(slow).touch()

    def priced(rows: pa.RecordBatch) -> pa.RecordBatch:
        if os.path.exists(slow):
            time.sleep(0.05 * rows.num_rows)
        return rows.select(["shop", "price"])

    def writer() -> ice.StreamWriter:
        latest = ice.stream(feed.stream(), time="at").latestBy("shop", budget="100 milliseconds")
        writing = latest.apply(priced, "shop string, price long").writeStream
        writing = writing.format("parquet").option("path", out).memory("64 MB")
        return writing.option("checkpointLocation", checkpoint)

    def reported() -> dict[str, int]:
        return {row.shop: row.price for row in spark.read.parquet(out).collect()}

    query = writer().trigger(processingTime="100 milliseconds").start()
    deadline = time.monotonic() + 60
    while not query.recentProgress and time.monotonic() < deadline:
        time.sleep(0.1)
    query.stop()
    before = reported()
    waiting = ice.read_state(spark, checkpoint, kept="waiting")
    left = sorted(row.shop for row in waiting.collect())
    assert len(left) > 2
    assert sorted([*left, *before]) == shops
    edited = waiting.where(f"shop <> '{left[0]}'").selectExpr(
        *(
            f"IF(shop = '{left[1]}', 1000L, price) AS price" if name == "price" else name
            for name in waiting.columns
        )
    )
    ice.write_state(edited, checkpoint, kept="waiting")
    Path(slow).unlink()
    with pytest.raises(CheckpointError, match="the kind of trigger it was started with"):
        writer().trigger(availableNow=True).start().awaitTermination()
    query = writer().trigger(processingTime="100 milliseconds").start()
    query.processAllAvailable()
    query.stop()
    expected = {shop: place for place, shop in enumerate(shops) if shop != left[0]}
    assert reported() == expected | {left[1]: 1000}
    assert spark.read.parquet(out).count() == len(expected)
