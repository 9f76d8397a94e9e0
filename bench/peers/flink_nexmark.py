"""Nexmark's statements by Flink SQL; needs apache-flink, nothing of Icestream.

Run as `python flink_nexmark.py PLAN`; prints one JSON line per run of the plan.

Idea: each stream is two CSV files, whose rows alternate, so both readers move through event time
together. A job runs to the end of the files. Progress is read from the source's counter, and the
rate is that of the rows after warm-up. Results go to a sink that drops them, or are added up, for
comparison.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from decimal import Decimal
from importlib import metadata
from pathlib import Path
from typing import Any

from flink_jobs import configured, counter, free_port  # type: ignore[import-not-found]
from pyflink.datastream import StreamExecutionEnvironment  # type: ignore[import-not-found]
from pyflink.table import (  # type: ignore[import-not-found]
    StreamTableEnvironment,
    TableDescriptor,
)

#: fraction of the rows after which the rate is measured, and up to which it may begin
WARM, LATEST = 0.25, 0.6
#: seconds between two reads of the counter
LOOK = 0.25
STREAMS = {
    "person": "id BIGINT, name STRING, emailAddress STRING, creditCard STRING, city STRING, "
    "state STRING, `dateTime` TIMESTAMP(3), extra STRING",
    "auction": "id BIGINT, itemName STRING, description STRING, initialBid BIGINT, "
    "reserve BIGINT, `dateTime` TIMESTAMP(3), expires TIMESTAMP(3), seller BIGINT, "
    "category BIGINT, extra STRING",
    "bid": "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, "
    "`dateTime` TIMESTAMP(3), extra STRING",
}
#: a function that the suite registers, in Flink's own
COUNT_CHAR = ("count_char(extra, 'c')", "CHAR_LENGTH(extra) - CHAR_LENGTH(REPLACE(extra, 'c', ''))")


def prepared(run: dict[str, Any], port: int, checkpoints: str) -> StreamTableEnvironment:
    """Create an environment with the streams of a run."""
    environment = StreamExecutionEnvironment.get_execution_environment(
        configured(run, port, checkpoints)
    )
    tables = StreamTableEnvironment.create(environment)
    for name, columns in STREAMS.items():
        tables.execute_sql(
            f"CREATE TEMPORARY TABLE {name} ({columns}, WATERMARK FOR `dateTime` AS `dateTime` - "
            f"INTERVAL '2' SECOND) WITH ('connector' = 'filesystem', 'path' = "
            f"'{run['input']}/{name}', 'format' = 'csv', 'csv.null-literal' = '')"
        )
    return tables


def query(run: dict[str, Any], tables: StreamTableEnvironment) -> Any:
    """Return the table of a statement; views before it are created."""
    *views, text = (part for part in run["text"].replace(*COUNT_CHAR).split(";") if part.strip())
    for view in views:
        tables.execute_sql(view.replace("CREATE VIEW", "CREATE TEMPORARY VIEW"))
    return tables.sql_query(text)


def rate(run: dict[str, Any]) -> dict[str, Any]:
    """Run a statement over all files; return rows of the largest source a second, once warm.

    State is the most that checkpoints had on disk, if one was completed.
    """
    port = free_port()
    with tempfile.TemporaryDirectory() as checkpoints:
        tables = prepared(run, port, checkpoints)
        sink = TableDescriptor.for_connector("blackhole").build()
        job = query(run, tables).execute_insert(sink).get_job_client()
        looks: list[tuple[float, float]] = []
        state = 0
        try:
            read = counter(port, str(job.get_job_id()), f"Source__{run['source']}", "numRecordsOut")
            while True:
                looks.append((time.monotonic(), read()))
                state = max(state, bytes_in(checkpoints))
                time.sleep(LOOK)
        except OSError:
            # the cluster of a job ends with it
            pass
        job.get_job_execution_result().result()
        looks.append((time.monotonic(), float(run["rows"])))
    return {"eps": steady_rate(looks, run["rows"]), "state_bytes": state or None}


def steady_rate(looks: list[tuple[float, float]], rows: int) -> float | None:
    """Return rows a second from the first look with a quarter of all rows to the end.

    None if the source was so far ahead by then that only the end of the job would be timed.
    """
    warm = next(look for look in looks if look[1] >= WARM * rows)
    seconds = looks[-1][0] - warm[0]
    return (rows - warm[1]) / seconds if warm[1] <= LATEST * rows and seconds > 0 else None


def bytes_in(folder: str) -> int:
    """Return the size of all files in a folder."""
    total = 0
    for each in Path(folder).rglob("*"):
        with suppress(OSError):
            total += each.stat().st_size if each.is_file() else 0
    return total


def answer(run: dict[str, Any]) -> list[list[Any]]:
    """Return the rows that a statement adds up to, with their numbers.

    Where Flink reports the new row of a key and not the one that it replaces, the run has the key.
    """
    with tempfile.TemporaryDirectory() as checkpoints:
        tables = prepared(run, free_port(), checkpoints)
        found: Counter[str] = Counter()
        newest: dict[tuple[Any, ...], str] = {}
        with query(run, tables).execute().collect() as rows:
            for row in rows:
                text, kind = json.dumps(list(row), default=plain), row.get_row_kind().name
                if "key" in run:
                    key = tuple(row[place] for place in run["key"])
                    if kind == "UPDATE_AFTER":
                        found[newest[key]] -= 1
                    newest[key] = text
                found[text] += -1 if kind in ("UPDATE_BEFORE", "DELETE") else 1
    return [[json.loads(row), number] for row, number in found.items() if number]


def plain(value: object) -> object:
    """Return a value for JSON: decimals are numbers, times are texts."""
    return float(value) if isinstance(value, Decimal) else str(value)


def main() -> None:
    """Run every job of the plan, one after the other."""
    plan = json.loads(sys.argv[1])
    version = metadata.version("apache-flink")
    for run in plan["runs"]:
        result: dict[str, Any] = {"name": run["name"], "version": version}
        try:
            if run.get("kind") == "rows":
                result["rows"] = answer(run)
            else:
                result |= rate(run)
        except Exception as error:
            result["error"] = str(error).strip().splitlines()[-1][:300]
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
