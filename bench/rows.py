"""The events every system reads: row `i` is a function of `i`, in integers that SQL computes too.

Idea: a hash that fits in 64-bit arithmetic (`x = i * A + SEED mod P`, `h = x * x mod P`) gives key,
disorder and value of row `i`. Systems that read files get files of it; a system that does not
computes the same rows from the same constants. Values are multiples of 1/8, so sums of them
are exact in any order and results of different systems can be compared bit by bit.

Invariants:
1. Rows do not depend on how they are cut into files (`test_rows_do_not_depend_on_the_cut`).
2. Time goes up by one tick per row, with disorder below `DISORDER` (`test_disorder_is_bounded`).
3. Keys are spread evenly (`test_keys_are_spread_evenly`).

Limits: `i` stays below 2**47, or `i * A` would overflow. There are `P / (keys * DISORDER)` values:
two with a million keys.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv, ipc

P = 2_147_483_647
A = 48_271
SEED = 12_345
KEYS = 100
#: milliseconds by which an event may be older than its position
DISORDER = 2_000
#: milliseconds of event time between rows, or between groups of them (`StreamShape`)
TICK = 1
#: 2024-01-01 00:00 UTC, milliseconds
START = 1_704_067_200_000

SCHEMA = pa.schema(
    [
        ("ts", pa.timestamp("us", tz="UTC")),
        ("key", pa.int64()),
        ("value", pa.float64()),
    ]
)
#: the same in Spark's notation
SPARK_SCHEMA = "ts timestamp, key bigint, value double"


@dataclass(frozen=True, slots=True)
class StreamShape:
    """How many keys a stream has, and how dense it is."""

    keys: int = KEYS
    #: rows of one tick: 1,000 events a second of event time for each
    per_tick: int = 1


SPARSE = StreamShape()


def constants(shape: StreamShape = SPARSE) -> dict[str, int]:
    """Return the constants from which another process computes the same rows."""
    return {
        "p": P, "a": A, "seed": SEED, "keys": shape.keys, "disorder": DISORDER, "tick": TICK,
        "per_tick": shape.per_tick, "start": START,
    }  # fmt: skip


def columns(
    first: int, count: int, shape: StreamShape = SPARSE
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Compute event times (milliseconds), keys and values of rows `first` to `first + count`."""
    i = np.arange(first, first + count, dtype=np.int64)
    x = (i * A + SEED) % P
    h = (x * x) % P
    late = (h // shape.keys) % DISORDER
    value = (h // (shape.keys * DISORDER)).astype(np.float64) / 8
    return START + i // shape.per_tick * TICK - late, h % shape.keys, value


def table(first: int, count: int, shape: StreamShape = SPARSE) -> pa.Table:
    """Compute rows as an Arrow table."""
    ts, key, value = columns(first, count, shape)
    return pa.table([pa.array(ts * 1_000, SCHEMA.field("ts").type), key, value], schema=SCHEMA)


def write_files(
    folder: Path,
    files: int,
    rows_per_file: int,
    kind: str = "parquet",
    shape: StreamShape = SPARSE,
) -> Path:
    """Write a prefix of the rows as files, with file times in row order; reuse existing ones.

    Spark's file source reads files by modification time, so those are set one second apart.
    """
    name = f"rows-{rows_per_file}-{files}{'' if kind == 'parquet' else f'-{kind}'}"
    if shape != SPARSE:
        name += f"-{shape.keys}-keys-{shape.per_tick}-a-tick"
    return write_in_order(folder / name, files, rows_per_file, partial(table, shape=shape), kind)


def write_in_order(
    target: Path,
    files: int,
    rows_per_file: int,
    table: Callable[[int, int], pa.Table],
    kind: str = "parquet",
) -> Path:
    """Write files of equally many rows, modified one second apart; keep existing ones."""
    target.mkdir(parents=True, exist_ok=True)

    def write(number: int) -> None:
        path = target / f"{number:06d}.{kind}"
        if path.exists():
            return
        fresh = path.with_suffix(".new")
        _WRITERS[kind](table(number * rows_per_file, rows_per_file), fresh)
        os.utime(fresh, (START // 1_000 + number, START // 1_000 + number))
        fresh.rename(path)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(write, range(files)))
    return target


def _write_arrow(events: pa.Table, path: Path) -> None:
    with ipc.new_file(path, events.schema) as writer:
        writer.write_table(events, 1 << 17)


def _write_csv(events: pa.Table, path: Path) -> None:
    csv.write_csv(events, path, csv.WriteOptions(include_header=False))


_WRITERS: dict[str, Callable[[pa.Table, Path], None]] = {
    "arrow": _write_arrow,
    "csv": _write_csv,
    "parquet": pq.write_table,
}


def write_batches(
    folder: Path, batches: int, events: int, *, keys: int, span: int, seed: int
) -> None:
    """Write files of events with a key and a value, each `span` microseconds after the other."""
    folder.mkdir(parents=True)
    dice = np.random.default_rng(seed)
    for number in range(batches):
        # windows of update streams begin after 1970
        times = 1 + np.sort(dice.integers(number * span, (number + 1) * span, events))
        columns = {
            "ts": pa.array(times).cast(pa.timestamp("us", "UTC")),
            "key": dice.integers(0, keys, events),
            "value": dice.integers(0, 1_000, events),
        }
        path = folder / f"{number:05d}.parquet"
        pq.write_table(pa.table(columns), path)
        os.utime(path, (1e9 + number, 1e9 + number))
