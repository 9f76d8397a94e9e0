"""The stream `Desk`: prices and volumes of trades, and reviews of stocks.

Idea: row `n` is a pure function of the seed and of `n`, so the stream can be made in pieces of any
size. A trade has two rows, its price in one feed and its volume in another, some rows later; some
rows are reviews of a stock. Stocks are traded and reviewed unevenly.

Invariants:
1. Same seed, same rows, however they are divided (`test_oracle_rows_do_not_depend_on_the_pieces`).
2. Every price is followed by a volume of the same trade (`test_prices_and_volumes_come_in_pairs`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from examples.market.generator import BEGIN, SYMBOLS
from icestream.core.errors import DefinitionError
from icestream.core.times import Micros
from icestream.demo.randomness import fractions, random_bits
from icestream.demo.replay import EventFile, write_files

PRICE, VOLUME, REVIEW = "price", "volume", "review"

ARROW_SCHEMA = pa.schema(
    [
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("kind", pa.string()),
        #: number of the trade, or of the review
        ("number", pa.int64()),
        ("symbol", pa.string()),
        ("value", pa.float64()),
    ]
)
SPARK_SCHEMA = "timestamp timestamp, kind string, number long, symbol string, value double"

_SECOND: Micros = 1_000_000
#: block of rows: the first half are prices and the second their volumes, except for one review
_TURN = 401
#: draws by purpose
_SYMBOL, _PRICE, _VOLUME, _RATING = range(1, 5)


@dataclass(frozen=True, slots=True)
class Desk:
    """The feeds of an integration server."""

    #: rows per second of event time
    rate: int = 1000
    seed: int = 1
    begin: Micros = BEGIN

    def __post_init__(self) -> None:
        """Raise for invalid values."""
        if self.rate < 1:
            msg = f"rate must be at least 1 row per second; got {self.rate}"
            raise DefinitionError(msg)

    def table(self, first: int, count: int) -> pa.Table:
        """Return the rows number `first` to `first + count`, in order of arrival."""
        rows = np.arange(first, first + count, dtype=np.int64)
        turn, place = np.divmod(rows, _TURN)
        half = _TURN // 2
        kinds = np.where(place == 2 * half, REVIEW, np.where(place < half, PRICE, VOLUME))
        trades = turn * half + place % half
        numbers = np.where(kinds == REVIEW, turn, trades)
        stocks = np.where(kinds == REVIEW, self._stocks(~turn), self._stocks(trades))
        draws = [self._draws(purpose, rows) for purpose in (_PRICE, _VOLUME, _RATING)]
        values = np.select(
            [kinds == PRICE, kinds == VOLUME],
            [np.rint(500 * 100 ** draws[0]) / 100, np.ceil(-2000 * np.log(draws[1]))],
            np.ceil(5 * draws[2]),
        )
        times = self.begin + rows * _SECOND // self.rate
        columns = (times, kinds, numbers, np.array(SYMBOLS)[stocks], values)
        arrays = [pa.array(c).cast(f.type) for c, f in zip(columns, ARROW_SCHEMA, strict=True)]
        return pa.Table.from_arrays(arrays, schema=ARROW_SCHEMA)

    def write(self, folder: Path, events: int, *, seconds: int) -> Iterator[EventFile]:
        """Write the first `events` rows to Parquet files of `seconds` of event time each."""
        yield from write_files(folder, self._pieces(events, seconds * self.rate), ["kind"])

    def _pieces(self, events: int, most: int) -> Iterator[tuple[pa.Table, Micros]]:
        for first in range(0, events, most):
            count = min(most, events - first)
            yield self.table(first, count), self.begin + (first + count) * _SECOND // self.rate

    def _stocks(self, numbers: np.ndarray) -> np.ndarray:
        """Choose a stock for each number; the first ones are chosen most."""
        return (len(SYMBOLS) * self._draws(_SYMBOL, numbers) ** 1.5).astype(np.int64)

    def _draws(self, purpose: int, numbers: np.ndarray) -> np.ndarray:
        return fractions(random_bits(self.seed, purpose, numbers.astype(np.uint64)))
