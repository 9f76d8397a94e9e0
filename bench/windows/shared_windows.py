"""Many windows over one stream, stored once: space and requests, shared and unshared.

Idea: N queries over trades have windows of different lengths, spread evenly between one and two
hours. *Unshared*, each has a repository of its own, and they divide the memory equally; *shared*,
one repository serves all. Space is bytes in memory and on disk; requests are counted per block of
the stream once everything is steady, by the accounting of the paper (every evicted block is
written; measured with slots) and by that of the log (a block is written once). Tuples really go to
files and back; at the end each window's sum of volumes is compared with the exact one.

Invariants:
1. Shared and unshared windows hold exactly their tuples
   (`test_small_cases_are_exact_and_shared_asks_less`).

Cost: O(events * N) comparisons; `full` writes and reads some 100 GB.

Limits: event time only, nothing is paced. The requests of unshared windows are constant from the
moment they are full, so they are warmed up and measured for a shorter time.

References: section 5.4 and figure 11 of Shared SlideM; `bench.research.request_formulas`.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.harness import scratch, workspace
from bench.processes import results
from bench.registry import Bar, Bench, Figures, Measurement, ProgressLog, Size
from bench.research.request_formulas import (
    hit_rate,
    requests_per_second,
    shared_requests_per_block,
    steady_shared_requests_per_block,
)
from bench.research.window_blocks.per_event import Extent, SlidingTotals, weighted_layout
from bench.research.window_blocks.replacement import SharedPool
from bench.research.window_blocks.repository import SharedRepository, WindowRepository
from bench.research.window_blocks.store import BlockStore, LogStore, SlotStore
from bench.windows import shared_frames, shared_slides
from bench.windows.trades import SECOND, SYMBOLS, TradeColumns

BATCH = 100_000
LIMIT = 3_600.0
#: threads that feed independent repositories
THREADS = 2


@dataclass(frozen=True, slots=True)
class Case:
    """N windows over one stream."""

    windows: int
    #: events in a second
    rate: int
    #: seconds of the shortest and of the longest window
    shortest: int
    longest: int
    #: blocks in memory, all windows together
    pool: int
    shared: bool
    mode: str
    #: longest windows of events before and during the measurement
    warm: float
    measured: float
    #: bytes of a file of a log
    file_bytes: int

    @property
    def ranges(self) -> list[int]:
        """Lengths in microseconds, shortest first."""
        step = (self.longest - self.shortest) * SECOND / (self.windows - 1)
        return [round(self.shortest * SECOND + i * step) for i in range(self.windows)]


@dataclass(frozen=True, slots=True)
class Scale:
    """Parameters common to all cases."""

    windows: tuple[int, ...]
    rate: int
    shortest: int
    longest: int
    pool: int
    file_bytes: int

    def cases(self) -> Iterable[Case]:
        """Yield the cases: shared in both modes, unshared with slots."""
        for windows in self.windows:
            common = (windows, self.rate, self.shortest, self.longest, self.pool)
            yield Case(*common, True, "slots", 1.5, 1.5, self.file_bytes)
            yield Case(*common, True, "log", 1.5, 1.5, self.file_bytes)
            yield Case(*common, False, "slots", 1.0, 0.5, self.file_bytes)


SCALES = {
    # a fortieth of everything but the rate and the block
    Size.SMALL: Scale((2, 8, 32), 5_000, 90, 180, 8_192 // 40, 1 << 20),
    # 512 MB in blocks of 64 KB
    Size.FULL: Scale((2, 4, 8, 16, 32), 5_000, 3_600, 7_200, 8_192, 64 << 20),
}

Repositories = list[SharedRepository | WindowRepository]


def run_case(case: Case, folder: str) -> dict[str, Any]:
    """Run a case in this process."""
    layout = weighted_layout()
    trades = TradeColumns(case.rate)
    repositories = _repositories(case, Path(folder))
    watched = [case.ranges] if case.shared else [[length] for length in case.ranges]
    operators = [
        SlidingTotals(repository, [Extent(length) for length in lengths], SYMBOLS)
        for repository, lengths in zip(repositories, watched, strict=True)
    ]
    warm = int(case.warm * case.longest * case.rate)
    end = warm + int(case.measured * case.longest * case.rate)
    started = time.monotonic()
    rates: list[float] = []
    space = 0
    with ThreadPoolExecutor(THREADS) as threads:
        before = _Counts()
        for first, until in ((0, warm), (warm, end)):
            before = _Counts.of(repositories)
            for events in trades.batches(first, until, BATCH):
                list(threads.map(lambda one, events=events: one.feed(*events), operators))
                space = max(space, sum(one.frame_bytes + one.file_bytes for one in repositories))
                if first == warm:
                    pools = _pools(repositories)
                    rates += [hit_rate(pool.segments()) for pool in pools]
    counts = _Counts.of(repositories) - before
    blocks = (end - warm) / layout.factor
    held = [total for one in operators for total in one.totals.tolist()]
    exact = [trades.volume(end - 1, -(-length * case.rate // SECOND)) for length in case.ranges]
    found = {
        "space_bytes": space,
        "memory_bytes": sum(one.frame_bytes for one in repositories),
        "requests_per_block": (counts.evicted + counts.fetched) / blocks,
        "requests_per_block_written_once": (counts.written + counts.fetched) / blocks,
        "requests_per_second": (counts.evicted + counts.fetched) / (end - warm) * case.rate,
        "hit_rate": counts.hits / counts.crossings if case.shared else None,
        "hit_rate_formula": sum(rates) / len(rates) if rates else None,
        "wrong_windows": sum(one != other for one, other in zip(held, exact, strict=True)),
        "seconds": time.monotonic() - started,
    }
    for repository in repositories:
        repository.close()
    return found


@dataclass(frozen=True, slots=True)
class _Counts:
    """Requests of several repositories."""

    evicted: int = 0
    written: int = 0
    fetched: int = 0
    crossings: int = 0
    hits: int = 0

    @classmethod
    def of(cls, repositories: Repositories) -> _Counts:
        """Add them up."""
        counters = [one.counters for one in repositories]
        pools = _pools(repositories)
        return cls(
            sum(one.evicted for one in counters),
            sum(one.written for one in counters),
            sum(one.fetched for one in counters),
            sum(sum(pool.crossings) for pool in pools),
            sum(sum(pool.hits) for pool in pools),
        )

    def __sub__(self, other: _Counts) -> _Counts:
        """Return the requests since then."""
        pairs = zip(asdict(self).values(), asdict(other).values(), strict=True)
        return _Counts(*(one - before for one, before in pairs))


def _pools(repositories: Repositories) -> list[SharedPool]:
    return [one.pool for one in repositories if isinstance(one, SharedRepository)]


def _repositories(case: Case, folder: Path) -> Repositories:
    layout = weighted_layout()

    def store(name: str) -> BlockStore:
        if case.mode == "slots":
            return SlotStore(str(folder / name), layout.block_bytes)
        return LogStore(str(folder / name), layout.block_bytes, case.file_bytes)

    if case.shared:
        return [SharedRepository(layout, store("shared"), case.windows, case.pool)]
    pool = case.pool // case.windows
    return [
        WindowRepository(layout, store(f"window-{i}"), pool, behind=0, ahead=0)
        for i in range(case.windows)
    ]


def measure(size: Size, progress: ProgressLog) -> Measurement:
    """Run every case in a process of its own."""
    scale = SCALES[size]
    cases = list(scale.cases())
    progress.plan(len(cases) + 2)
    runs: dict[int, dict[str, Any]] = {}
    for case in cases:
        kind = f"{'shared' if case.shared else 'unshared'}, {case.mode}"
        progress.step(f"{case.windows} windows, {kind}")
        folder = scratch(workspace(), "shared-windows")
        command = [sys.executable, "-m", "bench.windows.shared_windows"]
        (found,) = results(command, {"case": asdict(case), "folder": str(folder)}, limit=LIMIT)
        progress.note(f"{case.windows} windows, {kind}: {found['seconds']:.0f} s")
        runs.setdefault(case.windows, {})[kind] = found
        shutil.rmtree(folder)
    progress.step("queries with results per slide, on Spark")
    figures = summarise(runs, scale)
    figures["per slide"] = shared_slides.measure(size, scratch(workspace(), "shared-slides"))
    progress.step("windows with a row for every event, on Spark")
    figures["per event"] = shared_frames.measure(size, scratch(workspace(), "shared-frames"))
    return Measurement(figures, judge(figures))


def summarise(runs: dict[int, dict[str, Any]], scale: Scale) -> dict[str, Any]:
    """Collect shared and unshared figures, and the formulas with the counts."""
    layout = weighted_layout()
    figures: dict[str, Any] = {}
    for windows, kinds in runs.items():
        slots, log, alone = kinds["shared, slots"], kinds["shared, log"], kinds["unshared, slots"]
        single = requests_per_second(scale.rate, layout.block_bytes, layout.tuple_bytes)
        figures[f"{windows} windows"] = {
            "windows": windows,
            "unshared_space_bytes": alone["space_bytes"],
            "shared_space_bytes": slots["space_bytes"],
            "shared_space_bytes_log": log["space_bytes"],
            "space_ratio": slots["space_bytes"] / alone["space_bytes"],
            "space_ratio_log": log["space_bytes"] / alone["space_bytes"],
            "unshared_requests_per_block": alone["requests_per_block"],
            "shared_requests_per_block": slots["requests_per_block"],
            "shared_requests_per_block_log": log["requests_per_block_written_once"],
            "request_ratio": slots["requests_per_block"] / alone["requests_per_block"],
            "request_ratio_log": log["requests_per_block_written_once"]
            / alone["requests_per_block_written_once"],
            "unshared_to_formula_3_1": alone["requests_per_second"] / single / windows,
            "hit_rate": slots["hit_rate"],
            "hit_rate_formula_4_2": slots["hit_rate_formula"],
            "requests_formula_4_1": shared_requests_per_block(windows, slots["hit_rate"]),
            "requests_formula_steady": steady_shared_requests_per_block(windows, slots["hit_rate"]),
            "wrong_windows": sum(kind["wrong_windows"] for kind in kinds.values()),
            "seconds": sum(kind["seconds"] for kind in kinds.values()),
        }
    return figures


def judge(figures: Figures) -> tuple[Bar, ...]:
    """Compare the figures with the claims; ratios are those of the most windows."""
    every = _rows(figures)
    most = max(every, key=lambda one: one["windows"])
    rates = list(figures["per slide"].values())
    alone, together = (each["logged_bytes"] for each in figures["per event"].values())
    return (
        Bar.at_most("slowdown from 2 to 32 queries per slide", 2, rates[0] / rates[-1]),
        Bar.at_most(
            "per-event windows started together, 8 on Spark: bytes logged / one window",
            1.2,
            together / alone,
        ),
        Bar.at_most("space_ratio", 1 / 16, most["space_ratio"]),
        Bar.at_most("space_ratio_log", 1 / 16, most["space_ratio_log"]),
        Bar.at_most("request_ratio", 1 / 20, most["request_ratio"]),
        Bar.at_most("request_ratio_log", 1 / 20, most["request_ratio_log"]),
        Bar.at_most("wrong_windows", 0, sum(one["wrong_windows"] for one in every)),
        Bar.at_most(
            "error of formula 3.1",
            0.02,
            max(abs(one["unshared_to_formula_3_1"] - 1) for one in every),
        ),
        Bar.at_most(
            "error of formula 4.2",
            0.05,
            max(abs(one["hit_rate"] - one["hit_rate_formula_4_2"]) for one in every),
        ),
        # the printed formula counts a write for every block of the stream: never too few
        Bar.at_least(
            "formula 4.1 - counted",
            -0.02,
            min(one["requests_formula_4_1"] - one["shared_requests_per_block"] for one in every),
        ),
    )


def _rows(figures: Figures) -> list[dict[str, Any]]:
    """Return the figures of each number of windows."""
    return [one for one in figures.values() if "windows" in one]


def plot(figures: Figures, target: Path) -> None:
    """Draw space and requests over the number of windows."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only drawing needs it

    rows = _rows(figures)
    windows = [row["windows"] for row in rows]
    drawing = Figure(figsize=(9, 3.4), layout="constrained")
    space, asked = drawing.subplots(1, 2)
    for field, label in (
        ("unshared_space_bytes", "unshared"),
        ("shared_space_bytes", "shared, slots"),
        ("shared_space_bytes_log", "shared, log"),
    ):
        space.plot(windows, [row[field] / 1e9 for row in rows], marker="o", label=label)
    for field, label in (
        ("unshared_requests_per_block", "unshared"),
        ("shared_requests_per_block", "shared, slots"),
        ("shared_requests_per_block_log", "shared, log"),
        ("requests_formula_4_1", "formula 4.1"),
    ):
        dashed = "--" if "formula" in field else "-"
        asked.plot(windows, [row[field] for row in rows], dashed, marker="o", label=label)
    for axes, title in ((space, "space, GB"), (asked, "requests per block of the stream")):
        axes.set(xscale="log", yscale="log", xlabel="windows", title=title)
        axes.set_xticks(windows, [str(count) for count in windows])
        axes.minorticks_off()
        axes.legend(fontsize=8)
    target.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(target, dpi=150)


BENCH = Bench(
    "shared-windows",
    "32 windows over one stream take a sixteenth of the space and a twentieth of the requests",
    measure,
    plot,
)

if __name__ == "__main__":
    plan = json.loads(sys.argv[1])
    print(json.dumps(run_case(Case(**plan["case"]), plan["folder"])), flush=True)
