"""Results written once: the rate of a query into a table, relative to the same query into `noop`.

Idea: two queries from Parquet files, every batch committed: VWAP, which emits a row per event, and
the figures of the call centres in append mode. Each runs into `noop`, Parquet, Delta and Iceberg,
in turn in one process, several rounds; ratios are of the best rates, because whatever else runs on
the machine only slows a query down. `noop` writes rows to the checkpoint, as every sink does whose
rows the tasks cannot write; the tables get them from the tasks as their own files. If the
environment variable `ICESTREAM_BASE` names a checkout of an older commit, the same queries run
there into Parquet, in turn with the rounds here. The claim of 2 times is against commit d63eb61,
which wrote every row twice.

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
from bench.steady import steady_rate
from bench.windows import call_centre, vwap_on_spark
from icestream.demo.call_centre.kpis import FIELDS, GROUPINGS
from icestream.demo.call_centre.schema import SPARK_SCHEMA

CORES = 2
#: seconds after which the process is stopped
LIMIT = 3_600.0
SINKS = ("noop", "parquet", "delta", "iceberg")
QUERIES = ("vwap", "call centre")
#: required rate into Parquet, relative to noop, and into the lakes, relative to Parquet
LEAST_PARQUET = 0.85
LEAST_LAKE = 0.8

#: required rate into Parquet, relative to a checkout that writes rows twice
LEAST_BASE = 2.0
#: environment variable with the folder of that checkout
BASE = "ICESTREAM_BASE"
BASE_PARQUET = "base parquet"


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
    program = str(Path(__file__).with_name("sink_run.py"))
    ways: list[tuple[str, list[str], tuple[str, ...]]] = [("", [sys.executable, program], SINKS)]
    if base := os.environ.get(BASE):
        command = ["env", f"PYTHONPATH={Path(base).resolve()}/src", sys.executable, program]
        # as here, a first run warms the process up
        ways.append(("base", command, ("noop", "parquet")))
    progress.plan(1 + len(QUERIES) * scale.rounds * sum(len(sinks) for *_, sinks in ways))
    progress.step("writing the events")
    work = scratch(root, "sinks")
    vwap_on_spark.write_events(work / "trades", scale.trades)
    calls = _linked(call_centre.write_events(scale.calls, root), work / "calls", scale.calls)
    batches = scale.calls.total // scale.calls.file_seconds // scale.calls.files_per_trigger
    inputs: dict[str, dict[str, Any]] = {
        "vwap": {"input": str(work / "trades"), "files": 1, "skip": scale.trades.skip},
        "call centre": {
            "input": str(calls),
            "files": scale.calls.files_per_trigger,
            "skip": batches // 2,
            "window": f"{scale.calls.window} seconds",
            "slide": f"{call_centre.SLIDE} seconds",
            "slack": call_centre.SLACK,
            "schema": SPARK_SCHEMA,
            "groupings": GROUPINGS,
            "fields": FIELDS,
        },
    }
    found: list[dict[str, Any]] = []
    for number in range(scale.rounds):
        for name, command, sinks in ways:
            runs = [
                {
                    "query": query,
                    "sink": sink,
                    "memory": scale.calls.memory,
                    "folder": str(work / f"{query}-{name}-{sink}-{number}".replace(" ", "-")),
                    **inputs[query],
                }
                for query in QUERIES
                for sink in sinks
            ]
            for each in results(command, {"cores": CORES, "runs": runs}, limit=LIMIT):
                rate = steady_rate(each.pop("reports"), inputs[each["query"]]["skip"])
                sink = " ".join(filter(None, [name, each["sink"]]))
                found.append({**each, "sink": sink, "eps": rate})
                progress.step(f"{each['query']} into {sink}: {rate}")
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
            for sink in (*SINKS, BASE_PARQUET)
        }
        tables = {(e["rows"], e["check"]) for e in mine if not e["sink"].endswith("noop")}
        figures[query] = {
            "events_per_second": rates,
            "parquet_to_noop": _ratio(rates["parquet"], rates["noop"]),
            "delta_to_parquet": _ratio(rates["delta"], rates["parquet"]),
            "iceberg_to_parquet": _ratio(rates["iceberg"], rates["parquet"]),
            "parquet_to_base": _ratio(rates["parquet"], rates[BASE_PARQUET]),
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
        if mine["parquet_to_base"] is not None:
            bars.append(Bar.at_least(f"{query}: to the base", LEAST_BASE, mine["parquet_to_base"]))
    return tuple(bars)


def plot(figures: Figures, target: Path) -> None:
    """Draw the rates as bars, relative to `noop`."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only drawing needs it

    drawing = Figure(figsize=(7, 3), layout="constrained")
    for axes, query in zip(drawing.subplots(1, len(QUERIES)), QUERIES, strict=True):
        rates = {sink: figures[query]["events_per_second"][sink] for sink in SINKS}
        base = rates["noop"] or 1.0
        drawn = axes.bar(list(rates), [(rate or 0.0) / base for rate in rates.values()])
        axes.bar_label(drawn, [f"{(rate or 0.0) / base:.2f}" for rate in rates.values()])
        axes.axhline(LEAST_PARQUET, linewidth=0.8, linestyle="--")
        axes.set_title(f"{query}, relative to noop")
    target.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(target, dpi=150)


BENCH = Bench(
    "sinks",
    "writing results to a table costs at most 15 % of the rate of a query",
    measure,
    plot,
)
