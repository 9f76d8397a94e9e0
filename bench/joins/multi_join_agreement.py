"""Whether systems joined five streams correctly: the number of results, and a checksum over them.

Idea: the weight of a result is the product of a hashed number of each of its five rows, modulo
2**64; the checksum is the sum of the weights. It does not depend on the order of the results and
reveals which rows were joined. Sums of products along the tree of joins give the expected value
without computing the results, so it shares nothing with any of the systems.

Invariants:
1. The expected results are DuckDB's (`test_oracle_expected_results_are_those_of_duckdb`).
2. A missing, duplicate or wrong result is detected (`test_a_wrong_result_shows`).

Limits: errors that cancel modulo 2**64 stay undetected.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from bench.multi_join_rows import STREAMS
from icestream.core.arrays import Ints

Words = npt.NDArray[np.uint64]

NAMES = tuple(stream.id for stream in STREAMS)


@dataclass(frozen=True, slots=True)
class ExpectedResults:
    """All results of the joins."""

    count: int
    checksum: int


def expected(rows: int) -> ExpectedResults:
    """Compute the results of the first rows of each stream."""
    columns = {
        name: column for stream in STREAMS for name, column in stream.columns(0, rows).items()
    }
    weights = [_mixed(columns[name], place) for place, name in enumerate(NAMES)]
    ones = np.ones(rows, dtype=np.uint64)
    counts, sums = (_along_the_joins(columns, each) for each in ([ones] * len(STREAMS), weights))
    return ExpectedResults(counts, sums)


def of_parquet(folder: Path) -> ExpectedResults:
    """Add up the results that a system wrote as Parquet."""
    return of_batches(
        batch
        for path in sorted(folder.glob("**/*.parquet"))
        for batch in pq.ParquetFile(path).iter_batches(columns=list(NAMES))
    )


def of_csv(folder: Path) -> ExpectedResults:
    """Add up the results that a system wrote as CSV without a header, in any number of files."""
    files = (path for path in sorted(folder.glob("**/*")) if path.is_file() and path.stat().st_size)
    options = csv.ReadOptions(column_names=NAMES)
    return of_batches(batch for path in files for batch in csv.read_csv(path, options).to_batches())


def of_batches(batches: Iterator[pa.RecordBatch]) -> ExpectedResults:
    """Add up results."""
    count, checksum = 0, np.zeros(1, dtype=np.uint64)
    for batch in batches:
        weights = np.ones(batch.num_rows, dtype=np.uint64)
        for place, name in enumerate(NAMES):
            weights *= _mixed(np.asarray(batch.column(name)), place)
        count += batch.num_rows
        checksum += weights.sum(dtype=np.uint64)
    return ExpectedResults(count, int(checksum[0]))


def _along_the_joins(columns: dict[str, Ints], weights: list[Words]) -> int:
    """Add up the products of the weights of all results, modulo 2**64."""
    a, b, c, d, e = weights
    found = c * _met(columns["a1"], a, columns["c1"]) * _met(columns["b1"], b, columns["c1"])
    found = d * _met(columns["c2"], found, columns["d1"])
    found = e * _met(columns["d2"], found, columns["e1"])
    return int(found.sum(dtype=np.uint64))


def _met(keys: Ints, weights: Words, wanted: Ints) -> Words:
    """Return, for each wanted key, the sum of the weights of the rows that have it."""
    sums = np.zeros(1 + max(int(keys.max()), int(wanted.max())), dtype=np.uint64)
    np.add.at(sums, keys, weights)
    met: Words = sums[wanted]
    return met


def _mixed(ids: Ints, place: int) -> Words:
    """Turn the numbers of a stream's rows into odd numbers that look random."""
    words = (ids.astype(np.uint64) + np.uint64(place << 40)) * np.uint64(0x9E3779B97F4A7C15)
    words ^= words >> np.uint64(29)
    return (words * np.uint64(0xBF58476D1CE4E5B9)) | np.uint64(1)
