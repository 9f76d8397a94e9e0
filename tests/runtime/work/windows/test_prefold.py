from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from icestream.core.errors import InputError
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.plan.nodes.queries import Plan, Source
from icestream.plan.windows.grid import Windows
from icestream.runtime.driver import Driver
from icestream.runtime.exchange.parcels import SplitReport
from icestream.runtime.ingest.reception import IngestTask
from icestream.runtime.local import LocalExecutor, LocalQuery, Splits, read_rows
from icestream.runtime.version.settings import Settings
from icestream.runtime.version.work import Parcel
from icestream.runtime.work.windows import prefold
from icestream.runtime.work.windows.ingest import FoldedIngest, Ingest
from icestream.runtime.work.windows.prefold import Prefold, can_fold
from icestream.state.files import LocalFiles
from icestream.testing.sources import SECOND, StreamShape, random_events
from tests.oracles.arrivals import Row
from tests.oracles.grid import rows_of

pytestmark = pytest.mark.spark

FUNCTIONS = ("count", "sum", "avg", "min", "max")
EXTREMES = ("count", "min", "max")
CONDITIONS = ("bool_and", "bool_or", "count_if")

PLAN = Plan.of(
    sources=(Source("one", SECOND, "drop"), Source("other", 0, "drop")),
    windows=Windows(6 * SECOND, 4 * SECOND, SECOND),
    keys=pa.schema([("a", pa.float64()), ("b", pa.string())]),
    inputs=pa.schema(
        [("x0", pa.float64()), ("x1", pa.int64()), ("x2", pa.int16()), ("x3", pa.bool_())]
    ),
    expressions=("x0", "x1", "x2", "x3"),
    aggregates=tuple(
        Aggregate(function, column, f"{function}_{column}")
        for functions, columns in (
            (EXTREMES, ("x0",)),
            (FUNCTIONS, ("x1", "x2")),
            (CONDITIONS, ("x3",)),
        )
        for function in functions
        for column in columns
    ),
    time=pa.timestamp("us", "UTC"),
)


def report(rows: int, entries: int) -> SplitReport:
    return SplitReport(rows=rows, entries=entries)


def test_folding_is_chosen_when_many_events_share_an_entry(spark: SparkSession) -> None:
    choice = Prefold()
    batch = spark.createDataFrame([], "time timestamp, source int, k0 double, k1 string, "
                                      "x0 double, x1 bigint, x2 smallint, x3 boolean")  # fmt: skip
    ingest = Ingest(PLAN, 1, 0, (0,))
    assert choice.choose(ingest, batch)[0] is batch
    choice.learn([report(1000, 10)])
    assert choice.choose(ingest, batch)[0] is batch, "a tiny batch is not worth another stage"
    choice.learn([report(100_000, 1000), report(0, 0)])
    assert choice.ratio == 100
    assert isinstance(choice.choose(ingest, batch)[1], FoldedIngest)
    choice.learn([report(0, 0)])
    assert choice.ratio == 100
    choice.learn([report(10, 10)])
    assert choice.choose(ingest, batch)[0] is batch


def test_what_spark_cannot_fold_is_folded_here() -> None:
    assert can_fold(PLAN)
    assert not can_fold(replace(PLAN, late="keep"))
    view = PLAN.views[0]
    assert not can_fold(replace(PLAN, views=(replace(view, groupings=((0,), (1,))),)))
    decimal = PLAN.inputs.set(0, pa.field("x0", pa.decimal128(9, 2)))
    assert not can_fold(replace(PLAN, inputs=decimal))


@pytest.mark.parametrize(
    "aggregate",
    [
        Aggregate("sum", "x0", "a"),
        Aggregate("avg", "x0", "a"),
        Aggregate("var_pop", "x1", "a"),
        Aggregate("corr", "x0", "a", ("x1",)),
        Aggregate("covar_pop", "x0", "a", ("x1",)),
        Aggregate("weighted_avg", "x1", "a", ("x2",)),
        Aggregate("first", "x0", "a"),
        Aggregate("last", "x0", "a", (), (True,)),
        Aggregate("min_by", "x0", "a", ("x1",)),
        Aggregate("collect_list", "x0", "a"),
    ],
    ids=lambda aggregate: aggregate.text,
)
def test_float_sums_pairs_choices_and_objects_are_folded_here(aggregate: Aggregate) -> None:
    view = replace(PLAN.views[0], aggregates=(*PLAN.views[0].aggregates, aggregate))
    assert not can_fold(replace(PLAN, views=(view,)))


class _FoldingExecutor(LocalExecutor):
    """Lets Spark fold, then runs the tasks here."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        super().__init__(LocalFiles(), root, LocalFiles())
        self._spark = spark

    def ingest(self, ingest: IngestTask, batch: Splits, folder: str) -> list[Parcel]:
        assert isinstance(ingest, Ingest)
        events = pa.Table.from_batches([each for split in batch for each in split])
        schema = from_arrow_schema(events.schema, prefer_timestamp_ntz=True)
        frame: DataFrame = self._spark.createDataFrame(events, schema)
        folded = prefold.fold(ingest, frame).toArrow().to_batches()
        return super().ingest(FoldedIngest(ingest), [folded], folder)


def test_oracle_folding_by_spark_gives_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    dice = np.random.default_rng(5)
    shape = StreamShape(events=300, span=30 * SECOND, nulls=0.1, specials=0.4)
    batches = [
        random_events(PLAN, replace(shape, start=start * SECOND), dice) for start in (-10, 15)
    ]
    _compare(PLAN, batches, spark, tmp_path)


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kathmandu", "UTC"])
def test_oracle_spark_folds_times_without_a_zone_alike_in_every_zone(
    spark: SparkSession, tmp_path: Path, zone: str
) -> None:
    plan = replace(PLAN, time=pa.timestamp("us"))
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        # New York has no 02:00 to 03:00 on 10 March 2024, and 01:00 to 02:00 twice on 3 November
        changes = [dt.datetime(2024, 3, 10, 1, 59, 50), dt.datetime(2024, 11, 3, 0, 59, 50)]
        starts = [int(each.replace(tzinfo=dt.UTC).timestamp()) * SECOND for each in changes]
        dice = np.random.default_rng(6)
        batches = [
            random_events(plan, StreamShape(events=200, start=start, span=30 * SECOND), dice)
            for start in (*starts, starts[1] + 3600 * SECOND)
        ]
        _compare(plan, batches, spark, tmp_path)
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(before))


@pytest.mark.parametrize("time", [2**63 - 1, -(2**63) + 1])
@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.timestamp("us", "UTC")])
def test_times_near_the_ends_of_64_bits_are_refused_by_name(
    spark: SparkSession, tmp_path: Path, time: int, kind: pa.DataType
) -> None:
    plan = replace(PLAN, store="panes", time=kind)
    batch = random_events(plan, StreamShape(events=3), np.random.default_rng(1))
    batch = batch.set_column(0, plan.batch_schema.field(0), pa.array([0, time, 1]).cast(kind))
    folding = _FoldingExecutor(spark, f"{tmp_path}")
    settings = Settings(f"{tmp_path}/c", f"{tmp_path}/l", 64 << 20)
    driver: Driver[Splits] = Driver(plan, settings, LocalFiles(), folding)
    with pytest.raises(InputError, match=f"{time:,} microseconds"):
        driver.batch(0, [[batch]])


def _compare(
    plan: Plan, batches: list[pa.RecordBatch], spark: SparkSession, tmp_path: Path
) -> None:
    """Feed batches to two queries, one of them folded by Spark, and compare the rows bit by bit."""
    # Spark folds only where the log keeps panes
    plan = replace(plan, store="panes")
    plain = LocalQuery(plan, Settings(f"{tmp_path}/plain", f"{tmp_path}/p", 64 << 20))
    folding: Driver[Splits] = Driver(
        plan,
        Settings(f"{tmp_path}/folding", f"{tmp_path}/f", 64 << 20),
        LocalFiles(),
        _FoldingExecutor(spark, f"{tmp_path}/folding"),
    )
    expected: list[Row] = []
    found: list[Row] = []
    for number, batch in enumerate(batches):
        expected += rows_of(plain.feed([[batch]]))
        for delivery in folding.batch(number, [[batch]]):
            for path in delivery.results:
                found += rows_of(read_rows(LocalFiles(), path))
        assert plain.driver.last is not None
        assert folding.last is not None
        assert folding.last.totals == plain.driver.last.totals
        assert folding.last.seen == plain.driver.last.seen
    assert len(expected) > 20
    assert sorted(map(repr, found)) == sorted(map(repr, expected))
