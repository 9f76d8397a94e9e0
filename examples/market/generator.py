"""The stream `TradeStream`: a hundred stocks, as Arrow tables or as Parquet files.

Idea: row `n` is a pure function of the seed and of `n`, so the stream can be made in pieces of any
size, in any order, and is the same. Trades go through the symbols in turn, as in the paper; prices
are random walks around the average price of a stock; volumes are exponential, around what is usual
for the stock.

Invariants:
1. Same seed, same rows, however they are divided (`test_oracle_rows_do_not_depend_on_the_pieces`).
2. A trade arrives less than `disorder` behind the latest trade before it
   (`test_bounded_disorder_stays_below_its_bound`).
3. Event times advance by `rate` trades a second (`test_oracle_the_rate_is_what_was_asked_for`).
4. Volumes are whole and at least 1, prices whole cents and at least 1 cent
   (`test_prices_are_cents_and_volumes_are_shares`).

Cost: under a microsecond a row on one core, files included; memory of one file.

References: Shared SlideM, section 5.3, where prices and volumes are random.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from examples.market.walk import walk
from icestream.core.errors import DefinitionError
from icestream.core.times import Micros
from icestream.demo.randomness import fractions, random_bits
from icestream.demo.replay import EventFile, write_files

#: made-up names, not stocks of any exchange
SYMBOLS: tuple[str, ...] = tuple(
    begin + end
    for begin in ("BRA", "COL", "DUN", "FEX", "GLI", "HAV", "JOR", "KEM", "LUP", "NIV")
    for end in ("A", "D", "E", "I", "K", "N", "O", "S", "T", "U")
)

#: column -> Spark's name of its type
COLUMNS: dict[str, str] = {
    "timestamp": "timestamp",
    "symbol": "string",
    "price": "double",
    "volume": "int",
}
SPARK_SCHEMA = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
ARROW_SCHEMA = pa.schema(
    [
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("symbol", pa.string()),
        ("price", pa.float64()),
        ("volume", pa.int32()),
    ]
)

_SECOND: Micros = 1_000_000
#: Thursday, 1 January 2026, 00:00 UTC
BEGIN: Micros = 1_767_225_600 * _SECOND
#: rows generated at once; keeps the working columns inside the processor's cache
_BLOCK = 1 << 16
#: by how much a price changes with a trade, as a fraction of it
_STEP = 2e-4
#: draws by purpose
_DELAY, _VOLUME, _USUAL_PRICE, _USUAL_VOLUME = range(1, 5)


@dataclass(frozen=True, slots=True)
class TradeStream:
    """The stream of trades."""

    #: trades per second of event time
    rate: int = 1000
    seed: int = 1
    #: a trade is less than this behind the latest trade before it
    disorder: Micros = 0
    begin: Micros = BEGIN

    def __post_init__(self) -> None:
        """Raise for invalid values."""
        if self.rate < 1:
            msg = f"rate must be at least 1 trade per second; got {self.rate}"
            raise DefinitionError(msg)
        if self.disorder < 0:
            msg = f"disorder must not be negative; got {self.disorder} microseconds"
            raise DefinitionError(msg)

    def table(self, first: int, count: int) -> pa.Table:
        """Return the trades number `first` to `first + count`, in order of arrival."""
        end = first + count
        pieces = [
            self._batch(begin, min(_BLOCK, end - begin)) for begin in range(first, end, _BLOCK)
        ]
        return pa.Table.from_batches(pieces, schema=ARROW_SCHEMA)

    def write(self, folder: Path, events: int, *, seconds: int) -> Iterator[EventFile]:
        """Write the first `events` trades to Parquet files of `seconds` of event time each.

        Each file is written when the iterator reaches it.
        """
        if seconds < 1:
            msg = f"a file must hold at least 1 second of event time; got {seconds}"
            raise DefinitionError(msg)
        yield from write_files(folder, self._pieces(events, seconds * self.rate), ["symbol"])

    def _pieces(self, events: int, most: int) -> Iterator[tuple[pa.Table, Micros]]:
        """Yield the first trades, `most` at a time, each with the event time it reaches."""
        for first in range(0, events, most):
            count = min(most, events - first)
            yield self.table(first, count), self.begin + (first + count) * _SECOND // self.rate

    def _batch(self, first: int, count: int) -> pa.RecordBatch:
        """Return some trades."""
        trades = np.arange(first, first + count, dtype=np.int64)
        step, symbol = np.divmod(trades, len(SYMBOLS))
        counters = trades.view(np.uint64)
        delay = fractions(random_bits(self.seed, _DELAY, counters)) * self.disorder
        times = self.begin + trades * _SECOND // self.rate - delay.astype(np.int64)
        prices = self._usual_prices()[symbol] * np.exp(_STEP * walk(self.seed, symbol, step))
        cents = np.maximum(np.rint(prices * 100), 1)
        shares = -np.log(fractions(random_bits(self.seed, _VOLUME, counters)))
        volumes = np.ceil(shares * self._usual_volumes()[symbol])
        columns = (
            pa.array(times, ARROW_SCHEMA.field("timestamp").type),
            pa.DictionaryArray.from_arrays(symbol.astype(np.int8), list(SYMBOLS)).cast(pa.string()),
            cents / 100,
            volumes.astype(np.int32),
        )
        return pa.RecordBatch.from_arrays([pa.array(each) for each in columns], schema=ARROW_SCHEMA)

    def _usual_prices(self) -> npt.NDArray[np.float64]:
        """Return the mean price of each stock: from 5 to 500, most of them low."""
        return 5 * 100 ** self._of_stocks(_USUAL_PRICE)

    def _usual_volumes(self) -> npt.NDArray[np.float64]:
        """Return the mean volume of a trade of each stock: from 20 to 2,000 shares."""
        return 20 * 100 ** self._of_stocks(_USUAL_VOLUME)

    def _of_stocks(self, purpose: int) -> npt.NDArray[np.float64]:
        stocks = np.arange(len(SYMBOLS), dtype=np.uint64)
        return fractions(random_bits(self.seed, purpose, stocks))
