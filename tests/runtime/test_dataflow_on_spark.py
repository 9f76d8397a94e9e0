"""The handy dataflows on Spark's executors, beside the slow version."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from icestream.plan.events.dataflow import Dataflow
from icestream.runtime.driver import Driver
from icestream.runtime.local import Splits, read_rows
from icestream.runtime.spark.tasks import SparkExecutor
from icestream.runtime.version.settings import Settings
from icestream.runtime.version.work import Executor
from icestream.state.files import LocalFiles
from icestream.testing.sources import SECOND, StreamShape, batches_of
from tests.fixtures import dataflow_plans as plans
from tests.oracles.lifetimes import Bag, assert_same_snapshots, without_zeros
from tests.oracles.plain_dataflow import PlainDataflow
from tests.suites.dataflow_conformance import bag_of_rows, stream_of

pytestmark = pytest.mark.spark

SHAPE = StreamShape(events=80, batches=3, splits=1, nulls=0.1, disorder=7 * SECOND)

Making = Callable[[SparkSession, LocalFiles, str], Executor[DataFrame]]


def frame_of(spark: SparkSession, flow: Dataflow, batch: Splits) -> DataFrame:
    parts = [part for split in batch for part in split]
    return spark.createDataFrame(pa.Table.from_batches(parts, flow.batch_schema))


def summed(flow: Dataflow, total: Bag, tables: list[pa.Table]) -> Bag:
    added = Counter(total)
    for table in tables:
        for event, count in bag_of_rows(flow, table).items():
            added[event] += count
    return without_zeros(added)


def check(
    spark: SparkSession, flow: Dataflow, folder: Path, context: Making, *, in_storage: bool = False
) -> None:
    """Compare what rows add up to after every batch; a new driver takes over in the middle."""
    files, slow = LocalFiles(), PlainDataflow(flow)
    settings = Settings(
        f"{folder}/checkpoint", f"{folder}/local", 64 << 20, exchange_in_storage=in_storage
    )

    def opened() -> Driver[DataFrame]:
        return Driver(flow, settings, files, context(spark, files, settings.root))

    driver = opened()
    found: Bag = Counter()
    expected: Bag = Counter()
    for number, batch in enumerate(batches_of(stream_of(flow, SHAPE, 1))):
        if number == 2:
            driver.close()
            driver = opened()
        (delivery,) = driver.batch(number, frame_of(spark, flow, batch))
        found = summed(flow, found, _tables(files, list(delivery.results)))
        expected = summed(flow, expected, [pa.Table.from_batches([r]) for r in slow.feed(batch)])
        assert_same_snapshots(found, expected)
    assert expected
    driver.close()


def _tables(files: LocalFiles, paths: list[str]) -> list[pa.Table]:
    return [table for path in paths for table in read_rows(files, path)]


@pytest.mark.parametrize(
    "make",
    [plans.recommender, plans.join_within, partial(plans.best, "append"), plans.user_defined],
    ids=["recommender", "join within", "settled best", "user-defined"],
)
def test_oracle_dataflows_on_spark(
    spark: SparkSession, tmp_path: Path, make: Callable[[], Dataflow]
) -> None:
    check(spark, make(), tmp_path, SparkExecutor)


@pytest.mark.parametrize("make", [plans.nested, plans.recommender])
def test_oracle_components_hand_on_through_the_checkpoints_storage(
    spark: SparkSession, tmp_path: Path, make: Callable[[], Dataflow]
) -> None:
    context = partial(SparkExecutor, in_storage=True)
    check(spark, make(), tmp_path, context, in_storage=True)
    parcels = (tmp_path / "checkpoint" / "exchange").rglob("*")
    assert [path for path in parcels if path.is_file()] == []
