"""Results written once: the rate of a query into a table, relative to the same query into `noop`.

Idea: two queries from Parquet files, every batch committed: VWAP, which emits a row per event, and
the figures of the call centres in append mode. Each runs into `noop`, Parquet, Delta and Iceberg,
in turn in one process, several rounds; ratios are of the best rates, because whatever else runs on
the machine only slows a query down. `noop` writes rows to the checkpoint, as every sink does whose
rows the tasks cannot write; the tables get them from the tasks as their own files.

Run as `python -m bench.windows.sinks PLAN`; prints one JSON line per run of the plan.

Invariants:
1. Every table has the rows of the others (`test_tables_of_all_sinks_are_compared`).

Limits: in size `small` batches are few: do not quote it.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness import scratch, workspace
from bench.processes import results
from bench.registry import Bar, Bench, Figures, Measurement, ProgressLog, Size
from bench.windows import call_centre, vwap_on_spark

CORES = 2
#: seconds after which the process is stopped
LIMIT = 3_600.0
SINKS = ("noop", "parquet", "delta", "iceberg")
QUERIES = ("vwap", "call centre")
#: required rate into Parquet, relative to noop, and into the lakes, relative to Parquet
LEAST_PARQUET = 0.85
LEAST_LAKE = 0.8

_TRADES = "time timestamp, symbol int, price double, volume int"


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is run."""

    trades: vwap_on_spark.Scale
    calls: call_centre.Scale
    rounds: int


SCALES = {
    Size.SMALL: Scale(
        vwap_on_spark.Scale(rate=100, batch=200_000, batches=6, skip=3),
        call_centre.Scale(600, 300, 1, 900, 300, "256 MB", 2),
        rounds=2,
    ),
    Size.FULL: Scale(
        vwap_on_spark.Scale(rate=1_000, batch=500_000, batches=18, skip=9),
        call_centre.Scale(3_600, 600, 2, 7_200, 1_200, "512 MB", 2),
        rounds=3,
    ),
}


def measure(size: Size, progress: ProgressLog) -> Measurement:
    """Run both queries into all sinks, in turn."""
    scale, root = SCALES[size], workspace()
    progress.plan(1 + len(QUERIES) * len(SINKS) * scale.rounds)
    progress.step("writing the events")
    work = scratch(root, "sinks")
    vwap_on_spark.write_events(work / "trades", scale.trades)
    calls = _linked(call_centre.write_events(scale.calls, root), work / "calls", scale.calls)
    batches = scale.calls.total // scale.calls.file_seconds // scale.calls.files_per_trigger
    inputs = {
        "vwap": {"input": str(work / "trades"), "files": 1, "skip": scale.trades.skip},
        "call centre": {
            "input": str(calls),
            "files": scale.calls.files_per_trigger,
            "skip": batches // 2,
            "window": scale.calls.window,
        },
    }
    runs = [
        {
            "query": query,
            "sink": sink,
            "memory": scale.calls.memory,
            "folder": str(work / f"{query}-{sink}-{number}".replace(" ", "-")),
            **inputs[query],
        }
        for number in range(scale.rounds)
        for query in QUERIES
        for sink in SINKS
    ]
    command = [sys.executable, "-m", "bench.windows.sinks"]
    found = results(
        command,
        {"cores": CORES, "runs": runs},
        limit=LIMIT,
        on_result=lambda each: progress.step(f"{each['query']} into {each['sink']}: {each['eps']}"),
    )
    shutil.rmtree(work, ignore_errors=True)
    figures = summarise(found)
    return Measurement(figures, judge(figures))


def _linked(events: Path, target: Path, scale: call_centre.Scale) -> Path:
    """Return a folder with as many files as the scale has; earlier benches may have left more."""
    target.mkdir()
    for number in range(scale.total // scale.file_seconds):
        os.link(events / f"{number:06d}.parquet", target / f"{number:06d}.parquet")
    return target


def summarise(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the best rate of each query into each sink, the ratios, and tables that differ."""
    figures: dict[str, Any] = {}
    for query in QUERIES:
        mine = [each for each in found if each["query"] == query]
        rates = {
            sink: max((e["eps"] for e in mine if e["sink"] == sink and e["eps"]), default=None)
            for sink in SINKS
        }
        tables = {(each["rows"], each["check"]) for each in mine if each["sink"] != "noop"}
        figures[query] = {
            "events_per_second": rates,
            "parquet_to_noop": _ratio(rates["parquet"], rates["noop"]),
            "delta_to_parquet": _ratio(rates["delta"], rates["parquet"]),
            "iceberg_to_parquet": _ratio(rates["iceberg"], rates["parquet"]),
            "rows": max((each["rows"] for each in mine), default=0),
            "different_tables": max(0, len(tables) - 1),
        }
    return figures


def _ratio(one: float | None, other: float | None) -> float | None:
    return one / other if one and other else None


def judge(figures: Figures) -> tuple[Bar, ...]:
    """Compare the figures with the claims."""
    bars: list[Bar] = []
    for query in QUERIES:
        mine = figures[query]
        bars += [
            Bar.at_least(f"{query}: Parquet to noop", LEAST_PARQUET, mine["parquet_to_noop"]),
            Bar.at_least(f"{query}: Delta to Parquet", LEAST_LAKE, mine["delta_to_parquet"]),
            Bar.at_least(f"{query}: Iceberg to Parquet", LEAST_LAKE, mine["iceberg_to_parquet"]),
            Bar.at_most(f"{query}: tables that differ", 0, mine["different_tables"]),
        ]
    return tuple(bars)


def plot(figures: Figures, target: Path) -> None:
    """Draw the rates as bars, relative to `noop`."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only drawing needs it

    drawing = Figure(figsize=(7, 3), layout="constrained")
    for axes, query in zip(drawing.subplots(1, len(QUERIES)), QUERIES, strict=True):
        rates = figures[query]["events_per_second"]
        base = rates["noop"] or 1.0
        drawn = axes.bar(list(rates), [(rate or 0.0) / base for rate in rates.values()])
        axes.bar_label(drawn, [f"{(rate or 0.0) / base:.2f}" for rate in rates.values()])
        axes.axhline(LEAST_PARQUET, linewidth=0.8, linestyle="--")
        axes.set_title(f"{query}, relative to noop")
    target.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(target, dpi=150)


def run(spark: Any, plan: dict[str, Any]) -> dict[str, Any]:
    """Run one query over all its files into one sink."""
    from bench.steady import steady_rate  # noqa: PLC0415 - for the process that runs Spark

    folder = Path(plan["folder"])
    folder.mkdir(parents=True)
    writer = _result(spark, plan).writeStream.format(plan["sink"])
    writer = writer.options(**_options(plan["sink"], folder)).memory(plan["memory"])
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    rows, check = (0, 0.0) if plan["sink"] == "noop" else _read_back(plan, folder)
    found = {
        "query": plan["query"],
        "sink": plan["sink"],
        "eps": steady_rate(query.recentProgress, plan["skip"]),
        "rows": rows,
        "check": check,
        "phases": query.recentProgress[-1]["durationMs"],
    }
    shutil.rmtree(folder)
    return found


def _result(spark: Any, plan: dict[str, Any]) -> Any:
    import icestream as ice  # noqa: PLC0415

    if plan["query"] == "vwap":
        files = spark.readStream.schema(_TRADES).option("maxFilesPerTrigger", plan["files"])
        trades = ice.stream(files.parquet(plan["input"]), time="time", slack="0 seconds")
        average = ice.weighted_avg("price", "volume").alias("vwap")
        return trades.window("1 hour", slide="event").groupBy("symbol").agg(average)
    from bench.windows.call_centre_query import figures  # noqa: PLC0415
    from icestream.demo.call_centre.kpis import GROUPINGS  # noqa: PLC0415
    from icestream.demo.call_centre.schema import SPARK_SCHEMA  # noqa: PLC0415

    files = spark.readStream.schema(SPARK_SCHEMA).option("maxFilesPerTrigger", plan["files"])
    calls = ice.stream(files.parquet(plan["input"]), "timestamp", slack=call_centre.SLACK)
    windows = calls.window(f"{plan['window']} seconds", slide=f"{call_centre.SLIDE} seconds")
    return windows.groupingSets([[key] for key in GROUPINGS], *GROUPINGS).agg(*figures())


def _options(sink: str, folder: Path) -> dict[str, str]:
    if sink == "iceberg":
        return {
            "path": "bench.rows",
            "catalog.type": "sql",
            "catalog.uri": f"sqlite:///{folder}/catalogue.db",
            "catalog.warehouse": f"file://{folder}/warehouse",
        }
    return {} if sink == "noop" else {"path": str(folder / "table")}


def _read_back(plan: dict[str, Any], folder: Path) -> tuple[int, float]:
    """Return the rows of a table, and a sum over them that is the same in every order."""
    import duckdb  # noqa: PLC0415

    where = "warehouse/bench/rows" if plan["sink"] == "iceberg" else "table"
    value = "vwap" if plan["query"] == "vwap" else "calls"
    [(rows, total)] = duckdb.execute(
        f"select count(*), round(sum({value}), 3) from '{folder / where}/**/*.parquet'"
    ).fetchall()
    return int(rows), float(total)


BENCH = Bench(
    "sinks",
    "writing results to a table costs at most 15 % of the rate of a query",
    measure,
    plot,
)


if __name__ == "__main__":
    from bench.query_runs import icestream_session, run_all

    run_all(icestream_session, run)
