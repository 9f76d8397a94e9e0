"""Features of a fraud model in one query: 12 columns over 4 keys and 3 ranges, beside Flink's OVER.

Idea: every event gets a count, a sum and an average over its card, merchant, device and country in
the last minute, ten minutes and hour. Icestream reads Parquet, writes Parquet and commits every
batch in 256 MB, a fraction of its state; Flink computes the same rows itself and drops its results.
Flink takes one frame per query, so its statement nests a query for each of the twelve. Eight
windows over the four keys are measured beside a single window: their rate, and the bytes of tuples
on the log that are subtracted once they leave a window.

Limits: in size `small` the hour is not filled. Flink's own state is in memory, or in RocksDB.

References: `Bench` in `registry`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import rows, systems
from bench.harness import scratch, workspace
from bench.registry import Bar, Bench, Figures, Measurement, ProgressLog, Size
from bench.systems import BACKENDS

CORES = 2
MEMORY = "256 MB"
SLACK = "5 seconds"
#: keys as expressions over key and value of `rows`: about 1,000,000, 10,000, 100,000 and 100 values
KEYS = {
    "card": "`key` * 10738 + CAST(`value` * 8 AS BIGINT)",
    "merchant": "CAST(`value` * 8 AS BIGINT)",
    "device": "MOD(CAST(`value` * 8 AS BIGINT), 1000) * 100 + `key`",
    "country": "`key`",
}
#: ranges in Icestream's and in Flink's words, and the function over each
RANGES = (
    ("1 minute", "INTERVAL '1' MINUTE", "count"),
    ("10 minutes", "INTERVAL '10' MINUTE", "sum"),
    ("1 hour", "INTERVAL '1' HOUR", "avg"),
)


#: keys and (range, function) of each measured query; that of all features is compared with Flink
QUERIES: dict[str, tuple[list[str], list[tuple[str, str]]]] = {
    "features": (list(KEYS), [(length, function) for length, _, function in RANGES]),
    "one window": (["card"], [("1 hour", "sum")]),
    "eight windows": (list(KEYS), [("30 minutes", "sum"), ("1 hour", "sum")]),
}


@dataclass(frozen=True, slots=True)
class Scale:
    """The size of a run."""

    rows_per_file: int
    files: int
    files_per_trigger: int
    skip: int
    warm: float
    measure: float


SCALES = {
    Size.SMALL: Scale(100_000, 16, 2, 3, 2.0, 2.0),
    Size.FULL: Scale(250_000, 48, 2, 16, 60.0, 20.0),
}


def measure(size: Size, progress: ProgressLog) -> Measurement:
    """Run both systems over the same events."""
    scale, root = SCALES[size], workspace()
    progress.plan(1 + len(QUERIES) + len(BACKENDS))
    progress.step("writing the events")
    folder = rows.write_files(
        root / "artifacts" / "bench" / "events", scale.files, scale.rows_per_file
    )
    work = scratch(root, "over")
    runs = [
        {
            "name": name, "keys": keys, "windows": windows, "input": str(folder),
            "files_per_trigger": scale.files_per_trigger, "skip": scale.skip, "memory": MEMORY,
            "output": str(work / name / "rows"), "checkpoint": str(work / name / "checkpoint"),
        }
        for name, (keys, windows) in QUERIES.items()
    ]  # fmt: skip
    command = [sys.executable, "-m", "bench.windows.icestream_over"]
    ours, one, eight = systems.watched(
        command, {"cores": CORES, "runs": runs}, "icestream", progress
    )
    flink = systems.peer(lambda: _flink(scale, root, progress), progress)
    best = max((flink[label] for label in BACKENDS if flink.get(label)), default=None)
    figures = {
        "icestream_eps": ours["eps"],
        "state_bytes": ours["state_bytes"],
        "peak_bytes": ours["peak_bytes"],
        "flink_eps": best,
        **{f"flink_{label}_eps": flink.get(label) for label in BACKENDS},
        "ratio_flink": ours["eps"] / best if best and ours["eps"] else None,
        "one_window_eps": one["eps"],
        "eight_windows_eps": eight["eps"],
        "rate of eight / one": eight["eps"] / one["eps"],
        "one_window_tuple_bytes": one["tuple_bytes"],
        "eight_windows_tuple_bytes": eight["tuple_bytes"],
        "log of eight / one": eight["tuple_bytes"] / one["tuple_bytes"],
    }
    bars = (
        Bar.at_least("icestream_eps", 250_000, figures["icestream_eps"]),
        Bar.at_least("ratio_flink", 3, figures["ratio_flink"]),
        Bar.at_least("rate of eight / one", 0.25, figures["rate of eight / one"]),
        Bar.at_most("log of eight / one", 1.2, figures["log of eight / one"]),
    )
    versions = {"flink": flink["version"]} if "version" in flink else {}
    return Measurement(figures, bars, versions)


def flink_query() -> tuple[str, str]:
    """Return the columns of Flink's result, and the query: one inside the other for each frame."""
    keys = ", ".join(f"{text} AS {name}" for name, text in KEYS.items())
    query, columns = f"SELECT ts, `value`, {keys} FROM events", []
    for key in KEYS:
        for number, (_, literal, function) in enumerate(RANGES):
            name = f"{key}_{number}"
            call = "COUNT(*)" if function == "count" else f"{function.upper()}(`value`)"
            query = (
                f"SELECT *, {call} OVER (PARTITION BY {key} ORDER BY ts "
                f"RANGE BETWEEN {literal} PRECEDING AND CURRENT ROW) AS {name} FROM ({query})"
            )
            columns.append(f"{name} {'BIGINT' if function == 'count' else 'DOUBLE'}")
    typed = ", ".join(f"{key} BIGINT" for key in KEYS)
    return f"ts TIMESTAMP_LTZ(3), v DOUBLE, {typed}, {', '.join(columns)}", query


def _flink(scale: Scale, root: Path, progress: ProgressLog) -> dict[str, Any]:
    columns, query = flink_query()
    runs = [
        {
            "name": label, "kind": "query", "columns": columns, "query": query, "cores": CORES,
            "managed_memory": "256m", "checkpoint_every": "5 s", "warm": scale.warm,
            "measure": scale.measure, "backend": backend, "mini_batch": False,
        }
        for label, backend in BACKENDS.items()
    ]  # fmt: skip
    return systems.flink(runs, root, apart=True, progress=progress)


def plot(figures: Figures, target: Path) -> None:
    """Draw the rates as bars."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only drawing needs it

    drawing = Figure(figsize=(5, 3), layout="constrained")
    axes = drawing.subplots()
    found = {"Icestream": figures["icestream_eps"], "Flink": figures["flink_eps"]}
    bars = axes.bar(list(found), [each or 0 for each in found.values()])
    axes.bar_label(bars, [f"{each or 0:,.0f}" for each in found.values()])
    axes.set_ylabel("events per second")
    axes.set_title("12 features over 4 keys and 3 ranges, 2 cores")
    target.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(target, dpi=150)


BENCH = Bench(
    "over",
    "features over several keys and ranges, in the event's row, cost less than Flink's OVER",
    measure,
    plot,
)
