"""Nexmark's statements by Icestream, one after the other; results are written as Parquet.

A run reports its rate or, for comparison, how many of its rows are not those of DuckDB.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import icestream as ice
from bench.nexmark.answers import answer, other_rows
from bench.nexmark.events import Nexmark, side_input
from bench.nexmark.running import asked, events_a_second, output_mode, ran, sources, table_of
from bench.query_runs import icestream_session, run_all


def run(spark: SparkSession, plan: dict[str, Any]) -> dict[str, Any]:
    """Run one statement over all files."""
    name, source, folder = plan["name"], Path(plan["input"]), Path(plan["output"])
    query = asked(name, sources(spark, source, plan["together"]))
    rows, ended = ran(query, spark, folder, mode=output_mode(name), memory=plan["memory"])
    if plan["compared"]:
        count, rate = plan["compared"]
        tables = Nexmark(count, rate=rate).tables()
        wanted = answer(name, {**tables, "side_input": side_input()})
        return {"name": name, "other_rows": other_rows(name, table_of(query, rows), wanted)}
    kind = "spark" if isinstance(query, DataFrame) else "events"
    kind = "windows" if isinstance(query, ice.Result) else kind
    eps = events_a_second(ended.recentProgress, plan)
    held = sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())
    written = sum(each.stat().st_size for each in (folder / "out").rglob("*") if each.is_file())
    return {"name": name, "eps": eps, "form": kind, "state_bytes": held - written}


if __name__ == "__main__":
    run_all(icestream_session, run)
