"""The stream `Loans`: applications for loans between people, by area.

Idea: row `n` is a pure function of the seed and of `n`, so the stream can be made in pieces of any
size. Areas differ in the number of applicants, their income, interest and approval rate;
from some loan on, most are from one area.

Invariants:
1. Same seed, same rows, however they are divided (`test_oracle_rows_do_not_depend_on_the_pieces`).
2. A loan comes less than `disorder` behind the latest one before it
   (`test_bounded_disorder_stays_below_its_bound`).

References: Madsen, Zhou, Su (2016), section 2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icestream.core.arrays import Floats
from icestream.core.errors import DefinitionError
from icestream.core.times import Micros
from icestream.demo.randomness import fractions, random_bits
from icestream.demo.replay import EventFile, write_files

#: Thursday, 1 January 2026, 00:00 UTC
BEGIN: Micros = 1_767_225_600 * 1_000_000
AREAS = tuple(f"area {number:03d}" for number in range(1, 801))

ARROW_SCHEMA = pa.schema(
    [
        ("date", pa.timestamp("us", tz="UTC")),
        ("user", pa.int64()),
        ("area", pa.string()),
        ("approval", pa.bool_()),
        ("amount", pa.float64()),
        #: amount paid back
        ("back", pa.float64()),
        #: months until it is paid back
        ("lendingTime", pa.int32()),
        ("income", pa.float64()),
    ]
)
SPARK_SCHEMA = (
    "date timestamp, user long, area string, approval boolean, amount double, back double, "
    "lendingTime int, income double"
)

_SECOND: Micros = 1_000_000
#: draws by purpose
_USER, _AREA, _APPROVAL, _AMOUNT, _RATE, _TERM, _INCOME, _DELAY, _BOOM = range(1, 10)
_TERMS = np.array([6, 12, 24, 36, 60], dtype=np.int32)

#: the area of a boom, and its share of all loans
_BOOMING = 0.5
_SHARE = 0.7


@dataclass(frozen=True, slots=True)
class Loans:
    """Applications for loans with amount, area and outcome."""

    #: loans per second of event time
    rate: int = 10
    seed: int = 1
    #: a loan is less than this behind the latest loan before it
    disorder: Micros = 30 * _SECOND
    begin: Micros = BEGIN
    #: number of the loan from which on there is a boom in one area; None for none
    boom: int | None = None

    def __post_init__(self) -> None:
        """Raise for invalid values."""
        if self.rate < 1:
            msg = f"rate must be at least 1 loan per second; got {self.rate}"
            raise DefinitionError(msg)

    def table(self, first: int, count: int) -> pa.Table:
        """Return the loans number `first` to `first + count`, in order of arrival."""
        rows = np.arange(first, first + count, dtype=np.int64)
        draws = {purpose: self._draws(purpose, rows) for purpose in range(1, 10)}
        delay = (self.disorder * draws[_DELAY]).astype(np.int64)
        times = self.begin + rows * _SECOND // self.rate - delay
        ranks = draws[_AREA] ** 1.7
        if self.boom is not None:
            ranks[(rows >= self.boom) & (draws[_BOOM] < _SHARE)] = _BOOMING
        amounts = np.rint(2.0 ** (8 * draws[_AMOUNT])) * 100
        terms = _TERMS[(len(_TERMS) * draws[_TERM]).astype(np.int64)]
        yearly = 0.03 + 0.12 * draws[_RATE] + 0.04 * ranks
        back = np.rint(amounts * (1 + yearly * terms / 12))
        incomes = np.rint(20 + 60 * draws[_INCOME] + 40 * ranks) * 1000
        approved = draws[_APPROVAL] < 0.9 - 0.4 * ranks
        columns = {
            "date": times,
            "user": (100_000 * draws[_USER] ** 2).astype(np.int64),
            "area": np.array(AREAS)[(len(AREAS) * ranks).astype(np.int64)],
            "approval": approved,
            "amount": amounts,
            "back": back,
            "lendingTime": terms,
            "income": incomes,
        }
        arrays = [pa.array(columns[each.name]).cast(each.type) for each in ARROW_SCHEMA]
        return pa.Table.from_arrays(arrays, schema=ARROW_SCHEMA)

    def write(self, folder: Path, events: int, *, seconds: int) -> Iterator[EventFile]:
        """Write the first `events` loans to Parquet files of `seconds` of event time each."""
        yield from write_files(folder, self._pieces(events, seconds * self.rate), ["area"])

    def _pieces(self, events: int, most: int) -> Iterator[tuple[pa.Table, Micros]]:
        for first in range(0, events, most):
            count = min(most, events - first)
            yield self.table(first, count), self.begin + (first + count) * _SECOND // self.rate

    def _draws(self, purpose: int, numbers: npt.NDArray[np.int64]) -> Floats:
        return fractions(random_bits(self.seed, purpose, numbers.astype(np.uint64)))
