"""The whole call-centre query: 144 figures over a day that does not fit into memory, on Spark.

Idea: the stream of the paper (1,000 events a second) fills a window of 24 hours, 86.4 million
    events,
within 512 MB. After one and a half windows of warm-up the rate is measured in mode `changes`, then
the same checkpoint continues in append mode. Rows of windows of both are compared with DuckDB's
results over the files. The log stores the raw events; a second run stores panes and is reported
too. `call_centre_over_time` draws memory, latency and throughput while a window fills.

Cost: full size generates 147 million events (about 8 GB of files) and a log of the same size.

Limits: in size `small` the window is an hour. The rate of warm-up is not part of the claim.

References: section 5.2, Figure 10 and appendix A of the source named in `docs/papers.md`.
"""

from __future__ import annotations

import os
import shutil
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from bench.harness import scratch, workspace
from bench.processes import results
from bench.registry import Bar, Bench, Figures, Measurement, ProgressLog, Size
from bench.windows import call_centre_over_time as over_time
from icestream.core.units import parse_bytes
from icestream.demo.call_centre.generator import BEGIN, AgentInteractions
from icestream.demo.call_centre.kpis import FIELDS, GROUPINGS
from icestream.demo.call_centre.schema import ARROW_SCHEMA

RATE = 1_000
SLIDE = 10
SLACK = "2 seconds"
SECOND = 1_000_000
LIMIT = 3_000.0
CORES = 2
#: sum, count and average of each field by each key
FIGURES = 3 * len(FIELDS) * len(GROUPINGS)


@dataclass(frozen=True, slots=True)
class Scale:
    """The size of a run."""

    #: seconds of the window
    window: int
    #: seconds of event time in a file, and files in a batch
    file_seconds: int
    files_per_trigger: int
    #: seconds of event time measured in mode `changes`, and in `append`
    measured: int
    appended: int
    memory: str
    #: windows whose rows are compared
    compared: int

    @property
    def warm(self) -> int:
        """Return the seconds of event time of warm-up: one and a half windows."""
        return self.window * 3 // 2

    @property
    def total(self) -> int:
        """Return the seconds of event time of the whole run."""
        return self.warm + self.measured + self.appended


SCALES = {
    Size.SMALL: Scale(3_600, 300, 2, 1_800, 600, "64 MB", 2),
    Size.FULL: Scale(86_400, 1_200, 2, 14_400, 2_400, "512 MB", 2),
}


def measure(size: Size, progress: ProgressLog) -> Measurement:
    """Write the events, run both stores, compare rows, and draw the window filling."""
    scale, root = SCALES[size], workspace()
    progress.plan(7)
    progress.step("writing the events")
    events = write_events(scale, root)
    figures: dict[str, Any] = {"figures": FIGURES, "window_events": scale.window * RATE}
    for store in ("tuples", "panes"):
        progress.step(f"{store}: warm-up and mode changes")
        work = scratch(root, f"call-centre-{store}")
        updates = _run(scale, events, work, store, "changes", scale.warm + scale.measured)
        progress.step(f"{store}: append mode")
        appends = _run(scale, events, work, store, "append", scale.total)
        compared = _compare(scale, events, work)
        figures[store] = _figures(scale, updates, appends) | compared
        progress.note(f"{store}: {figures[store]}")
        shutil.rmtree(work)
    progress.step("memory, latency and throughput over time")
    figures["over_time"] = over_time.measure(size)
    return Measurement(figures, judge(figures))


def write_events(scale: Scale, root: Path) -> Path:
    """Write the stream as Parquet, reusing existing files; modified one second apart."""
    target = root / "artifacts" / "data" / f"call-centre-{scale.file_seconds}"
    target.mkdir(parents=True, exist_ok=True)
    missing = [
        number
        for number in range(-(-scale.total // scale.file_seconds))
        if not (target / f"{number:06d}.parquet").exists()
    ]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(_write_file, [(target, scale.file_seconds, number) for number in missing]))
    return target


def _write_file(task: tuple[Path, int, int]) -> None:
    folder, seconds, number = task
    path = folder / f"{number:06d}.parquet"
    fresh = path.with_suffix(".new")
    dictionary = [name for name in ARROW_SCHEMA.names if name not in {"timestamp", "start"}]
    rows = AgentInteractions(rate=RATE).table(number * seconds * RATE, seconds * RATE)
    pq.write_table(
        rows, fresh, compression="lz4", use_dictionary=dictionary, write_statistics=False
    )
    changed = BEGIN // SECOND + number
    os.utime(fresh, (changed, changed))
    fresh.rename(path)


def _run(
    scale: Scale, events: Path, work: Path, store: str, mode: str, until: int
) -> list[dict[str, Any]]:
    """Run the query over the files up to a second of event time; return its reports."""
    shown = work / "events"
    shown.mkdir(exist_ok=True)
    for number in range(until // scale.file_seconds):
        link = shown / f"{number:06d}.parquet"
        if not link.exists():
            os.link(events / link.name, link)
    batch = scale.file_seconds * scale.files_per_trigger
    plan = {
        "cores": CORES,
        "input": str(shown),
        "files_per_trigger": scale.files_per_trigger,
        "slack": SLACK,
        "range": f"{scale.window} seconds",
        "slide": f"{SLIDE} seconds",
        "mode": mode,
        "store": store,
        "memory": scale.memory,
        "checkpoint": str(work / "checkpoint"),
        "output": str(work / mode),
        "keep_from": scale.warm // batch if mode == "changes" else 0,
    }
    return results([sys.executable, "-m", "bench.windows.call_centre_query"], plan, limit=LIMIT)


def _figures(
    scale: Scale, updates: list[dict[str, Any]], appends: list[dict[str, Any]]
) -> dict[str, Any]:
    batches = [each for each in updates if "version" in each]
    warm = scale.warm // (scale.file_seconds * scale.files_per_trigger)
    later = [each for each in appends if "version" in each]
    every = [each["icestream"] for each in (*batches, *later)]
    return {
        "update_events_per_second": _rate(batches[warm:]),
        "update_rows": sum(each["icestream"]["resultRows"] for each in batches[warm:]),
        "append_events_per_second": _rate(later[1:] or later),
        "append_rows": sum(each["icestream"]["resultRows"] for each in later),
        "warm_up_events_per_second": _rate(batches[2:warm]),
        "peak_memory_bytes": max(each["peakMemoryBytes"] for each in every),
        "budget_bytes": parse_bytes(scale.memory),
        "log_bytes": max(each["logBytes"] for each in every),
        "groups": max(each["groups"] for each in every),
        "late_events": every[-1]["lateEvents"],
        "workers_bytes": max(each["workers_bytes"] for each in updates if "workers_bytes" in each),
        "seconds_per_batch": {
            name: value / 1000 for name, value in batches[-1]["durationMs"].items()
        },
    }


def _rate(batches: list[dict[str, Any]]) -> float:
    spent = sum(each["durationMs"]["triggerExecution"] for each in batches)
    return float(1_000 * sum(each["numInputRows"] for each in batches) / max(1, spent))


def _compare(scale: Scale, events: Path, work: Path) -> dict[str, int]:
    """Compare rows of the first windows of either mode with DuckDB's over the files."""
    import duckdb  # noqa: PLC0415 - only the comparison needs it

    base = duckdb.connect()
    base.execute("set TimeZone = 'UTC'; set memory_limit = '6GB'; set threads = 2")
    wrong = rows = 0
    for mode in ("changes", "append"):
        found = f"read_parquet('{work / mode}/*/*.parquet')"
        ends = base.execute(
            f'select distinct "window".end e from {found} order by e limit {scale.compared}'
        ).fetchall()
        for (end,) in ends:
            last = int(end.timestamp())
            _load_window(base, scale, events, last)
            for grouping in GROUPINGS:
                got, missed = _differences(base, found, grouping, last, mode)
                rows, wrong = rows + got, wrong + missed
    return {"compared_rows": rows, "wrong_rows": wrong}


def _load_window(base: Any, scale: Scale, events: Path, end: int) -> None:
    """Create a table of the sums of a window by all keys except the agent, and one by agent."""
    start = end - scale.window
    first = max(0, start - SLIDE - BEGIN // SECOND) // scale.file_seconds
    last = (end + 2 - BEGIN // SECOND) // scale.file_seconds
    names = [str(events / f"{number:06d}.parquet") for number in range(first, last + 1)]
    paths = ", ".join(f"'{name}'" for name in names if Path(name).exists())
    base.execute(
        f"""create or replace view inside as select *, epoch(timestamp) as at
        from read_parquet([{paths}])
        where timestamp >= to_timestamp({start}) and timestamp < to_timestamp({end})"""
    )
    base.execute(
        f"""create or replace view touched as select * from read_parquet([{paths}])
        where timestamp >= to_timestamp({start - SLIDE}) and timestamp < to_timestamp({start})
        or timestamp >= to_timestamp({end - SLIDE}) and timestamp < to_timestamp({end})"""
    )


def _differences(base: Any, found: str, grouping: str, end: int, mode: str) -> tuple[int, int]:
    bit = 1 << (len(GROUPINGS) - 1 - GROUPINGS.index(grouping))
    told = (1 << len(GROUPINGS)) - 1 - bit
    sums = ", ".join(f"sum({name})::bigint" for name in FIELDS)
    means = ", ".join(f"sum({name})::double / count(*)" for name in FIELDS)
    ours = ", ".join([*(f"sum_{name}" for name in FIELDS), *(f"avg_{name}" for name in FIELDS)])
    only = f"where {grouping} in (select {grouping} from touched)" if mode == "changes" else ""
    wanted = f"select {grouping}, count(*), {sums}, {means} from inside {only} group by {grouping}"
    got = (
        f"select {grouping}, calls, {ours} from {found} where grouping_id = {told} "
        f'and "window".end = to_timestamp({end}) and calls > 0'
    )
    counts = base.execute(
        f"""with wanted as materialized ({wanted}), got as materialized ({got})
        select (select count(*) from got),
            (select count(*) from (from got except all from wanted))
            + (select count(*) from (from wanted except all from got))"""
    ).fetchall()[0]
    return int(counts[0]), int(counts[1])


def judge(figures: Figures) -> tuple[Bar, ...]:
    """Compare the figures of the raw events with the claims, and both with DuckDB."""
    raw = figures["tuples"]
    both = [figures[store] for store in ("tuples", "panes")]
    over = max(each["peak_memory_bytes"] - each["budget_bytes"] for each in both)
    return (
        Bar.at_least("update_events_per_second", 100_000, raw["update_events_per_second"]),
        Bar.at_most("wrong_rows", 0, max(each["wrong_rows"] for each in both)),
        Bar.at_least("compared_rows", 1_000, min(each["compared_rows"] for each in both)),
        Bar.at_most("peak_memory - budget", 0, over),
        *over_time.judge(figures["over_time"]),
    )


def plot(figures: Figures, target: Path) -> None:
    """Draw the window filling."""
    over_time.plot(figures["over_time"], target)


BENCH = Bench(
    "call-centre",
    "144 figures over a day of raw events, 86.4 million, run on Spark in 512 MB, exactly",
    measure,
    plot,
)
