"""State of ten times the memory: exact results within the budget, for both kinds of growth.

Idea: each of two queries runs in a process of its own, with a budget of a few megabytes. *Panes*
    has
few groups and a window so long that its panes on the log are many times the budget. *Groups* has so
many small groups that their running rows alone exceed it; they must be partitioned. Results are
compared with DuckDB's to the last bit, the reserved bytes with the budget, and the memory of the
process with both. Each query is restarted before its last windows close, so a rebuild from the log
is included.

Invariants:
1. Values are multiples of 1/8, so sums are exact in any order.
2. Memory is counted from a warm process, which has run the same query once on a small input
   (`test_bounded_the_process_stays_within_budget_and_constant`).

Limits: the memory of a batch while it is folded is not state; it is part of the constant.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.adaptation.operators_of_state import OPERATORS
from bench.harness import scratch, workspace
from bench.processes import ProcessFailed, results
from bench.registry import Bar, Bench, Figures, Measurement, ProgressLog, Size
from bench.safety.event_cost import Events
from bench.safety.process_memory import CONSTANT as WORKER_CONSTANT
from bench.safety.process_memory import TIMES, WORKERS, KindOfState
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.plan.grid.lower import window_spec
from icestream.plan.nodes.queries import Plan, Source
from icestream.plan.windows.grid import Windows
from icestream.runtime.driver import Delivery
from icestream.runtime.local import LocalQuery, read_rows
from icestream.runtime.version.settings import Settings
from icestream.state.files import LocalFiles

MINUTE = 60_000_000
#: bytes that a process may use beyond the budget: interpreter buffers, Arrow's pools, a batch in
#: flight
CONSTANT = 64 << 20
#: events in one Arrow batch
PIECE = 32_768
STRIDE = 1_000_003
#: seconds after which a run is stopped
LIMIT = 3_600.0


@dataclass(frozen=True, slots=True)
class Case:
    """A query whose state outgrows its budget; every key has an event in every pane."""

    name: str
    #: bytes
    budget: int
    keys: int
    #: panes of one minute in a window, and from one window to the next
    range: int
    slide: int
    #: minutes of events, and events of a key in a minute
    minutes: int
    density: int
    #: minutes of events in one batch
    batch: int
    shards: int = 2

    @property
    def tiny(self) -> bool:
        """Return whether a group is only a count."""
        return self.name.startswith("groups")

    @property
    def plan(self) -> Plan:
        """Return the query."""
        count = Aggregate("count", None, "n")
        rich = (
            count,
            Aggregate("sum", "x0", "total"),
            Aggregate("min", "x0", "least"),
            Aggregate("max", "x0", "most"),
        )
        return Plan.of(
            sources=(Source("events", 0),),
            windows=Windows(self.range * MINUTE, self.slide * MINUTE),
            keys=pa.schema([("key", pa.int64())]),
            inputs=pa.schema([] if self.tiny else [("x0", pa.float64())]),
            expressions=() if self.tiny else ("x",),
            aggregates=(count,) if self.tiny else rich,
            time=pa.timestamp("us", "UTC"),
        )

    @property
    def group_bytes(self) -> int:
        """Return the least bytes of a group in memory: its row, index place, key and flags."""
        return 8 * window_spec(self.plan).layouts[0].group_width + 8 + 9

    def events(self, first: int) -> Iterator[pa.RecordBatch]:
        """Yield the events of a batch that begins with a minute, in pieces as Spark sends them."""
        for minute in range(first, min(first + self.batch, self.minutes)):
            for at in range(0, self.keys * self.density, PIECE):
                yield self._piece(minute, at)

    def _piece(self, minute: int, first: int) -> pa.RecordBatch:
        schema = self.plan.batch_schema
        place = np.arange(first, min(first + PIECE, self.keys * self.density), dtype=np.int64)
        dice = np.random.default_rng([minute, first])
        columns = [
            pa.array(minute * MINUTE + dice.integers(0, MINUTE, len(place))).cast(schema.types[0]),
            np.zeros(len(place), dtype=np.int32),
            # a prime stride visits every key before it returns to the first
            pa.array((place * STRIDE + minute) % self.keys),
        ]
        if not self.tiny:
            columns.append(pa.array(dice.integers(-800, 800, len(place)) / 8.0))
        return pa.record_batch(columns, schema=schema)


CASES = {
    Size.SMALL: (
        Case("panes", 2 << 20, 4_000, 121, 10, 200, 1, 5),
        Case("groups", 2 << 20, 450_000, 2, 1, 5, 1, 1),
    ),
    Size.FULL: (
        Case("panes", 16 << 20, 32_000, 121, 10, 200, 1, 5),
        Case("groups", 8 << 20, 1_800_000, 2, 1, 4, 1, 1),
    ),
}


#: bytes of the least budget that update streams accept with batches of 250,000 events, and more
LEAST_OF_UPDATES = 64 << 20


def _kinds(budget: int, events: int, batches: int, limit: float) -> tuple[KindOfState, ...]:
    """Return every kind of state, until its log is ten times the budget."""
    return tuple(
        KindOfState(
            name,
            max(budget, LEAST_OF_UPDATES) if name.startswith("update") else budget,
            events,
            batches,
            limit,
        )
        for name in OPERATORS
    )


KINDS = {
    Size.SMALL: _kinds(8 << 20, 100_000, 60, 120.0),
    Size.FULL: _kinds(48 << 20, 250_000, 120, 900.0),
}


#: events of the parts that measure the processor time of an event
EVENTS = {
    Size.SMALL: Events(400_000, (100_000, 400_000), 300_000, 30_000),
    Size.FULL: Events(3_000_000, (100_000, 600_000, 3_000_000), 1_800_000, 60_000),
}


def run_case(case: Case, folder: str) -> dict[str, Any]:
    """Run a case in this process; result files are linked to `folder`/results."""
    warm = Case(case.name, 2 << 20, 200, case.range, case.slide, case.range + 4, 1, 4)
    _feed(warm, os.path.join(folder, "warm"))
    shutil.rmtree(folder)
    before = _memory("VmRSS")
    started = time.monotonic()
    peaks = _feed(case, folder)
    seconds = time.monotonic() - started
    return {
        "events": case.keys * case.density * case.minutes,
        "events_per_second": case.keys * case.density * case.minutes / seconds,
        "budget_bytes": case.budget,
        "rss_excess_bytes": _memory("VmHWM") - before - case.budget,
        **peaks,
    }


def _feed(case: Case, folder: str) -> dict[str, Any]:
    """Feed all events and flush; return the largest sizes that were reported."""
    kept = os.path.join(folder, "results")
    os.makedirs(kept)
    settings = Settings(
        root=os.path.join(folder, "checkpoint"),
        local=os.path.join(folder, "local"),
        budget=case.budget,
        shards=case.shards,
    )
    peaks: Counter[str] = Counter()
    for delivery in _deliveries(case, settings):
        for path in delivery.results:
            os.link(path, os.path.join(kept, os.path.basename(path)))
        report = delivery.progress["icestream"]
        groups = report["groups"] * case.group_bytes
        peaks |= Counter(
            state_bytes=groups if case.tiny else groups + report["logBytes"],
            arena_peak_bytes=report["peakMemoryBytes"],
            partitions=report["partitions"],
            groups=report["groups"],
        )
    return dict(peaks)


def _deliveries(case: Case, settings: Settings) -> Iterator[Delivery]:
    """Yield the delivery of each batch, and the flush at the end, after a restart from the log."""
    query = LocalQuery(case.plan, settings)
    for number, first in enumerate(range(0, case.minutes, case.batch)):
        yield from query.driver.batch(number, [case.events(first)])
    query = LocalQuery(case.plan, settings)
    yield from query.driver.flush()
    query.close()


def differences(case: Case, folder: Path) -> tuple[int, int]:
    """Count the rows in which the results of a run and DuckDB's differ, and those of the run."""
    import duckdb  # noqa: PLC0415 - only the comparison needs it

    base = duckdb.connect()
    base.execute(
        "create table panes (pane bigint, key bigint, n bigint, s double, l double, m double)"
    )
    base.execute(
        "create table found (start bigint, key bigint, n bigint, s double, l double, m double)"
    )
    value = "0.0" if case.tiny else "x0"
    for first in range(0, case.minutes, case.batch):
        events = pa.Table.from_batches(case.events(first))
        base.execute(
            f"insert into panes select epoch_us(time) // {MINUTE}, k0, count(*), sum({value}), "
            f"min({value}), max({value}) from events group by all"
        )
        del events
    answers = "0.0, 0.0, 0.0" if case.tiny else "total, least, most"
    for path in sorted(folder.iterdir()):
        for rows in read_rows(LocalFiles(), str(path)):
            base.execute(
                f'insert into found select epoch_us("window".start) // {MINUTE}, key, n, {answers} '
                "from rows"
            )
            del rows
    # a pane is in the windows that start at most a range before its end
    base.execute(
        f"""create view wanted as
        select (pane // {case.slide} - back) * {case.slide} as start, key,
            sum(n)::bigint, sum(s), min(l), max(m)
        from panes, range({-(-case.range // case.slide)}) t(back)
        where (pane // {case.slide} - back) * {case.slide} > pane - {case.range} group by all"""
    )
    wrong = "(from found except all from wanted) union all (from wanted except all from found)"
    sums = f"select (select count(*) from ({wrong})), (select count(*) from found)"
    return base.execute(sums).fetchall()[0]


def measure(size: Size, progress: ProgressLog) -> Measurement:
    """Run every case in a process of its own, then compare its rows."""
    cases = CASES[size]
    figures: dict[str, Any] = {}
    progress.plan(2 * len(cases) + len(KINDS[size]) + 2)
    for case in cases:
        progress.step(f"{case.name}: running")
        folder = scratch(workspace(), f"budget-{case.name}")
        command = [sys.executable, "-m", "bench.safety.budget"]
        asked = {"case": asdict(case), "folder": str(folder)}
        (figure,) = results(command, asked, limit=LIMIT)
        progress.step(f"{case.name}: comparing with DuckDB")
        figure["state_to_budget"] = figure["state_bytes"] / case.budget
        figure["wrong_rows"], figure["rows"] = differences(case, folder / "results")
        figures[case.name] = figure
        shutil.rmtree(folder)
    bars = judge(figures)
    kinds = {}
    for kind in KINDS[size]:
        progress.step(f"{kind.name}: memory of the workers")
        folder = scratch(workspace(), "budget-workers")
        command = [sys.executable, "-m", "bench.safety.process_memory"]
        asked = {"kind": asdict(kind), "folder": str(folder)}
        try:
            (kinds[kind.name],) = results(command, asked, limit=LIMIT)
        except ProcessFailed as failure:
            progress.note(f"{kind.name}: {failure}")
            kinds[kind.name] = {"failure": str(failure)}
        shutil.rmtree(folder)
    costs = {}
    for what in ("batches", "objects"):
        progress.step(f"{what}: processor time of an event")
        folder = scratch(workspace(), "budget-event-cost")
        command = [sys.executable, "-m", "bench.safety.event_cost"]
        asked = {"what": what, "events": asdict(EVENTS[size]), "folder": str(folder)}
        (costs[what],) = results(command, asked, limit=LIMIT)
        shutil.rmtree(folder)
    found = {**figures, "workers": kinds, **costs}
    return Measurement(found, (*bars, *judge_workers(kinds), *judge_costs(costs)))


def judge_costs(costs: Figures) -> tuple[Bar, ...]:
    """Compare the processor time of events with the claims."""
    rate = costs["objects"]["events_per_cpu_second"]
    return (
        Bar.at_most("dearest / cheapest size of batches in 8 MB", 1.3, costs["batches"]["ratio"]),
        Bar.at_least("object aggregates, events a CPU second", 50_000, rate),
    )


def judge_workers(kinds: Figures) -> tuple[Bar, ...]:
    """Compare what state adds to the workers with the budget and a constant for each worker."""
    bars = []
    most = WORKERS * WORKER_CONSTANT >> 20
    for name, run in kinds.items():
        times = excess = None
        if "failure" not in run:
            times = run["state_bytes"] / run["budget_bytes"]
            excess = (run["added_bytes"] - run["budget_bytes"]) / (1 << 20)
        bars.append(Bar.at_least(f"{name}: state on Spark / budget", TIMES, times))
        bars.append(Bar.at_most(f"{name}: workers' excess MB", most, excess))
    return tuple(bars)


def judge(figures: Figures) -> tuple[Bar, ...]:
    """Compare the figures with the claims."""
    runs = list(figures.values())
    excess = max(run["rss_excess_bytes"] for run in runs)
    over = max(run["arena_peak_bytes"] - run["budget_bytes"] for run in runs)
    return (
        Bar.at_least("state_to_budget", 10, min(run["state_to_budget"] for run in runs)),
        Bar.at_most("wrong_rows", 0, max(run["wrong_rows"] for run in runs)),
        Bar.at_most("arena_peak - budget", 0, over),
        Bar.at_most("rss_excess MB", CONSTANT >> 20, excess / (1 << 20)),
    )


def _memory(field: str) -> int:
    """Return the memory of this process, now (VmRSS) or at the peak (VmHWM)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    return 0


BENCH = Bench(
    "budget",
    "state of ten times the memory is exact, and the process stays within budget and a constant",
    measure,
)

if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    print(json.dumps(run_case(Case(**asked["case"]), asked["folder"])), flush=True)
