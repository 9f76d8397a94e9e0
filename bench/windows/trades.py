"""Trades of a hundred stocks, endless and the same in every run, with their exact averages.

Idea: event `i` comes `i / rate` seconds after the first, with symbol `i % 100` and the price and
volume at place `i % CYCLE` of one random table. So generating events costs next to nothing, and the
sums of a window of any length are exact: every place of the table counts as often as it occurs.

Invariants:
1. `average` equals adding up the events one by one (`test_oracle_averages_of_trades`).
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import numpy.typing as npt

SYMBOLS = 100
#: events after which prices and volumes repeat; a multiple of the symbols
CYCLE = 1_000_000
SEED = 20
SECOND = 1_000_000

Columns = tuple[
    npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.float64], npt.NDArray[np.int32]
]


class TradeColumns:
    """Columns of events: time (microseconds), symbol, price, volume."""

    def __init__(self, rate: int, cycle: int = CYCLE) -> None:
        """Create the table; there are `rate` events per second."""
        dice = np.random.default_rng(SEED)
        self._rate = rate
        self._cycle = cycle
        self._symbols = (np.arange(cycle) % SYMBOLS).astype(np.int32)
        self._prices = dice.uniform(1, 1_000, cycle)
        self._volumes = dice.integers(1, 10_001, cycle).astype(np.int32)

    def events(self, first: int, count: int) -> Columns:
        """Return some events; they must not cross the end of a cycle."""
        at = first % self._cycle
        part = slice(at, at + count)
        ticks, rest = divmod(SECOND, self._rate)
        times = np.arange(first, first + count)
        times = times * SECOND // self._rate if rest else times * ticks
        return times, self._symbols[part], self._prices[part], self._volumes[part]

    def batches(self, first: int, until: int, size: int) -> Iterator[Columns]:
        """Yield events in batches, cut where a cycle ends."""
        while first < until:
            count = min(size, until - first, self._cycle - first % self._cycle)
            yield self.events(first, count)
            first += count

    def average(self, last: int, count: int) -> float:
        """Return the volume-weighted price of an event's symbol over `count` events up to it."""
        first = max(last - count + 1, 0)
        places = np.arange(last % SYMBOLS, self._cycle, SYMBOLS)
        often = self._times_seen(last + 1, places) - self._times_seen(first, places)
        # prices from 1 on are multiples of 2**-52
        prices = (self._prices[places] * 2.0**52).astype(np.int64).tolist()
        volumes = (self._volumes[places] * often).tolist()
        total = sum(price * volume for price, volume in zip(prices, volumes, strict=True))
        return float(Fraction(total, 2**52 * sum(volumes)))

    def volume(self, last: int, count: int) -> int:
        """Return the volume of all symbols over `count` events up to one."""
        first = max(last - count + 1, 0)
        places = np.arange(self._cycle)
        often = self._times_seen(last + 1, places) - self._times_seen(first, places)
        return int((self._volumes * often).sum())

    def _times_seen(self, events: int, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Count how often each place occurs among the first events."""
        cycles, rest = divmod(events, self._cycle)
        return cycles + (places < rest)
