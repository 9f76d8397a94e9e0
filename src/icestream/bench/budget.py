"""State of ten times the memory: exact results inside the budget, in both ways state can grow.

Idea: two queries are run in a process of their own each, with a budget of a few megabytes. *Panes*
has few groups and a window so long that its panes on the log are many times the budget. *Groups* has
so many small groups that their running rows alone are; they must be partitioned. The results are
compared with DuckDB's to the last bit, the books with the budget, and the process with both.

Invariants:
1. Values are multiples of 1/8, so sums are exact in any order.
2. Memory is counted from a warm process, that has run the same query once on a small input
   (`test_bounded_the_process_stays_within_budget_and_constant`).

Limits: what a batch needs while it is folded is not state; it is in the constant.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icestream.bench.harness import scratch, workspace
from icestream.bench.processes import results
from icestream.bench.registry import Bar, Bench, Figures, Measurement, Progress, Size
from icestream.operators.aggregates import Aggregate
from icestream.operators.panes import Windows
from icestream.plan.nodes import Plan, Source
from icestream.runtime.driver import Settings
from icestream.runtime.local import LocalQuery, read_rows
from icestream.state.files import LocalFiles

MINUTE = 60_000_000
#: bytes a process may take beyond the budget: interpreter buffers, Arrow's pools, a batch in flight
CONSTANT = 96 << 20
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
        """Tell whether a group is nothing but a count."""
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
        return Plan(
            sources=(Source("events", 0),),
            windows=Windows(self.range * MINUTE, self.slide * MINUTE),
            keys=pa.schema([("key", pa.int64())]),
            inputs=pa.schema([] if self.tiny else [("x0", pa.float64())]),
            expressions=() if self.tiny else ("x",),
            aggregates=(count,) if self.tiny else rich,
            grouping_sets=None,
            time=pa.timestamp("us", "UTC"),
        )

    @property
    def group_bytes(self) -> int:
        """Return the least bytes of a group in memory: its row, an index place, key and flags."""
        return 8 * self.plan.spec.layout.group_width + 8 + 9

    def events(self, first: int) -> Iterator[pa.RecordBatch]:
        """Yield the events of a batch that begins with a minute, in the small pieces Spark sends."""
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
            # a prime stride visits every key before it comes back to the first
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
        Case("groups", 16 << 20, 3_600_000, 2, 1, 5, 1, 1),
    ),
}


def run_case(case: Case, folder: str) -> Iterator[dict[str, Any]]:
    """Run a case in this process; result files are linked to `folder`/results."""
    warm = Case(case.name, 2 << 20, 200, case.range, case.slide, case.range + 4, 1, 4)
    _feed(warm, os.path.join(folder, "warm"))
    before = _memory("VmRSS")
    started = time.monotonic()
    peaks = _feed(case, folder)
    seconds = time.monotonic() - started
    yield {
        "events": case.keys * case.density * case.minutes,
        "events_per_second": case.keys * case.density * case.minutes / seconds,
        "budget_bytes": case.budget,
        "rss_excess_bytes": _memory("VmHWM") - before - case.budget,
        **peaks,
    }


def _feed(case: Case, folder: str) -> dict[str, Any]:
    """Feed all events and flush; return the largest sizes that were reported."""
    shutil.rmtree(folder, ignore_errors=True)
    kept = os.path.join(folder, "results")
    os.makedirs(kept)
    settings = Settings(
        root=os.path.join(folder, "checkpoint"),
        local=os.path.join(folder, "local"),
        budget=case.budget,
        shards=case.shards,
    )
    query = LocalQuery(case.plan, settings)
    peaks = {"state_bytes": 0, "arena_peak_bytes": 0, "partitions": 0, "groups": 0}
    for number, first in enumerate([*range(0, case.minutes, case.batch), None]):
        driver = query.driver
        batch = None if first is None else [case.events(first)]
        for delivery in driver.flush() if batch is None else driver.batch(number, batch):
            for path in delivery.results:
                os.link(path, os.path.join(kept, os.path.basename(path)))
            report = delivery.progress["icestream"]
            state = report["logBytes"] + report["groups"] * case.group_bytes
            if case.tiny:
                state = report["groups"] * case.group_bytes
            for name, value in (
                ("state_bytes", state),
                ("arena_peak_bytes", report["peakMemoryBytes"]),
                ("partitions", report["partitions"]),
                ("groups", report["groups"]),
            ):
                peaks[name] = max(peaks[name], value)
    query.close()
    return peaks


def _memory(field: str) -> int:
    """Return the memory of this process, now (VmRSS) or at most (VmHWM)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    return 0


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    for line in run_case(Case(**asked["case"]), asked["folder"]):
        print(json.dumps(line), flush=True)
