"""Whether systems joined two streams correctly: the number of pairs, and a checksum over them.

Idea: the weight of a pair is the product of a hashed number of each of its ids, modulo 2**64; the
checksum is the sum of the weights. It does not depend on the order of the pairs, reveals which ids
were paired, and can be computed from prefix sums over the sorted streams without the pairs, so the
expected value shares nothing with any of the systems.

Invariants:
1. The expected pairs are those of the plain definition
   (`test_oracle_expected_pairs_follow_the_definition`).
2. A missing, duplicate or wrong pair is detected (`test_a_wrong_pair_shows`).

Limits: errors that cancel modulo 2**64 stay undetected.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from bench.cold.keyed_rows import KeyedStream
from icestream.core.arrays import Ints

Words = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class JoinPairs:
    """All pairs of a join."""

    count: int
    checksum: int


def expected(left: KeyedStream, right: KeyedStream, rows: int, within_ms: int) -> JoinPairs:
    """Compute the pairs of the first `rows` rows of both streams, at most `within_ms` apart."""
    times, keys, _ = left.columns(0, rows)
    other_times, other_keys, _ = right.columns(0, rows)
    order = np.lexsort((other_times, other_keys))
    # key and time as one number: times span less than 2**40 ms, keys less than 2**23
    base = int(min(times.min(), other_times.min())) - within_ms
    sorted_places = _place(other_keys[order], other_times[order] - base)
    first = np.searchsorted(sorted_places, _place(keys, times - base - within_ms), side="left")
    last = np.searchsorted(sorted_places, _place(keys, times - base + within_ms), side="right")
    sums = np.concatenate(([np.uint64(0)], np.cumsum(_mixed(order), dtype=np.uint64)))
    checksum = int((_mixed(np.arange(rows)) * (sums[last] - sums[first])).sum(dtype=np.uint64))
    return JoinPairs(int((last - first).sum()), checksum)


def of_parquet(folder: Path) -> JoinPairs:
    """Add up the result files of a query with columns left_id and right_id."""
    count, checksum = 0, np.uint64(0)
    for path in sorted(folder.glob("**/*.parquet")):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(columns=["left_id", "right_id"]):
                left, right = (_mixed(np.asarray(column)) for column in batch.columns)
                count += batch.num_rows
                checksum = np.add(checksum, (left * right).sum(dtype=np.uint64))
    return JoinPairs(count, int(checksum))


def _place(keys: Ints, times: Ints) -> Ints:
    return (keys << 40) + times


def _mixed(ids: Ints) -> Words:
    """Turn ids into odd numbers that look random."""
    words = ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    words ^= words >> np.uint64(29)
    return (words * np.uint64(0xBF58476D1CE4E5B9)) | np.uint64(1)
