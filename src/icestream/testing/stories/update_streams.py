"""Update streams by hand: a clock that serving moves, plans over it, and the plain answer.

Idea: the clock stands still but for the step, which takes a fixed time for each key, so what a
batch serves depends on its updates alone and a run can be repeated exactly.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from icestream.core.times import Micros
from icestream.operators.updates.step import UpdateStep
from icestream.plan.nodes import Computation, Source
from icestream.plan.updates import Latest, Updates
from icestream.runtime.local import LocalQuery, Splits
from icestream.runtime.versions.settings import Settings
from icestream.state.files import Files
from icestream.testing.trials.rehearsal import Script

SECOND = 1_000_000
QUOTES = pa.schema(
    [("ts", pa.timestamp("us", "UTC")), ("symbol", pa.string()), ("price", pa.int64())]
)
SCORES = pa.schema([("symbol", pa.string()), ("price", pa.int64()), ("ts", QUOTES.field(0).type)])

#: symbol, price, time
Quote = tuple[str, int, Micros]


@dataclass
class ManualClock:
    """A clock that is moved by hand."""

    at: Micros = 0

    def monotonic(self) -> float:
        """Return seconds that only go forward."""
        return self.at / 1e6

    def now(self) -> Micros:
        """Return the time of day."""
        return self.at


@dataclass
class Costly:
    """A step that takes a fixed time for each call and key, and returns what it is given."""

    clock: ManualClock
    each: Micros = 10_000
    call: Micros = 0
    #: keys of every call
    calls: list[int] = field(default_factory=list)

    __name__ = "costly"

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Spend the time."""
        self.clock.at += self.call + self.each * rows.num_rows
        self.calls.append(rows.num_rows)
        return rows.select(SCORES.names)


def quotes_plan(
    step: Costly,
    *,
    schedule: str | None = "inplace",
    budget: Micros | None = None,
    interval: Micros | None = None,
    keys: tuple[str, ...] = ("symbol",),
) -> Updates:
    """Return the newest quote of each symbol in front of a step; all quotes without a schedule."""
    latest = None if schedule is None else Latest(keys, schedule)
    return Updates(
        (Source("quotes", 0),),
        QUOTES,
        QUOTES.field("ts").type,
        (UpdateStep(step, QUOTES, SCORES, () if latest is None else keys, every=latest is None),),
        latest,
        budget,
        interval,
        key_groups=8,
        clock=step.clock,
    )


def open_updates(
    plan: Updates,
    folder: Path,
    *,
    shards: int = 2,
    budget: int = 32 << 20,
    ticker: bool = True,
    files: Files | None = None,
) -> LocalQuery:
    """Open a query over a checkpoint in a folder."""
    settings = Settings(
        root=str(folder / "checkpoint"),
        local=str(folder / "local"),
        budget=budget,
        shards=shards,
        ticker=ticker,
    )
    return LocalQuery(plan, settings, files)


def quotes(rows: Iterable[Quote]) -> pa.RecordBatch:
    """Return quotes as ingest reads them."""
    symbols, prices, times = zip(*rows, strict=True) if (rows := list(rows)) else ((), (), ())
    instants = pa.array(np.array(times, dtype=np.int64)).cast(QUOTES.field("ts").type)
    columns = [
        instants,
        pa.array(np.zeros(len(symbols), dtype=np.int32)),
        instants,
        pa.array(symbols, pa.string()),
        pa.array(prices, pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(columns, ["time", "source", "c0", "c1", "c2"])


def splits_of(*splits: Sequence[Quote]) -> Splits:
    """Return a batch of splits."""
    return [[quotes(split)] for split in splits]


@dataclass
class PlainUpdates:
    """What a stream of updates comes to: the newest value of each key, and what waits."""

    newest: dict[str, Quote] = field(default_factory=dict)
    waiting: dict[str, Quote] = field(default_factory=dict)
    dropped: int = 0

    def arrive(self, splits: Sequence[Sequence[Quote]]) -> None:
        """Take in a batch."""
        batch: dict[str, Quote] = {}
        for quote in (each for split in splits for each in split):
            if quote[0] not in batch or quote[2] >= batch[quote[0]][2]:
                batch[quote[0]] = quote
        for symbol, quote in batch.items():
            if symbol in self.newest and quote[2] < self.newest[symbol][2]:
                self.dropped += 1
                continue
            self.newest[symbol] = self.waiting[symbol] = quote

    def serve(self, rows: pa.Table) -> None:
        """Take out what was served; it must be what waits."""
        for row in rows.to_pylist():
            waited = self.waiting.pop(row["symbol"])
            assert row["price"] == waited[1], f"{row} is not the newest, {waited} is"


@dataclass(frozen=True)
class QuotesScript(Script):
    """Quotes for rehearsals, of more symbols than a batch can serve."""

    @cached_property
    def plan(self) -> Computation:
        """Return what is computed."""
        return quotes_plan(Costly(ManualClock()), budget=105_000)

    def events_in(self, batch: int, split: int) -> pa.RecordBatch:
        """Return quotes, some of them older than those before."""
        dice = random.Random(f"{self.seed} {batch} {split}")
        rows: list[Quote] = [
            (f"s{dice.randrange(self.keys)}", n, batch * SECOND + dice.randrange(-SECOND, SECOND))
            for n in range(self.events // 2)
        ]
        return quotes(rows)
