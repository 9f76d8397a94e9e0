"""How long batches take where a sink, a key, windows or a first call are slow, in virtual time.

Idea: a query of the local runtime whose clock only the step and the sink move, so that figures are
those of the controller of time and the same on every machine. Each case has an interval of a
second. Rare keys are counted in batches: how long each waits among keys that are updated all the
time, with all keys in memory and with an eighth of them.

Invariants:
1. Figures are the same every time (`test_paced_batches_are_the_same_every_time`).

References: decision 41.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa

from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.latest.step import UpdateStep
from icestream.operators.latest.window_serving import WindowedBy
from icestream.plan.nodes.queries import Source
from icestream.plan.nodes.updates import Latest, Updates
from icestream.runtime.local import LocalQuery
from icestream.runtime.version.settings import Settings
from icestream.state.queue.windows.spec import UpdateWindows

SECOND = 1_000_000
SINK = 1.2
LOADING = 10.0
ALIGNED = 10_000
RARE = ("inplace", "fifo")
#: shares of answers: with a sink of 0.7 and other work of 0.1 intervals, and after a slow call
ANSWERS = "answers by possible while the sink trails"
AFTER_CALL = "answers after it, by normal"
QUOTES = pa.schema(
    [("ts", pa.timestamp("us", "UTC")), ("symbol", pa.int64()), ("price", pa.int64())]
)


@dataclass
class VirtualClock:
    """A clock that only work moves."""

    at: int = 0

    def monotonic(self) -> float:
        """Return seconds."""
        return self.at / 1e6

    def now(self) -> int:
        """Return microseconds."""
        return self.at


@dataclass
class Working:
    """A step that takes some microseconds for each row, and once more for its first call."""

    clock: VirtualClock
    each: int
    loading: int = 0
    served: list[int] = field(default_factory=list)

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Spend the time."""
        self.clock.at += self.each * rows.num_rows + (0 if self.served else self.loading)
        self.served.append(rows.num_rows)
        return rows


@dataclass(frozen=True)
class Paced:
    """A query that runs in virtual time."""

    step: Working
    query: LocalQuery
    #: microseconds that the sink takes for a version while the next one is computed
    sink: int = 0
    #: microseconds of a batch before it is read
    planning: int = 0

    def run(self, batches: Sequence[pa.RecordBatch]) -> list[tuple[float, list[int]]]:
        """Return the seconds and the served keys of each batch; batches begin every second."""
        found, clock, delivered = [], self.step.clock, 0

        def await_sink() -> None:
            clock.at = max(clock.at, delivered)

        self.query.driver.await_sink = await_sink
        for number, batch in enumerate(batches):
            clock.at = began = max(clock.at, (number + 1) * SECOND)
            clock.at += self.planning
            deliveries = self.query.driver.batch(number, [[batch]])
            rows = self.query.rows(deliveries)
            delivered = clock.at + self.sink
            took = (clock.at - began) / 1e6
            self.query.driver.trigger = number, took
            found.append((took, rows.column("symbol").to_pylist()))
        return found


def quotes(symbols: Any, times: Any) -> pa.RecordBatch:
    """Return quotes as ingest reads them."""
    instants = pa.array(np.asarray(times, dtype=np.int64)).cast(QUOTES.field("ts").type)
    numbers = pa.array(np.asarray(symbols, dtype=np.int64))
    sources = pa.array(np.zeros(len(numbers), dtype=np.int32))
    columns = [instants, sources, instants, numbers, numbers]
    return pa.RecordBatch.from_arrays(columns, ["time", "source", "c0", "c1", "c2"])


def paced(
    folder: str,
    each: int,
    *,
    loading: int = 0,
    sink: int = 0,
    planning: int = 0,
    schedule: str = "inplace",
    memory: int = 64 << 20,
    windows: UpdateWindows | None = None,
) -> Paced:
    """Open a query with an interval of a second."""
    step = Working(VirtualClock(), each, loading)
    made = UpdateStep(step, QUOTES, QUOTES, ("symbol",))
    plan = Updates(
        (Source("quotes", 0),),
        QUOTES,
        QUOTES.field("ts").type,
        (made,),
        Latest(("symbol",), schedule),
        interval=SECOND,
        clock=step.clock,
    )
    if windows is not None:
        counted = (Aggregate("count", None, "n"),)
        windowed = WindowedBy(QUOTES, ("symbol",), "ts", windows, counted, ("symbol",))
        result = windowed.operator(schedule).result.schema
        answer = UpdateStep(step, result, result, ("symbol",))
        plan = replace(plan, windowed=windowed, steps=(answer,))
    root = Path(folder)
    settings = Settings(str(root / "checkpoint"), str(root / "local"), budget=memory, shards=1)
    return Paced(step, LocalQuery(plan, settings), sink, planning)


def busy(keys: int, batches: int) -> list[pa.RecordBatch]:
    """Return batches that update all keys."""
    every = np.arange(keys)
    return [quotes(every, number * SECOND + 1 + every) for number in range(batches)]


def longest_batches() -> dict[str, float]:
    """Return the longest batch of each case, by what it may take; and answers after a slow call."""
    found = {}
    with TemporaryDirectory() as folder:
        runs = paced(f"{folder}/sink", 4_000, sink=int(SINK * SECOND)).run(busy(1_000, 20))
        found["slow sink, by sink and interval"] = max(s for s, _ in runs[3:]) / (SINK + 1)
        trailing = paced(f"{folder}/trailing", 4_000, sink=700_000, planning=100_000)
        runs = trailing.run(busy(1_000, 40))[8:]
        seconds = sum(took for took, _ in runs)
        found[ANSWERS] = 0.004 * sum(len(rows) for _, rows in runs) / seconds
        runs = paced(f"{folder}/keys", 500_000).run(busy(30, 20))
        found["500 ms a key, by interval"] = max(s for s, _ in runs)
        aligned = paced(f"{folder}/windows", 1_000, windows=UpdateWindows(SECOND, SECOND, "lazy"))
        runs = aligned.run(busy(ALIGNED, 12))
        found["aligned windows, by interval"] = max(s for s, _ in runs)
        runs = paced(f"{folder}/call", 1_000, loading=int(LOADING * SECOND)).run(busy(4_000, 12))
        found["first call of 10 s, beyond it by interval"] = runs[0][0] - LOADING
        normal = np.median([len(rows) for _, rows in runs[4:]])
        found[AFTER_CALL] = len(runs[1][1]) / float(normal)
    return found


def waits_of_rare_keys(schedule: str) -> float:
    """Return the longest wait of keys that are updated once with an eighth of memory, by all."""
    longest = []
    for memory in (64 << 20, 3 << 19):
        dice, waits = np.random.default_rng(5), dict[int, int]()
        batches = []
        for number in range(40):
            symbols = dice.integers(0, 6_000, 1_600)
            if number == 1:
                symbols = np.concatenate([symbols, np.arange(10_000, 10_200)])
            batches.append(quotes(symbols, number * SECOND + np.arange(len(symbols))))
        with TemporaryDirectory() as folder:
            runs = paced(folder, 1_000, schedule=schedule, memory=memory).run(batches)
        for number, (_, rows) in enumerate(runs):
            for symbol in rows:
                if symbol >= 10_000:
                    waits.setdefault(symbol, number)
        longest.append(max(waits.values()) if len(waits) == 200 else np.inf)
    return float(longest[1] / longest[0])
