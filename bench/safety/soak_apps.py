"""The queries of the demos, as programs that can be killed anywhere and continue.

Idea: an app is a stream that is written to files once and a query over these files. Its caller
passes the folder of the events, a folder for checkpoint and results, and the number of files in a
batch; the app ends when all files have been processed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import icestream as ice
from examples.advertising.generator import SPARK_SCHEMA as AD_SCHEMA
from examples.advertising.generator import AdEvents
from examples.advertising.offline import Rules
from examples.advertising.query import Targeting
from examples.integration.demo import integrated
from examples.integration.generator import Desk
from examples.lending.generator import SPARK_SCHEMA as LOAN_SCHEMA
from examples.lending.generator import Loans
from examples.lending.query import RESULTS as LENDING
from examples.lending.query import lending
from examples.market.demo import per_slide
from examples.market.freshness import OPTIONS, OptionPrices
from examples.market.generator import SPARK_SCHEMA as TRADE_SCHEMA
from examples.market.generator import TradeStream
from examples.recommender.generator import Ratings
from examples.recommender.query import recommendations
from examples.recommender.workload import EVENT_SPARK_SCHEMA, RatingWorkload
from icestream.api.writer import StreamWriter
from icestream.core.units import parse_interval
from icestream.demo.call_centre.generator import AgentInteractions
from icestream.demo.call_centre.schema import SPARK_SCHEMA as CALL_SCHEMA

_HOUR = parse_interval("1 hour")
_DAY = parse_interval("1 day")

#: starts a query over a folder of events; folder of its own, files in a batch
Start = Callable[[SparkSession, Path, Path, int], ice.Query]


@dataclass(frozen=True)
class App:
    """A demo without its display."""

    #: writes events to a folder, from a seed: all of them, or a share
    write: Callable[[Path, int, float], None]
    start: Start
    #: names of its results; each is a folder below `results`
    results: tuple[str, ...] = ("rows",)
    #: key columns, if only the newest row of a key is deterministic
    newest_by: tuple[str, ...] | None = None


def _read(spark: SparkSession, schema: Any, events: Path, files: int) -> DataFrame:
    reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", files)
    return reader.parquet(str(events))


def _begun(writer: StreamWriter, own: Path, memory: str, **options: Any) -> ice.Query:
    writer = writer.format("parquet").option("path", str(own / "results" / "rows"))
    writer = writer.option("checkpointLocation", str(own / "checkpoint")).options(**options)
    return writer.memory(memory).trigger(availableNow=True).start()


def _calls(spark: SparkSession, events: Path, own: Path, files: int) -> ice.Query:
    calls = ice.stream(_read(spark, CALL_SCHEMA, events, files), "timestamp", slack="2 seconds")
    windows = calls.window("10 minutes", slide="10 seconds").groupBy("serviceId")
    figures = windows.agg(ice.count().alias("calls"), ice.max("busyTime").alias("longest"))
    return _begun(figures.writeStream, own, "64 MB", flush=True)


def _trades(spark: SparkSession, events: Path, own: Path, files: int) -> ice.Query:
    trades = ice.stream(_read(spark, TRADE_SCHEMA, events, files), "timestamp", slack="1 second")
    averages: ice.Result = ice.sql(per_slide("10 minutes", "1 minute"), trades=trades)
    return _begun(averages.writeStream, own, "64 MB")


def _joined(spark: SparkSession, events: Path, own: Path, files: int) -> ice.Query:
    del files
    return _begun(integrated(spark, events).writeStream, own, "16 MB", flush=True)


def _loans(spark: SparkSession, events: Path, own: Path, files: int) -> ice.Query:
    stream = ice.stream(_read(spark, LOAN_SCHEMA, events, files), "date", slack="1 minute")
    return ice.start(
        *(
            each.writeStream.option("path", str(own / "results" / name))
            for name, each in lending(stream).items()
        ),
        checkpointLocation=str(own / "checkpoint"),
        memory="64 MB",
        trigger={"availableNow": True},
    )


def _recommended(spark: SparkSession, events: Path, own: Path, files: int) -> ice.Query:
    stream = ice.stream(_read(spark, EVENT_SPARK_SCHEMA, events, files), time="time").events()
    result = recommendations(stream, k=5, window="14 days")
    return _begun(result.writeStream.outputMode("changes"), own, "128 MB")


def _targeted(spark: SparkSession, events: Path, own: Path, files: int) -> ice.Query:
    stream = ice.stream(_read(spark, AD_SCHEMA, events, files), time="time").events()
    asked = stream.where("user % 50 = 0").select("user", "time AS at")
    told = Targeting(stream, Rules(window=6 * _HOUR), asked, _HOUR).told
    return _begun(told.writeStream.outputMode("changes"), own, "128 MB")


def _priced(spark: SparkSession, events: Path, own: Path, files: int) -> ice.Query:
    quotes = ice.stream(_read(spark, TRADE_SCHEMA, events, files), time="timestamp")
    named = quotes.withColumn("ts", sf.col("timestamp")).latestBy("symbol")
    return _begun(named.apply(OptionPrices(2_000), OPTIONS).writeStream, own, "64 MB")


def _write_ratings(folder: Path, seed: int, share: float) -> None:
    count, first = round(1_200 * share), round(900 * share)
    ratings = Ratings(users=400, items=200, ratings=count, seed=seed, span=60 * _DAY).table()
    workload = RatingWorkload(ratings, first, requests=1, standing=0.001, seed=seed)
    for _ in workload.write(folder, rows=100):
        pass


def _written(stream: Any, most: int, seconds: int) -> Callable[[Path, int, float], None]:
    def write(folder: Path, seed: int, share: float) -> None:
        events = round(most * share)
        files = stream(seed).write(folder, events, seconds=seconds)
        written = 0
        while written < events:
            written += next(files).events

    return write


APPS: Mapping[str, App] = {
    "call centre": App(
        _written(
            lambda seed: AgentInteractions(rate=100, seed=seed, disorder=2_000_000), 120_000, 30
        ),
        _calls,
    ),
    "market": App(_written(lambda seed: TradeStream(rate=50, seed=seed), 90_000, 30), _trades),
    "integration": App(_written(lambda seed: Desk(1000, seed), 40_000, 2), _joined),
    "lending": App(
        _written(lambda seed: Loans(rate=1, seed=seed), 90_000, 2_000),
        _loans,
        results=LENDING,
    ),
    "recommender": App(_write_ratings, _recommended),
    "advertising": App(
        _written(lambda seed: AdEvents(users=500, ads=8, keywords=40, seed=seed), 12_000, 600),
        _targeted,
    ),
    "update streams": App(
        _written(lambda seed: TradeStream(rate=50, seed=seed), 60_000, 30),
        _priced,
        newest_by=("symbol",),
    ),
}
