"""Nexmark's statements by Icestream, one after the other; results are written as Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import icestream as ice
from bench.nexmark.running import asked, ran, sources
from bench.query_runs import icestream_session, run_all
from bench.steady import steady_rate


def run(spark: SparkSession, plan: dict[str, Any]) -> dict[str, Any]:
    """Run one statement over all files; return its rate."""
    query = asked(plan["name"], sources(spark, Path(plan["input"])))
    folder, memory = Path(plan["output"]), plan["memory"]
    _, ended = ran(query, spark, folder, memory=memory)
    kind = "spark" if isinstance(query, DataFrame) else "events"
    kind = "windows" if isinstance(query, ice.Result) else kind
    eps = steady_rate(ended.recentProgress, plan["skip"])
    held = sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())
    written = sum(each.stat().st_size for each in (folder / "out").rglob("*") if each.is_file())
    return {"name": plan["name"], "eps": eps, "form": kind, "state_bytes": held - written}


if __name__ == "__main__":
    run_all(icestream_session, run)
