"""Estimated and measured cost of panes and tuples, and whether the right one was chosen.

Idea: sets of queries that favour one store or the other run with both, over the same events, until
their windows have been full for a while. A third run lets the query choose and records its
estimate, which is based on the first batch alone. It is compared with the log, the bytes moved and
the processor time of both runs. Tuples are right where they save half of the log; elsewhere panes,
which take less processor time.

Invariants:
1. Both stores emit equally many rows (`test_both_stores_emit_as_many_rows`).
2. A case counts as clear if its logs are not near the limit
   (`test_a_case_is_clear_away_from_half_of_the_log`).

Limits: windows of rows have no panes in the engine; they are measured as windows of time over
events a microsecond apart, for which both forms of the formulas agree. Memory is left out: both
stores hold the same rows. Bytes moved are those of slices and blocks, without snapshots. Nothing is
synced: all figures but processor time are counts.

References: formulas 2.1, 2.2 and 3.2 of the source named in `docs/papers.md`.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.harness import scratch, workspace
from bench.registry import Bar, Bench, Figures, Measurement, ProgressLog, Size
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.grid.operator import CHANGES, PANES
from icestream.plan.grid.cost import WORTH_FOLDING_AGAIN
from icestream.plan.grid.lower import AUTO, TUPLES
from icestream.plan.nodes.queries import Plan, Source
from icestream.plan.windows.grid import Windows
from icestream.runtime.local import LocalQuery
from icestream.runtime.version.settings import Settings
from icestream.state.versions.commits import EVENTS
from tests.fixtures.plans import QuickFiles

SECOND = 1_000_000
STORES = (PANES, TUPLES)
#: a case is clear if the ratio of its logs differs from the limit by this factor
CLEAR = 1.5
#: allowed factor between estimate and measurement
WITHIN = 2.0


@dataclass(frozen=True, slots=True)
class Case:
    """A set of queries over one stream."""

    name: str
    #: groups of each grouping
    groups: tuple[int, ...]
    #: events in a pane, and panes in the longest window, for this many windows of evenly spread
    #: lengths
    pane: int
    panes: int
    windows: int = 1
    #: inputs, and the aggregates of each
    inputs: int = 1
    functions: tuple[str, ...] = ("sum",)
    #: versions that fill the longest window
    versions: int = 96
    #: versions after that in which everything is measured
    measured: int = 48
    #: events in a second
    rate: int = 1_000

    def plan(self, store: str) -> Plan:
        """Return the queries with one store."""
        computed = [
            Aggregate(function, f"x{place}", f"{function}{place}")
            for place in range(self.inputs)
            for function in self.functions
        ]
        lengths = [self.panes * number // self.windows for number in range(1, self.windows + 1)]
        pane = self.pane * SECOND // self.rate
        first = Plan.of(
            sources=(Source("events", 0),),
            windows=Windows(lengths[0] * pane, pane),
            keys=pa.schema([(f"key{place}", pa.int32()) for place in range(len(self.groups))]),
            inputs=pa.schema([(f"x{place}", pa.int32()) for place in range(self.inputs)]),
            expressions=tuple(f"x{place}" for place in range(self.inputs)),
            aggregates=(Aggregate("count", None, "events"), *computed),
            grouping_sets=tuple((place,) for place in range(len(self.groups))),
            time=pa.timestamp("us", "UTC"),
            mode="changes",
            store=store,
        )
        (view,) = first.views
        views = [replace(view, windows=Windows(length * pane, pane)) for length in lengths]
        return replace(first, views=tuple(views))

    @property
    def events(self) -> int:
        """Return the events of a version."""
        return self.pane * self.panes // self.versions

    def batch(self, plan: Plan, version: int) -> pa.RecordBatch:
        """Return the events of a version."""
        number = np.arange(version * self.events, (version + 1) * self.events)
        chance = np.random.default_rng(version)
        keys = [chance.integers(0, many, self.events) for many in self.groups]
        values = [number * (7 + place) % 1_000 for place in range(self.inputs)]
        return pa.record_batch(
            [
                pa.array(number * SECOND // self.rate).cast(plan.time),
                pa.array(np.zeros(self.events, dtype=np.int32)),
                *(pa.array(each.astype(np.int32)) for each in (*keys, *values)),
            ],
            schema=plan.batch_schema,
        )


def cases(size: Size) -> tuple[Case, ...]:
    """Return the sets of queries: each with many panes, the full size with more events."""
    more = 1 if size is Size.SMALL else 12
    return (
        Case("few groups", (50,), 480 * more, 96),
        Case("few groups, three windows", (50,), 480 * more, 96, windows=3),
        Case("an event seldom shares a pane", (6_000 * more,), 96 * more, 480),
        Case("six inputs, seldom shared", (6_000 * more,), 96 * more, 480, 1, 6, ("sum", "avg")),
        Case("three groupings", (2_000 * more, 3_000 * more, 4_000 * more), 96 * more, 480),
        Case("eight groupings", (4_000 * more,) * 8, 96 * more, 480),
        Case("three groupings, short window", (2_000, 3_000, 4_000), 96 * more, 480, versions=12),
        Case("windows of rows, many groups", (6_000 * more,), 96 * more, 480, rate=SECOND),
        Case("windows of rows, few groups", (50,), 480 * more, 96, rate=SECOND),
        Case("minima, few groups", (50,), 480 * more, 96, 1, 1, ("min", "max")),
        Case("minima, seldom shared", (6_000 * more,), 96 * more, 480, 1, 6, ("min", "max")),
    )


def run_store(case: Case, store: str, folder: Path) -> dict[str, Any]:
    """Run a case with one store; return measurements taken once the windows were full."""
    plan = case.plan(store)
    query = _opened(plan, folder)
    log: list[int] = []
    moved: Counter[str] = Counter()
    spent = rows = 0.0
    for version in range(case.versions + case.measured):
        batch = case.batch(plan, version)
        before = time.process_time()
        (delivery,) = query.driver.batch(version, [[batch]])
        if version < case.versions:
            continue
        spent += time.process_time() - before
        told = delivery.progress["icestream"]
        rows += told["resultRows"]
        log.append(told["logBytes"])
        moved["read"] += told["blockBytesRead"] + told["sliceBytesUsed"]
        for segment in delivery.commit.added:
            if segment.lifetime in (PANES, CHANGES, EVENTS):
                moved["written"] += segment.info.bytes
    query.close()
    shutil.rmtree(folder)
    events = case.measured * case.events
    return {
        "log_bytes": sum(log) / len(log),
        "moved_bytes_per_event": moved.total() / events,
        "cpu_us_per_event": 1e6 * spent / events,
        "rows": rows,
    }


def estimated(case: Case, folder: Path) -> tuple[str, dict[str, dict[str, float]]]:
    """Return the choice of a query by its first batch, and its estimate for each store."""
    plan = case.plan(AUTO)
    query = _opened(plan, folder)
    query.feed([[case.batch(plan, 0)]])
    assert query.driver.last is not None
    decisions = query.driver.last.decisions
    query.close()
    shutil.rmtree(folder)
    said = {
        store: {
            "log_bytes": decisions["estimate"][store][0],
            "moved_bytes_per_event": decisions["estimate"][store][3] / case.rate,
        }
        for store in STORES
    }
    return decisions["store"], said


def _opened(plan: Plan, folder: Path) -> LocalQuery:
    settings = Settings(f"{folder}/checkpoint", f"{folder}/local", 256 << 20)
    return LocalQuery(plan, settings, QuickFiles())


def measure(size: Size, progress: ProgressLog) -> Measurement:
    """Run every case with both stores."""
    every = cases(size)
    progress.plan(len(every))
    figures = {}
    for case in every:
        progress.step(case.name)
        figures[case.name] = row = run_case(case, scratch(workspace(), "plan-choice"))
        progress.note(f"{case.name}: {row['chosen']} chosen, {row['best']} right")
    return Measurement(figures, judge(figures))


def run_case(case: Case, folder: Path) -> dict[str, Any]:
    """Estimate a case, run it with both stores, and compare them."""
    chosen, said = estimated(case, folder / AUTO)
    found = {store: run_store(case, store, folder / store) for store in STORES}
    row: dict[str, Any] = {"chosen": chosen, "subtracted": set(case.functions) <= {"sum", "avg"}}
    for store in STORES:
        for name, value in found[store].items():
            row[f"{store} {name}"] = value
        for name, value in said[store].items():
            row[f"{store} {name} to estimate"] = found[store][name] / value
    return {**row, **verdict(row)}


def verdict(row: Figures) -> dict[str, Any]:
    """Return which store is right by the measurements, and whether it was chosen.

    If tuples are folded again by every shard, they must also win by log times bytes moved.
    """

    def of(name: str) -> float:
        return float(row[f"panes {name}"]) / float(row[f"tuples {name}"])

    ratios = [of("log_bytes") / WORTH_FOLDING_AGAIN]
    if not row["subtracted"]:
        ratios.append(of("log_bytes") * of("moved_bytes_per_event"))
    times = min(ratios)
    best = TUPLES if times >= 1 else PANES
    chosen, other = row["chosen"], PANES if row["chosen"] == TUPLES else TUPLES
    return {
        "best": best,
        "clear": max(times, 1 / times) >= CLEAR,
        "right": chosen == best,
        "log_to_other": row[f"{chosen} log_bytes"] / row[f"{other} log_bytes"],
        "cpu_to_other": row[f"{chosen} cpu_us_per_event"] / row[f"{other} cpu_us_per_event"],
    }


def judge(figures: Figures) -> tuple[Bar, ...]:
    """Require estimates near the measurements, and the right store in clear cases."""
    clear = [row for row in figures.values() if row["clear"]]

    def apart(what: str) -> float:
        name = f"{what} to estimate"
        ratios = [float(row[f"{store} {name}"]) for row in figures.values() for store in STORES]
        return max(max(each, 1 / each) for each in ratios)

    # what is chosen takes less of one or of the other
    worse = [min(row["log_to_other"], row["cpu_to_other"]) for row in figures.values()]
    logs = [row["log_to_other"] for row in figures.values()]
    return (
        Bar.at_least("clear cases chosen right", len(clear), sum(row["right"] for row in clear)),
        Bar.at_most("log or processor time of the choice, by the other store", 1.1, max(worse)),
        Bar.at_most(
            "log of the choice, by the other store", CLEAR * WORTH_FOLDING_AGAIN, max(logs)
        ),
        Bar.at_most("log by its estimate, or the reverse", WITHIN, apart("log_bytes")),
        Bar.at_most(
            "bytes moved by their estimate, or the reverse", WITHIN, apart("moved_bytes_per_event")
        ),
    )


def plot(figures: Figures, target: Path) -> None:
    """Draw estimate and measurement of the log of both stores, case by case."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only drawing needs it

    drawing = Figure(figsize=(9, 0.55 * len(figures) + 1.2), layout="constrained")
    axes = drawing.subplots()
    places = np.arange(len(figures))
    for shift, store in ((-0.2, PANES), (0.2, TUPLES)):
        measured = np.array([row[f"{store} log_bytes"] for row in figures.values()])
        ratio = np.array([row[f"{store} log_bytes to estimate"] for row in figures.values()])
        axes.barh(places + shift, measured / 2**20, 0.36, label=f"{store}, measured")
        axes.plot(measured / ratio / 2**20, places + shift, "k|", markersize=11)
    axes.plot([], [], "k|", markersize=11, label="estimated from the first batch")
    names = [f"{name}\n({row['chosen']} chosen)" for name, row in figures.items()]
    axes.set_yticks(places, names, fontsize=8)
    axes.set(xscale="log", xlabel="log once windows are full, MB")
    axes.invert_yaxis()
    axes.legend(fontsize=8)
    target.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(target, dpi=120)


BENCH = Bench(
    "plan-choice",
    "the first batch chooses panes unless tuples save half of the log, and the log is as estimated",
    measure,
    plot,
)
