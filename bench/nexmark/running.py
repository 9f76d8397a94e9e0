"""Nexmark's statements as queries of Icestream over folders of text files."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema

import icestream as ice
from bench.nexmark.answers import bag
from bench.nexmark.events import ROUND, Nexmark, side_input
from bench.steady import steady_rate
from icestream.sql.expressions.tree import quoted

STATEMENTS = Path(__file__).parent / "statements"
NUMBERS = tuple(f"q{number}" for number in range(23))
STREAMS = ("person", "auction", "bid")
#: when files of events changed, in seconds since 1970: the first one, the others a second apart
_WRITTEN = 1_700_000_000
#: statements whose answer is a table that changes by key: Flink upserts or retracts its rows
TABLES = ("q4", "q6", "q9", "q15", "q16", "q17", "q18", "q19")
#: statements over windows, whose rows Flink emits once, when they are final
FINAL = ("q5", "q7", "q8")
#: functions that the suite registers, or that Spark calls by another name
_FUNCTIONS = (
    "count_char(text STRING, letter STRING) RETURNS BIGINT "
    "RETURN length(text) - length(replace(text, letter, ''))",
    "split_index(text STRING, delimiter STRING, place INT) RETURNS STRING "
    "RETURN split_part(text, delimiter, place + 1)",
)


def statement(number: str) -> str:
    """Return the text of a statement."""
    return (STATEMENTS / f"{number}.sql").read_text()


def for_spark(number: str) -> str:
    """Return the text that Spark alone runs: one written for it, or that of the statement."""
    own = STATEMENTS / "spark" / f"{number}.sql"
    return own.read_text() if own.exists() else statement(number)


def written_tables(
    events: Nexmark, folder: Path, batches: int, streams: Sequence[str] = STREAMS
) -> dict[str, pa.Table]:
    """Write the events as text, one file for each stream and batch; return the tables."""
    step = -(-events.count // batches)
    tables = events.tables(streams)
    edges = [events.start + batch * step * 1_000_000 // events.rate for batch in range(1, batches)]
    for name, table in tables.items():
        times = table["dateTime"].cast(pa.int64()).to_numpy()
        cuts = [0, *times.searchsorted(edges), len(table)]
        parts = (table.slice(first, last - first) for first, last in pairwise(cuts))
        _write(parts, folder / name)
    return tables


def closing(folder: Path, count: int) -> None:
    """Write a file of events more for each stream, a day after the first `count` of them."""
    later = Nexmark(ROUND, first=count, start=Nexmark(0).start + 86_400_000_000)
    for name, table in later.tables().items():
        _write((table,), folder / name)


def for_flink(tables: Mapping[str, pa.Table], folder: Path) -> None:
    """Write streams as the same text in two files, whose rows alternate."""
    for name, table in tables.items():
        halves = (pa.array(range(part, len(table), 2), pa.int64()) for part in range(2))
        _write(map(table.take, halves), folder / name)


def _write(parts: Iterable[pa.Table], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, part in enumerate(parts, len(list(folder.iterdir()))):
        for place, field in enumerate(part.schema):
            if pa.types.is_timestamp(field.type):
                text = pc.strftime(part[place].cast(pa.timestamp("ms")), "%Y-%m-%d %H:%M:%S")
                part = part.set_column(place, field.name, text)  # noqa: PLW2901
        options, path = csv.WriteOptions(include_header=False), folder / f"{number:04d}.csv"
        csv.write_csv(part, path, options)
        # Spark reads files in the order in which they changed
        os.utime(path, (_WRITTEN + number,) * 2)


def files(spark: SparkSession, folder: Path, name: str, together: int = 1) -> DataFrame:
    """Return the rows of a stream, of which a batch reads one file or some."""
    schema = from_arrow_schema(Nexmark(ROUND).tables([name])[name].schema)
    reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", together)
    return reader.csv(str(folder / name))


def registered(spark: SparkSession) -> None:
    """Register the functions of the suite."""
    for each in _FUNCTIONS:
        spark.sql(f"CREATE OR REPLACE TEMPORARY FUNCTION {each}")


def output_mode(number: str) -> str:
    """Return the mode in which a statement runs.

    It is `now` for tables by key, `append` for windows, and `changes` for all others.
    """
    if number in FINAL:
        return "append"
    return "now" if number in TABLES else "changes"


def sources(spark: SparkSession, folder: Path, together: int = 1) -> dict[str, Any]:
    """Return the streams in a folder, of which a batch reads some files, and the static table."""
    registered(spark)
    made: dict[str, Any] = {}
    for name in (each for each in STREAMS if (folder / each).exists()):
        frame = files(spark, folder, name, together)
        made[name] = ice.stream(frame, time="dateTime", slack="2 seconds", name=name)
    made["side_input"] = side_table(spark)
    return made


def side_table(spark: SparkSession) -> DataFrame:
    """Return the static table that a statement joins with."""
    return spark.createDataFrame(side_input().to_pandas())


def events_a_second(progress: Sequence[Mapping[str, Any]], plan: Mapping[str, Any]) -> float | None:
    """Return events of streams a second, once warm.

    Reports may count rows after filters, in every window, or as often as a stream is read.
    """
    eps = steady_rate(progress, plan["skip"])
    return eps and eps * plan["rows"] / sum(each["numInputRows"] for each in progress)


def ran(
    query: Any, spark: SparkSession, folder: Path, *, mode: str = "changes", memory: str = "64 MB"
) -> tuple[DataFrame, Any]:
    """Run a query over all that there is; return its rows, and the query that has ended.

    Those of mode `now` are the table that holds at the end.
    """
    out, checkpoint = f"{folder}/out", f"{folder}/checkpoint"
    writer = query.writeStream.format("parquet").option("checkpointLocation", checkpoint)
    writer = writer.option("path", out).trigger(availableNow=True)
    if isinstance(query, ice.Events):
        writer = writer.outputMode(mode)
    if not isinstance(query, DataFrame):
        writer = writer.shards(2).memory(memory).option("flush", "true")
    ended = writer.start()
    ended.awaitTermination()
    is_table = isinstance(query, ice.Events) and mode == "now"
    return ended.table() if is_table else spark.read.parquet(out), ended


def table_of(query: Any, rows: DataFrame) -> Counter[tuple[Any, ...]]:
    """Return the table that the rows of a query add up to.

    Changes of events are added up. Rows that stay are those without an end; if none stays, the rows
    are events of an instant, and all of them count.
    """
    if not isinstance(query, ice.Events):
        return bag([tuple(row) for row in rows.collect()])
    columns = [quoted(name) for name in query.columns]
    if "lifetime" not in rows.columns:
        return bag([tuple(row) for row in rows.select(*columns).collect()])
    if "change" not in rows.columns:
        rows = rows.withColumn("change", sf.lit(1))
    stays = sf.expr("lifetime.end IS NULL").alias("stays")
    added = rows.groupBy(stays, *columns).agg(sf.sum("change").alias("n")).where("n <> 0")
    stayed = rows.where("lifetime.end IS NULL").head(1)
    chosen = added.where("stays") if stayed else added
    result: Counter[tuple[Any, ...]] = Counter()
    for row in chosen.select("n", *columns).collect():
        result.update(dict.fromkeys(bag([tuple(row)[1:]]), row[0]))
    return result


def asked(number: str, tables: Mapping[str, Any]) -> Any:
    """Return the query of a statement."""
    return ice.sql(statement(number), **tables)
