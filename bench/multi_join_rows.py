"""Five streams for a query of three joins: row `i` of a stream is a function of `i` and its seed.

Idea: streams A to E; A.1 = B.1 = C.1, then C.2 = D.1, then D.2 = E.1. Rows come in ranges; keys of
different ranges differ, and in a range each key of a join occurs on average as often in each of its
streams as the *ratio* of the join. So each row has as many results early as late, however long the
streams are, while no stored row can ever be dropped. The keys are computed with integers that SQL
can compute too, for systems that read no files; every row has a number besides its keys.

Invariants:
1. Rows do not depend on how they are cut into files (`test_rows_do_not_depend_on_the_cut`).
2. A key occurs as often as the ratio of its join (`test_keys_come_as_often_as_asked`).

References: Liu, Zhu, Rundensteiner (2006), section 6.1: tuple range and join ratios.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench.rows import START, A, P, write_in_order
from icestream.core.arrays import Ints

#: rows of a stream in a range, and how often each key of a join occurs in one
RANGE = 20_000
RATIOS = (3, 1, 1)
#: keys of each join in a range
KEYS = tuple(RANGE // ratio for ratio in RATIOS)
#: a multiplier that makes the keys of a row independent
MIX = 1_103_515_245
#: milliseconds of event time between rows of a stream
TICK_MS = 1


@dataclass(frozen=True, slots=True)
class JoinStream:
    """The rows of one stream."""

    name: str
    seed: int
    #: numbers of the joins whose keys its columns 1, 2 are; the last column is the row's number
    joins: tuple[int, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the key columns: `c1`, `c2`."""
        return tuple(f"{self.name}{place}" for place, _ in enumerate(self.joins, start=1))

    @property
    def id(self) -> str:
        """Name of the column with the number of a row: `c_id`."""
        return f"{self.name}_id"

    @property
    def spark_schema(self) -> str:
        """The columns in Spark's notation."""
        return ", ".join(["ts timestamp", *(f"{name} bigint" for name in (*self.keys, self.id))])

    def columns(self, first: int, count: int) -> dict[str, Ints]:
        """Compute keys and numbers of `count` rows from `first` on."""
        i = np.arange(first, first + count, dtype=np.int64)
        x = (i * A + self.seed) % P
        h = (x * x) % P
        found = {}
        for name, join in zip(self.keys, self.joins, strict=True):
            found[name] = i // RANGE * KEYS[join] + h % KEYS[join]
            h = (h * MIX) % P
        return found | {self.id: i}

    def table(self, first: int, count: int) -> pa.Table:
        """Compute rows as an Arrow table."""
        columns = self.columns(first, count)
        times = START + columns[self.id] * TICK_MS
        return pa.table({"ts": pa.array(times * 1_000, pa.timestamp("us", tz="UTC")), **columns})

    def write_files(self, folder: Path, files: int, rows_per_file: int) -> Path:
        """Write the first rows as Parquet files, with file times in row order; reuse existing ones.

        Spark's file source reads files by modification time, so those are set one second apart.
        """
        keys = "-".join(str(KEYS[join]) for join in self.joins)
        target = folder / f"multi-join-{self.name}-{RANGE}-{keys}-{rows_per_file}-{files}"
        return write_in_order(target, files, rows_per_file, self.table)


STREAMS = (
    JoinStream("a", 11_213, (0,)),
    JoinStream("b", 22_381, (0,)),
    JoinStream("c", 33_479, (0, 1)),
    JoinStream("d", 44_617, (1, 2)),
    JoinStream("e", 55_733, (2,)),
)
