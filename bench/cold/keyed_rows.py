"""Rows with many keys, even or skewed: row `i` of a stream is a function of `i` and a seed.

Idea: a hash in 64-bit integers gives disorder, value and place of row `i`; a power of the place,
taken as a fraction of all keys, gives the key, so that a few keys have most of the rows. Values are
multiples of 1/8, whose sums are exact in any order, so results of different systems can be compared
bit by bit.

Invariants:
1. Rows do not depend on how they are cut into files (`test_rows_do_not_depend_on_the_cut`).
2. Time goes up by one tick per row, with disorder below `DISORDER_MS` (`test_disorder_is_bounded`).
3. The first x of the keys have x ** (1 / power) of the rows (`test_keys_are_as_skewed_as_asked`).

Limits: `i` stays below 2**47, or the hash would overflow.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench.rows import START, A, P, write_in_order
from icestream.core.arrays import Floats, Ints

#: milliseconds by which an event may be older than its place says
DISORDER_MS = 2_000
#: milliseconds of event time between rows: 1,000 events per second
TICK_MS = 1

SCHEMA = pa.schema(
    [
        ("ts", pa.timestamp("us", tz="UTC")),
        ("key", pa.int64()),
        ("id", pa.int64()),
        ("value", pa.float64()),
    ]
)
#: the same, as Spark writes it
SPARK_SCHEMA = "ts timestamp, key bigint, id bigint, value double"

#: a multiplier that takes neighbouring hashes apart
_MIX = 1_103_515_245


@dataclass(frozen=True, slots=True)
class KeyedStream:
    """The rows of one stream."""

    name: str
    seed: int
    keys: int
    #: 1 for keys that are equally frequent; the larger, the more skewed
    power: float = 1.0

    def columns(self, first: int, count: int) -> tuple[Ints, Ints, Floats]:
        """Compute event times (milliseconds), keys and values of `count` rows from `first` on."""
        i = np.arange(first, first + count, dtype=np.int64)
        x = (i * A + self.seed) % P
        h = (x * x) % P
        place = ((h * _MIX) % P) / P
        key = (self.keys * place**self.power).astype(np.int64)
        times = START + i * TICK_MS - h % DISORDER_MS
        return times, key, (h // DISORDER_MS % 1_024).astype(np.float64) / 8

    def totals(self, first: int, count: int) -> tuple[Ints, Ints, Floats]:
        """Return the distinct keys of some rows, as they come first, with their count and sum."""
        _, key, value = self.columns(first, count)
        keys, begin, number = np.unique(key, return_index=True, return_inverse=True)
        n = np.bincount(number).astype(np.int64)
        total = np.bincount(number, value).astype(np.float64)
        order = np.argsort(begin)
        return keys[order], n[order], total[order]

    def table(self, first: int, count: int) -> pa.Table:
        """Compute rows as an Arrow table; a row's id is its number."""
        times, key, value = self.columns(first, count)
        ids = np.arange(first, first + count, dtype=np.int64)
        stamps = pa.array(times * 1_000, SCHEMA.field("ts").type)
        return pa.table([stamps, key, ids, value], schema=SCHEMA)

    def write_files(self, folder: Path, files: int, rows_per_file: int) -> Path:
        """Write the first rows as Parquet files, with file times in row order; reuse what is there.

        Spark's file source takes files by time of change, so those are set one second apart.
        """
        target = folder / f"{self.name}-{self.keys}-{rows_per_file}-{files}"
        return write_in_order(target, files, rows_per_file, self.table)
