"""A live feed of quotes: thousands of symbols at uneven rates, written as they happen.

Idea: a thread periodically writes a file with the quotes since the last one, each with the time at
which it was made, so that staleness can be measured from the producer on. Symbol `i` is quoted in
proportion to `(i + 1) ** -skew`. The thread records what it wrote, for checks.

Invariants:
1. Times increase, and no quote is written before its time
   (`test_oracle_quotes_are_written_after_they_are_made`).
2. The rate is what was asked for (same test).
3. A failure ends the thread and is raised by `check` (`test_crash_a_failed_feed_says_so`).
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from icestream.core.arrays import Ints
from icestream.core.errors import DefinitionError
from icestream.core.times import Micros

SCHEMA = pa.schema(
    [("ts", pa.timestamp("us", tz="UTC")), ("symbol", pa.string()), ("price", pa.float64())]
)
SPARK_SCHEMA = "ts timestamp, symbol string, price double"


class LiveQuotes(threading.Thread):
    """Writes quotes into a folder until it is stopped."""

    def __init__(
        self,
        folder: Path,
        *,
        symbols: int,
        rate: float,
        skew: float = 0.9,
        seed: int = 1,
        every: float = 0.2,
    ) -> None:
        """Prepare; `start()` begins.

        Args:
            folder: where the files go.
            symbols: how many there are.
            rate: quotes per second, of all symbols together.
            skew: 0 if all symbols are quoted equally often; 0.9 is a stock exchange.
            seed: another seed is another market.
            every: seconds between two files.
        """
        if symbols < 1 or rate <= 0:
            msg = f"a feed needs at least one symbol and a rate; got {symbols} symbols, {rate}/s"
            raise DefinitionError(msg)
        super().__init__(name="quotes", daemon=True)
        self._folder = folder
        self._rate = rate
        self._every = every
        self._dice = np.random.default_rng(seed)
        weights = np.arange(1, symbols + 1, dtype=np.float64) ** -skew
        self._shares = np.cumsum(weights / weights.sum())
        self._prices = 20 + 180 * self._dice.random(symbols)
        self._names = np.array([name_of(number) for number in range(symbols)])
        self._stopped = threading.Event()
        self._failure: Exception | None = None
        self._written: list[tuple[Ints, Ints]] = []
        #: quotes in files that are complete
        self.quotes = 0
        self.began: Micros = 0

    def run(self) -> None:
        """Write a file at a time."""
        self.began = until = time.time_ns() // 1000
        number = 0
        try:
            while not self._stopped.wait(self._every):
                since, until = until, time.time_ns() // 1000
                self._write(number, since, until)
                number += 1
        except Exception as failure:  # raised again by check, in the main thread
            self._failure = failure

    def stop(self) -> None:
        """Write no further file, and wait for the one being written."""
        self._stopped.set()
        self.join()

    def check(self) -> None:
        """Raise what made the feed fail, if it failed."""
        if self._failure is not None:
            raise self._failure

    @property
    def written(self) -> tuple[Ints, Ints]:
        """Return symbol number and time of every quote written so far, in order."""
        parts = list(self._written)
        if not parts:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])

    def _write(self, number: int, since: Micros, until: Micros) -> None:
        count = int(self._dice.poisson(self._rate * (until - since) / 1e6))
        times = np.sort(self._dice.integers(since, until, count))
        symbols = np.searchsorted(self._shares, self._dice.random(count)).astype(np.int64)
        symbols = np.minimum(symbols, len(self._shares) - 1)
        np.multiply.at(self._prices, symbols, np.exp(2e-4 * self._dice.normal(size=count)))
        columns = [
            pa.array(times, SCHEMA.field("ts").type),
            pa.array(self._names[symbols], pa.string()),
            pa.array(np.round(self._prices[symbols], 2)),
        ]
        fresh, path = (self._folder / f"{part}{number:06d}.parquet" for part in ("_", ""))
        pq.write_table(pa.table(columns, schema=SCHEMA), fresh)
        os.rename(fresh, path)
        self._written.append((symbols, times))
        self.quotes += count


def name_of(number: int) -> str:
    """Return the made-up name of a symbol."""
    letters = []
    for _ in range(4):
        number, letter = divmod(number, 26)
        letters.append(chr(ord("A") + letter))
    return "".join(reversed(letters))


def number_of(name: str) -> int:
    """Return the number of a symbol."""
    number = 0
    for letter in name:
        number = 26 * number + ord(letter) - ord("A")
    return number
