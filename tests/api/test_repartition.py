"""What groups by the keys of a join runs inside it, or apart."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import icestream as ice
from tests.fixtures.parquet_feed import Feed

pytestmark = pytest.mark.spark


def _events(column: str, step: int) -> pa.Table:
    times = pa.array([each * 300_000 for each in range(40)]).cast(pa.timestamp("us", "UTC"))
    users = [each * step % 7 for each in range(40)]
    return pa.table({"ts": times, "user": users, column: list(range(40))})


def test_parity_of_one_component_and_two(spark: SparkSession, tmp_path: Path) -> None:
    left, right = (
        ice.stream(Feed(spark, f"{tmp_path}/{name}", _events(name, step)).stream(), time="ts")
        .events()
        .select("user", name)
        .alterLifetime("2 seconds")
        for name, step in (("a", 1), ("b", 3))
    )
    pairs = left.join(right, on="user")
    found = []
    for joined, components in ((pairs, 1), (pairs.repartition(), 2)):
        totals = joined.groupApply("user", lambda g: g.agg(ice.count().alias("n"), ice.sum("a")))
        assert len(totals._built("append").plan.components) == components
        rows: list[str] = []

        def take(frame: DataFrame, _: int, rows: list[str] = rows) -> None:
            rows += [repr(row) for row in frame.collect()]

        writer = totals.writeStream.foreachBatch(take).memory("64 MB").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", f"{tmp_path}/chk-{components}")
        writer.option("flush", True).start().awaitTermination()
        found.append(sorted(rows))
    assert found[0] == found[1]
    assert len(found[0]) > 20
