"""Update streams on Spark: steps that share a queue, unions, joins and windows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import icestream as ice
from icestream.api.query_warnings import QueryWarning
from icestream.core.errors import DefinitionError
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.latest.window_aggregate import WindowedUpdates
from icestream.state.queue.windows.spec import UpdateWindows
from tests.fixtures.parquet_feed import Feed

pytestmark = pytest.mark.spark

SECOND = 1_000_000
KIND = pa.timestamp("us", "UTC")
SCORES = "symbol string, price long"


def quotes(first: int, last: int, *, lag: int = 0, symbols: int = 10) -> pa.Table:
    numbers = list(range(first, last))
    return pa.table(
        {
            "ts": pa.array([(n + 1 - lag) * SECOND // 10 for n in numbers], KIND),
            "symbol": [f"s{n % symbols}" for n in numbers],
            "price": pa.array(numbers, pa.int64()),
        }
    )


def same(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.select(["symbol", "price"])


class Newest:
    """Keeps the newest row of every symbol."""

    def __init__(self, column: str = "price") -> None:
        self.rows: dict[str, Any] = {}
        self.count = 0
        self._column = column

    def __call__(self, rows: DataFrame, version: int) -> None:
        for row in rows.collect():
            self.rows[row["symbol"]] = row[self._column]
            self.count += 1


def run(result: Any, folder: Path, into: Any) -> None:
    writer = result.writeStream.foreachBatch(into).trigger(availableNow=True)
    writer.option("checkpointLocation", str(folder)).start().awaitTermination()


@pytest.fixture
def feed(spark: SparkSession, tmp_path: Path) -> Feed:
    return Feed(spark, str(tmp_path / "in"), quotes(0, 500), quotes(500, 1000))


def expected(count: int) -> dict[str, int]:
    return {f"s{n % 10}": n for n in range(count)}


def test_steps_over_one_stream_share_a_queue_and_every_event_goes_beside_it(
    feed: Feed, tmp_path: Path
) -> None:
    stream = ice.stream(feed.stream(), time="ts")
    latest = stream.latestBy("symbol")
    one, other, every = Newest(), Newest("twice"), Newest()
    twice = latest.map(
        lambda row: {"symbol": row["symbol"], "twice": 2 * row["price"]},
        "symbol string, twice long",
    )
    query = ice.start(
        stream.apply(same, SCORES).writeStream.foreachBatch(every),
        latest.apply(same, SCORES).writeStream.foreachBatch(one),
        twice.writeStream.foreachBatch(other),
        checkpointLocation=str(tmp_path / "chk"),
        trigger={"availableNow": True},
    )
    query.awaitTermination()
    assert one.rows == expected(1000)
    assert other.rows == {key: 2 * price for key, price in expected(1000).items()}
    assert every.count == 1000
    assert one.count == other.count <= 20


def test_the_newest_rows_are_written_without_a_step_and_keys_are_named_in_any_way(
    feed: Feed, tmp_path: Path
) -> None:
    stream = ice.stream(feed.stream(), time="ts")
    keys: tuple[Any, ...] = ("symbol", ["symbol"], sf.col("symbol"))
    for number, key in enumerate(keys):
        newest = Newest()
        run(stream.latestBy(key), tmp_path / str(number), newest)
        assert newest.rows == expected(1000)
    with pytest.raises(DefinitionError, match="add it with withColumn"):
        stream.latestBy(sf.upper("symbol"))


def test_a_checkpoint_of_any_trigger_is_drained_with_available_now(
    feed: Feed, tmp_path: Path
) -> None:
    newest = Newest()

    def writer() -> Any:
        result = ice.stream(feed.stream(), time="ts").latestBy("symbol").apply(same, SCORES)
        chosen = result.writeStream.foreachBatch(newest)
        return chosen.option("checkpointLocation", str(tmp_path / "chk"))

    for last in (1500, 2000):
        query = writer().trigger(processingTime="100 milliseconds").start()
        query.processAllAvailable()
        query.stop()
        feed.add(quotes(last - 500, last))
        writer().trigger(availableNow=True).start().awaitTermination()
        assert newest.rows == expected(last)


def test_all_available_is_processed_when_nothing_waits(feed: Feed, tmp_path: Path) -> None:
    newest = Newest()
    result = ice.stream(feed.stream(), time="ts").latestBy("symbol", budget="5 milliseconds")
    query = (
        result.apply(same, SCORES)
        .writeStream.foreachBatch(newest)
        .trigger(processingTime="100 milliseconds")
        .option("checkpointLocation", str(tmp_path / "chk"))
        .start()
    )
    query.processAllAvailable()
    assert newest.rows == expected(1000)
    feed.add(quotes(1000, 1500))
    query.processAllAvailable()
    assert newest.rows == expected(1500)
    query.stop()


def test_a_union_takes_the_newest_of_both_and_believes_its_truth(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    other = quotes(0, 1000).set_column(2, "price", pa.array([-n for n in range(1000)]))
    behind = Feed(spark, str(tmp_path / "other"), other.slice(0, 995))
    a = ice.stream(feed.stream(), time="ts", name="a").latestBy("symbol")
    b = ice.stream(behind.stream(), time="ts", name="b").latestBy("symbol")
    newest = Newest()
    run(a.union(b, truth="b").apply(same, SCORES), tmp_path / "chk", newest)
    # both have the same times: b counts where it has the last quote of a symbol
    assert newest.rows == {f"s{n % 10}": (-n if n < 995 else n) for n in range(990, 1000)}


def test_a_join_delivers_the_newest_match(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    sizes = quotes(0, 1000, lag=2).rename_columns(["at", "symbol", "size"])
    a = ice.stream(feed.stream(), time="ts").latestBy("symbol").where("price % 2 = 0")
    b = ice.stream(Feed(spark, str(tmp_path / "sizes"), sizes).stream(), time="at")
    joined = a.join(b.latestBy("symbol"), on="symbol", within="1 second")
    found: dict[str, tuple[int, int]] = {}

    def take(rows: DataFrame, version: int) -> None:
        for row in rows.collect():
            found[row["symbol"]] = row["price"], row["size"]

    schema = "symbol string, price long, size long"
    run(joined.apply(lambda rows: rows, schema), tmp_path / "chk", take)
    assert found == {f"s{n % 10}": (n, n) for n in range(990, 1000, 2)}


@pytest.mark.parametrize("semantics", [pytest.param("lazy", marks=pytest.mark.slow), "eager"])
def test_oracle_windows_answer_as_the_library_does(
    feed: Feed, semantics: Any, tmp_path: Path
) -> None:
    schema = quotes(0, 1).schema
    plain = WindowedUpdates(
        schema,
        keys=["symbol"],
        time="ts",
        windows=UpdateWindows(20 * SECOND, 5 * SECOND, semantics),
        aggregates=[Aggregate("count", None, "n"), Aggregate("sum", "price", "total")],
    )
    found: list[tuple[Any, ...]] = []
    wanted: list[tuple[Any, ...]] = []
    for first in (0, 500):
        batch = quotes(first, first + 500).combine_chunks().to_batches()[0]
        times = batch.column("ts").cast(pa.int64()).to_numpy()
        plain.enqueue(batch, times)
        plain.advance(int(times.max()) // 1000 * 1000)
        for row in plain.serve(10_000).to_pylist():
            wanted.append((row["symbol"], row["window_end"], row["n"], row["total"]))

    def take(rows: DataFrame, version: int) -> None:
        for row in rows.toArrow().to_pylist():
            found.append((row["symbol"], row["window_end"], row["n"], row["total"]))

    windows = (
        ice.stream(feed.stream(), time="ts")
        .latestBy("symbol")
        .window("20 seconds", "5 seconds", semantics=semantics)
    )
    answers = windows.agg(ice.count().alias("n"), ice.sum("price").alias("total"))
    run(answers, tmp_path / "chk", take)
    # what is newest when a window is served depends on what came; the last windows do not
    last = {row[0]: row for row in sorted(wanted)}
    assert {row[0]: row for row in sorted(found)} == last
    assert len(last) == 10


def test_unions_joins_filters_and_windows_combine(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    def stream(name: str, *tables: pa.Table) -> Any:
        frame = Feed(spark, str(tmp_path / name), *tables).stream()
        return ice.stream(frame, time="ts", name=name).latestBy("symbol")

    # of quotes 0 to 999, a has the even hundreds and b all; they agree but for the price of a
    every = quotes(0, 1000)
    minus = every.set_column(2, "price", pa.array([-n for n in range(1000)]))
    a = stream("a", pa.concat_tables([minus.slice(n, 100) for n in range(0, 1000, 200)]))
    b, c = stream("b", every), stream("c", every.rename_columns(["ts", "symbol", "size"]))
    both = a.union(b, truth="a").join(c, on="symbol", within=0)
    assert both.select("ts", "symbol", "price * 2 AS twice").columns == ["ts", "symbol", "twice"]
    some = both.where(sf.col("size") % 20 < 10).withColumn("sum", sf.col("price") + sf.col("size"))
    answers = (
        some.window("20 seconds")
        .groupBy("symbol", "price")
        .agg(ice.count().alias("n"), ice.sum(sf.col("sum") * 2).alias("total"))
        .where(sf.col("price") > 0)
    )
    assert answers.columns == ["symbol", "price", "window_start", "window_end", "n", "total"]
    found: dict[int, tuple[str, int, int]] = {}

    def take(rows: DataFrame, version: int) -> None:
        for row in rows.collect():
            found[row["price"]] = row["symbol"], row["n"], row["total"]

    run(answers, tmp_path / "chk", take)
    kept = [n for n in range(1000) if n // 100 % 2 and n % 20 < 10]
    assert found
    assert found == {n: (f"s{n % 10}", 1, 4 * n) for n in kept if n in found}
    newest: dict[str, Any] = {}

    def keep(rows: DataFrame, version: int) -> None:
        newest.update({row["symbol"]: row["sum"] for row in rows.collect()})

    run(some.apply(lambda rows: rows, "symbol string, sum long"), tmp_path / "newest", keep)
    assert newest == {f"s{n % 10}": 2 * n for n in range(980, 990)}


def test_joins_forget_with_their_streams(feed: Feed) -> None:
    def lateness(**options: Any) -> int:
        sides = [ice.stream(feed.stream(), time="ts").latestBy("symbol", **options)] * 2
        sides[1] = sides[1].withColumn("size", sf.col("price")).select("ts", "symbol", "size")
        joined: Any = sides[0].join(sides[1], on="symbol", within=1)._arcs
        return int(joined.lateness)

    assert lateness() == lateness(forgetAfter="1 day") == 3600 * 10**6
    assert lateness(forgetAfter="1 minute") == 60 * 10**6


def stepped(stream: Any) -> Any:
    return stream.latestBy("symbol")


def sized(stream: Any) -> Any:
    """Quotes joined with their own prices under another name."""
    other = stepped(stream).withColumn("size", sf.col("price")).select("ts", "symbol", "size")
    return stepped(stream).join(other, on="symbol", within="1 second")


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda s: stepped(s).withColumn("symbol", sf.lit("x")), "may not change the update key"),
        (lambda s: stepped(s).select("ts", "price"), "may not change the update key"),
        (lambda s: stepped(s).select("symbol"), "may not change the update time.*add 'ts'"),
        (lambda s: stepped(s).where("nothing > 1"), "nothing"),
        (lambda s: stepped(s).union(stepped(s), truth="a"), "each with a name of its own"),
        (lambda s: stepped(s).union(s, truth="a"), "takes another update stream"),
        (lambda s: stepped(s).union(s.latestBy("price"), truth="a"), "with the same key"),
        (lambda s: stepped(s).join(stepped(s), on="price", within=1), "joined on their key"),
        (lambda s: stepped(s).join(stepped(s), on="symbol", within=1), r"have columns \['price'\]"),
        (lambda s: stepped(s).window("1 second", "2 seconds"), "leaves gaps between windows"),
        (lambda s: stepped(s).window("2 seconds", semantics="laizy"), "unknown semantics"),
        (
            lambda s: stepped(s).window("2 seconds").groupBy("price").agg(ice.count()),
            "must group by its key",
        ),
        (lambda s: stepped(s).window("2 seconds").agg(sf.count("*")), "takes Icestream's"),
        (
            lambda s: stepped(s).union(stepped(s).apply(same, SCORES), truth="a"),
            "comes before the step",
        ),
        (lambda s: s.latestBy("symbol", under="load").window(2), "leave under='load' out"),
        (lambda s: sized(s).withColumn("symbol", sf.lit("x")), "may not change the update key"),
        (lambda s: sized(s).select("symbol", "ts", "nothing"), "nothing"),
        (lambda s: sized(s).where("nothing > 1"), "nothing"),
        (lambda s: sized(s).window(2).agg(ice.count().alias("n")).where("m > 1"), "'m'"),
        (
            lambda s: ice.start(
                stepped(s).apply(same, SCORES).writeStream.format("noop"),
                s.latestBy("price").apply(same, SCORES).writeStream.format("noop"),
                checkpointLocation="nowhere",
            ),
            r"call latestBy\(...\) once",
        ),
        (
            lambda s: ice.start(
                stepped(s).apply(same, SCORES).writeStream.format("noop"),
                s.window("2 seconds").count().writeStream.format("noop"),
                checkpointLocation="nowhere",
            ),
            "separate queries",
        ),
        (
            lambda s: ice.start(
                s.window("2 seconds").count().writeStream.format("noop"),
                stepped(s).apply(same, SCORES).writeStream.format("noop"),
                checkpointLocation="nowhere",
            ),
            "results of one kind",
        ),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_written(
    feed: Feed, make: Any, complaint: str
) -> None:
    with pytest.raises(DefinitionError, match=complaint):
        make(ice.stream(feed.stream(), time="ts"))


def test_an_order_that_starves_keys_warns(spark: SparkSession, tmp_path: Path) -> None:
    stream = ice.stream(
        spark.readStream.schema("ts timestamp, symbol string").parquet(str(tmp_path)), time="ts"
    )
    with pytest.warns(QueryWarning, match="may never serve keys that are updated often"):
        stream.latestBy("symbol", schedule="linecutting")
    with pytest.raises(DefinitionError, match="choose one of inplace, fifo, linecutting"):
        stream.latestBy("symbol", schedule="index")
