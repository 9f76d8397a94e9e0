"""Nexmark's statements by Structured Streaming alone, where it can express them.

Idea: Spark reads a published statement as it is, or one that was written for it and has the same
rows (`bench/nexmark/statements/spark`): windows by its own functions, the best row of a group by
`max_by`, distinct values by `collect_set`, since streams refuse COUNT(DISTINCT). Rows of windows
are final (append), tables by key are reported as they change (update), to no sink, as files take
final rows only. An auction of q9 is final when no bid can come for it, so its event time there is
`expires`.

Limits: no program for q4, which aggregates a running aggregate, and for q6, OVER over rows that
change. For comparison, later events close what is open at the end.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from bench.nexmark.answers import answer, bag, other_rows
from bench.nexmark.events import Nexmark, side_input
from bench.nexmark.nexmark import read_by
from bench.nexmark.running import (
    events_a_second,
    files,
    for_spark,
    registered,
    side_table,
    statement,
)
from bench.query_runs import icestream_session, run_all

#: columns of the key of statements that run in mode `update`; all others run in `append`
KEYS = {
    "q12": (0, 2), "q15": (0,), "q16": (0, 1), "q17": (0, 1), "q18": (0, 1), "q19": (0,),
}  # fmt: skip
#: the column with the event time of a stream, where it is not `dateTime`
TIMES = {("q9", "auction"): "expires"}


def asked(spark: SparkSession, name: str, folder: Path) -> DataFrame:
    """Return the rows of a statement over the files of a folder."""
    registered(spark)
    side_table(spark).createOrReplaceTempView("side_input")
    for stream in read_by(statement(name)):
        time = TIMES.get((name, stream), "dateTime")
        rows = files(spark, folder, stream).withWatermark(time, "2 seconds")
        rows.createOrReplaceTempView(stream)
    return spark.sql(for_spark(name))


def rows_of(spark: SparkSession, name: str, source: Path, checkpoint: str) -> Counter[Any]:
    """Return the table that the rows of a statement add up to."""
    key, newest = KEYS.get(name), dict[tuple[Any, ...], list[tuple[Any, ...]]]()
    final: list[tuple[Any, ...]] = []

    def take(batch: DataFrame, _number: int) -> None:
        rows = [tuple(row) for row in batch.collect()]
        if key is None:
            final.extend(rows)
            return
        changed: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
        for row in rows:
            changed.setdefault(tuple(row[place] for place in key), []).append(row)
        newest.update(changed)

    writer = asked(spark, name, source).writeStream.option("checkpointLocation", checkpoint)
    writer = writer.outputMode("append" if key is None else "update").foreachBatch(take)
    writer.trigger(availableNow=True).start().awaitTermination()
    return bag(final + [row for rows in newest.values() for row in rows])


def run(spark: SparkSession, plan: dict[str, Any]) -> dict[str, Any]:
    """Run one statement over all files; return its rate, or how many of its rows are not right."""
    name, source = plan["name"], Path(plan["input"])
    checkpoint = f"{plan['output']}/checkpoint"
    if plan["compared"]:
        count, slowly = plan["compared"]
        tables = Nexmark(count, rate=slowly).tables()
        wanted = answer(name, {**tables, "side_input": side_input()})
        found = rows_of(spark, name, source, checkpoint)
        return {"name": name, "other_rows": other_rows(name, found, wanted)}
    writer = asked(spark, name, source).writeStream.option("checkpointLocation", checkpoint)
    writer = writer.outputMode("update" if name in KEYS else "append")
    writer = writer.format("noop" if name in KEYS else "parquet")
    query = writer.option("path", f"{plan['output']}/out").trigger(availableNow=True).start()
    query.awaitTermination()
    state = Path(checkpoint) / "state"
    held = sum(each.stat().st_size for each in state.rglob("*") if each.is_file())
    return {"name": name, "eps": events_a_second(query.recentProgress, plan), "state_bytes": held}


if __name__ == "__main__":
    run_all(icestream_session, run)
