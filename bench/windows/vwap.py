"""A result per event over an hour of trades on disk, with two blocks in memory.

Idea: the query is SUM(volume * price) / SUM(volume) of each symbol over the last hour, with a
result for every event, by the operator alone in one process. *Runs* push events as fast as they are
accepted: after one and a half windows everything is steady, and one and a half windows more are
measured. Blocks are written past the page cache and read back from the device; the bytes are
compared with what the process read according to the kernel. *Rates* send events when they are due,
as in a live stream, and measure how long after its due time each event had its result.

Invariants:
1. The last result of every symbol equals the exact one, added up from the table of trades; all runs
   over the same events have the same checksum of results (`test_runs_agree_and_are_exact`).
2. Latency counts from when an event was due (`pacing`).

Cost: `full` moves some 60 GB in about six minutes, and as long again on Spark.

Limits: events are generated where they are consumed, as in the paper.

References: section 5.3 and table 1 of SlideM; `docs/performance.md`.
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from bench.disk import between, raw_speed, sample
from bench.harness import scratch, workspace
from bench.processes import results
from bench.registry import Bar, Bench, Figures, Measurement, ProgressLog, Size
from bench.research.request_formulas import requests_per_second
from bench.research.window_blocks.per_event import Extent, SlidingAverages, weighted_layout
from bench.research.window_blocks.repository import WindowRepository
from bench.research.window_blocks.store import LogStore, SlotStore
from bench.updates.pacing import send_at_once, send_when_due
from bench.windows import vwap_on_spark
from bench.windows.trades import SECOND, SYMBOLS, TradeColumns

#: events that are fed at once
BATCH = 100_000
#: seconds after which a process is stopped
LIMIT = 1_800.0


@dataclass(frozen=True, slots=True)
class VwapRun:
    """Events as fast as they are accepted."""

    name: str
    #: seconds of events in a window, and events in a second of event time
    range: int
    rate: int
    mode: str = "log"
    pool: int = 2
    #: blocks being written, and being read ahead, in addition to the pool
    behind: int = 1
    ahead: int = 1
    #: windows of events before and during the measurement
    warm: float = 1.5
    measured: float = 1.5

    @property
    def events(self) -> int:
        """Events in a window."""
        return self.range * self.rate


@dataclass(frozen=True, slots=True)
class Scale:
    """The size of a run."""

    runs: tuple[VwapRun, ...]
    #: events in a second; 0 means as many as are accepted
    rates: tuple[int, ...]
    #: seconds of a window, and of the measurement, at each rate
    range: int
    seconds: float
    #: bytes used to measure the disk's raw speed, and minimum bytes of the first run's window
    raw: int
    least_window: int


PACED = (50_000, 100_000, 150_000, 200_000, 250_000, 300_000)
SCALES = {
    Size.SMALL: Scale(
        runs=(
            VwapRun("overlapped", 100, 100_000),
            VwapRun("two blocks only", 100, 100_000, behind=0, ahead=0),
            VwapRun("slots", 100, 100_000, mode="slots"),
        ),
        rates=(50_000, 300_000, 1_000_000),
        range=4,
        seconds=3.0,
        raw=256 << 20,
        least_window=200 << 20,
    ),
    Size.FULL: Scale(
        runs=(
            VwapRun("overlapped", 3_600, 100_000),
            VwapRun("two blocks only", 600, 100_000, behind=0, ahead=0),
            VwapRun("slots", 600, 100_000, mode="slots"),
            VwapRun("four on the way", 600, 100_000, behind=4, ahead=4),
        ),
        rates=(*PACED, 1_000_000, 3_000_000, 0),
        range=10,
        seconds=10.0,
        raw=2 << 30,
        least_window=8 << 30,
    ),
}


class VwapOperator:
    """The query over one window, on disk."""

    def __init__(self, run: VwapRun, folder: Path) -> None:
        """Start with an empty window."""
        layout = weighted_layout()
        store = (
            SlotStore(str(folder), layout.block_bytes)
            if run.mode == "slots"
            else LogStore(str(folder), layout.block_bytes)
        )
        self.layout = layout
        self.repository = WindowRepository(
            layout, store, run.pool, behind=run.behind, ahead=run.ahead
        )
        self.averages = SlidingAverages(self.repository, [Extent(run.range * SECOND)], SYMBOLS)
        self.trades = TradeColumns(run.rate)
        self.results = np.empty((1, BATCH))
        self.checksum = xxhash.xxh3_64()
        self.fed = 0
        self._last = 0

    def feed(self, until: int) -> None:
        """Feed events up to a number; results go into the checksum."""
        for events in self.trades.batches(self.fed, until, BATCH):
            self._last = len(events[0])
            found = self.results[:, : self._last]
            self.averages.feed(*events, found)
            self.checksum.update(found.data)
        self.fed = until

    def wrong(self, window: int) -> int:
        """Count the symbols whose last result is not the exact one."""
        last = self.results[0, self._last - SYMBOLS : self._last].tolist()
        first = self.fed - SYMBOLS
        return sum(self.trades.average(first + i, window) != found for i, found in enumerate(last))


def run_fast(run: VwapRun, folder: str) -> dict[str, Any]:
    """Push events through, in this process."""
    place = Path(folder)
    operator = VwapOperator(run, place)
    repository = operator.repository
    warm = _whole(run.warm * run.events)
    operator.feed(warm)
    earlier = replace(repository.counters)
    before = sample(place)
    end = warm + _whole(run.measured * run.events)
    operator.feed(end)
    used = between(before, sample(place))
    block = operator.layout.block_bytes
    counters = repository.counters
    left = (counters.evicted - earlier.evicted) * block
    asked = counters.rewriting - earlier.rewriting
    once = counters.writing_once - earlier.writing_once
    fetched = counters.fetched - earlier.fetched
    rate = (end - warm) / used.seconds
    foretold = requests_per_second(rate, block, operator.layout.tuple_bytes)
    found = {
        "events_per_second": rate,
        "window_bytes": run.events * operator.layout.tuple_bytes,
        "pool_blocks": run.pool,
        "pool_bytes": run.pool * block,
        "on_the_way_bytes": repository.frame_bytes - run.pool * block,
        "index_bytes": repository.index_bytes,
        "sums_bytes": operator.averages.state_bytes,
        "file_bytes": repository.file_bytes,
        "past_page_cache": repository.direct,
        "evicted_bytes": left,
        "device_read_bytes": used.read,
        "read_to_evicted": None if used.read is None else used.read / left,
        "disk_bytes_per_second": (
            None
            if used.read is None or used.written is None
            else (used.read + used.written) / used.seconds
        ),
        "disk_queue": used.queue,
        "cores_used": used.cpu,
        "requests_per_second": asked / used.seconds,
        "requests_per_second_written_once": once / used.seconds,
        "read_ahead": (counters.ahead - earlier.ahead) / fetched,
        "requests_to_formula": asked / used.seconds / foretold,
        "checksum": operator.checksum.hexdigest(),
        "wrong_results": operator.wrong(run.events),
        "seconds": used.seconds,
    }
    repository.close()
    return found


def run_paced(run: VwapRun, rate: int, seconds: float, folder: str) -> dict[str, Any]:
    """Send events when they are due, in this process; at rate 0, at once."""
    place = Path(folder)
    operator = VwapOperator(run, place)
    operator.feed(_whole(1.5 * run.events))
    before = sample(place)
    waits = (
        send_when_due(operator.fed, rate, seconds, operator.feed)
        if rate
        else send_at_once(operator.fed, seconds, operator.feed)
    )
    used = between(before, sample(place))
    moved = None if used.read is None or used.written is None else used.read + used.written
    found = {
        "rate": rate or None,
        "events_per_second": waits.events / used.seconds,
        "window_bytes": run.events * operator.layout.tuple_bytes,
        "latency_ms": waits.total / waits.events * 1_000,
        "latency_max_ms": waits.longest * 1_000,
        "service_us": waits.serving / waits.events * 1e6,
        "cores_used": used.cpu,
        "disk_queue": used.queue,
        "disk_bytes_per_second": None if moved is None else moved / used.seconds,
    }
    operator.repository.close()
    return found


def measure(size: Size, progress: ProgressLog) -> Measurement:
    """Measure the disk, then the runs, then the rates, each in a process of its own."""
    scale, root = SCALES[size], workspace()
    progress.plan(2 + len(scale.runs) + len(scale.rates))
    folder = scratch(root, "vwap")
    progress.step("raw speed of the disk")
    raw = {
        name: raw_speed(folder, scale.raw, request)
        for name, request in (("64 KB", 64 << 10), ("1 MB", 1 << 20))
    }
    figures: dict[str, Any] = {}
    for run in scale.runs:
        progress.step(f"{run.name}: {run.events * 24 / 1e9:.2f} GB")
        figures[run.name] = _apart({"run": asdict(run)}, folder)
        progress.note(f"{run.name}: {figures[run.name]['events_per_second']:,.0f} events/s")
    for rate in scale.rates:
        label = f"{rate:,}/s" if rate else "most"
        progress.step(label)
        run = VwapRun(label, scale.range, rate or max(scale.rates))
        asked = {"run": asdict(run), "rate": rate, "seconds": scale.seconds}
        figures[label] = _apart(asked, folder)
    shutil.rmtree(folder, ignore_errors=True)
    progress.step("on Spark")
    figures["on Spark"] = vwap_on_spark.measure(size)
    figures |= {f"disk, {name} requests": speeds for name, speeds in raw.items()}
    moved = figures[scale.runs[0].name]["disk_bytes_per_second"]
    figures["share_of_disk"] = None if moved is None else moved / raw["1 MB"]["both"]
    figures["least_window_bytes"] = scale.least_window
    return Measurement(figures, judge(figures))


def judge(figures: Figures) -> tuple[Bar, ...]:
    """Compare the figures with the claims."""
    run = figures["overlapped"]
    runs = [one for one in figures.values() if isinstance(one, dict) and "wrong_results" in one]
    alike = [one["checksum"] for one in runs if one["window_bytes"] == runs[-1]["window_bytes"]]
    on_spark = figures["on Spark"]
    average = on_spark[vwap_on_spark.AVERAGE]
    large = average["window_bytes"] >= figures["least_window_bytes"]
    return (
        *(_whole_query(average) if large else ()),
        Bar.at_most("log on Spark to its columns", 1.2, average["log_to_columns"]),
        Bar.at_most(
            "wrong results on Spark", 0, sum(one["wrong_results"] for one in on_spark.values())
        ),
        Bar.at_least("events_per_second", 3e6, run["events_per_second"]),
        Bar.at_least("window_bytes", figures["least_window_bytes"], run["window_bytes"]),
        Bar.at_most("pool_blocks", 2, run["pool_blocks"]),
        Bar.at_least("read_to_evicted", 0.95, run["read_to_evicted"]),
        Bar.at_most("wrong_results", 0, sum(one["wrong_results"] for one in runs)),
        Bar.at_most("different checksums", 1, len(set(alike))),
        # 3.1 holds except for the blocks in which an interval begins or ends
        Bar.at_most("error of formula 3.1", 0.01, abs(run["requests_to_formula"] - 1)),
    )


def _whole_query(found: Figures) -> tuple[Bar, ...]:
    """Compare what the query on Spark did with the claims, which are about a window of 8 GB."""
    return (
        Bar.at_least("events per second on Spark", 1e6, found["events_per_second"]),
        Bar.at_most("p99 of batches on Spark to median", 2, found["batch_p99_to_median"]),
    )


def plot(figures: Figures, target: Path) -> None:
    """Draw latency and the share of a core over the rate."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only drawing needs it

    paced = [one for one in figures.values() if isinstance(one, dict) and one.get("rate")]
    rates = [one["rate"] for one in paced]
    drawing = Figure(figsize=(9, 3.4), layout="constrained")
    waiting, using = drawing.subplots(1, 2)
    for field, label in (("latency_ms", "average"), ("latency_max_ms", "longest")):
        waiting.plot(rates, [one[field] for one in paced], marker="o", label=label)
    waiting.set(xscale="log", yscale="log", xlabel="events per second", ylabel="latency, ms")
    waiting.legend()
    for field, label in (("cores_used", "cores used"), ("disk_queue", "disk queue length")):
        heights = [np.nan if one[field] is None else one[field] for one in paced]
        using.plot(rates, heights, marker="o", label=label)
    using.set(xscale="log", xlabel="events per second")
    using.legend()
    fastest = figures["overlapped"]
    drawing.suptitle(
        f"A result per event, two blocks in memory; at most {fastest['events_per_second']:,.0f} "
        f"events/s over {fastest['window_bytes'] / 1e9:.1f} GB",
        fontsize=10,
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(target, dpi=150)


def _apart(asked: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run in a process of its own."""
    blocks = folder / "blocks"
    shutil.rmtree(blocks, ignore_errors=True)
    blocks.mkdir()
    command = [sys.executable, "-m", "bench.windows.vwap"]
    (found,) = results(command, {**asked, "folder": str(blocks)}, limit=LIMIT)
    return found


def _whole(events: float) -> int:
    """Round up to a multiple of the symbols, so that the last events have one of each."""
    return -(-int(events) // SYMBOLS) * SYMBOLS


BENCH = Bench(
    "vwap",
    "a result per event over a window of 8 GB on disk, with two blocks in memory, at 3 M events/s",
    measure,
    plot,
)

if __name__ == "__main__":
    plan = json.loads(sys.argv[1])
    asked_run = VwapRun(**plan["run"])
    answer = (
        run_paced(asked_run, plan["rate"], plan["seconds"], plan["folder"])
        if "rate" in plan
        else run_fast(asked_run, plan["folder"])
    )
    print(json.dumps(answer), flush=True)
