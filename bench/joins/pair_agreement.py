"""Whether systems joined two streams correctly: pairs by a checksum, rows without a partner by id.

Idea: the weight of a pair is the product of a hashed number of each of its ids, modulo 2**64; the
checksum is the sum of the weights. It does not depend on the order of the pairs, reveals which ids
were paired, and can be computed from prefix sums over the sorted streams without the pairs, so the
expected value shares nothing with any of the systems. Rows without a partner that must have come,
because the watermark has passed their bound, have to be there, and no others that have a partner.

Invariants:
1. The expected pairs are those of the plain definition
   (`test_oracle_expected_pairs_follow_the_definition`).
2. A missing, duplicate or wrong pair is detected (`test_a_wrong_pair_shows`), and so is a row
   without a partner (`test_a_wrong_row_without_a_partner_shows`).

Limits: errors that cancel modulo 2**64 stay undetected.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.cold.keyed_rows import KeyedStream
from icestream.core.arrays import Ints

Words = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class JoinPairs:
    """All pairs of a join."""

    count: int
    checksum: int


@dataclass(frozen=True, slots=True)
class Unpaired:
    """Ids of rows of one stream without a partner."""

    ids: Ints

    def agrees(self, alone: npt.NDArray[np.bool_], due: int) -> bool:
        """Return whether these are rows without a partner, with all of those below an id."""
        once = len(np.unique(self.ids)) == len(self.ids)
        complete = bool(np.isin(np.flatnonzero(alone[:due]), self.ids).all())
        return once and complete and bool(alone[self.ids].all())


def expected(left: KeyedStream, right: KeyedStream, rows: int, within_ms: int) -> JoinPairs:
    """Compute the pairs of the first `rows` rows of both streams, at most `within_ms` apart."""
    order, first, last = _partners(left, right, rows, within_ms)
    sums = np.concatenate(([np.uint64(0)], np.cumsum(_mixed(order), dtype=np.uint64)))
    checksum = int((_mixed(np.arange(rows)) * (sums[last] - sums[first])).sum(dtype=np.uint64))
    return JoinPairs(int((last - first).sum()), checksum)


def alone(
    left: KeyedStream, right: KeyedStream, rows: int, within_ms: int
) -> npt.NDArray[np.bool_]:
    """Return which of the first `rows` rows of a stream have no partner in the other."""
    _, first, last = _partners(left, right, rows, within_ms)
    return np.asarray(first == last)


def _partners(
    left: KeyedStream, right: KeyedStream, rows: int, within_ms: int
) -> tuple[Ints, Ints, Ints]:
    """Return rows of the right stream in order, and where the partners of each left one are."""
    times, keys, _ = left.columns(0, rows)
    other_times, other_keys, _ = right.columns(0, rows)
    order = np.lexsort((other_times, other_keys))
    # key and time as one number: times span less than 2**40 ms, keys less than 2**23
    base = int(min(times.min(), other_times.min())) - within_ms
    sorted_places = _place(other_keys[order], other_times[order] - base)
    first = np.searchsorted(sorted_places, _place(keys, times - base - within_ms), side="left")
    last = np.searchsorted(sorted_places, _place(keys, times - base + within_ms), side="right")
    return order, first, last


def of_parquet(folder: Path) -> tuple[JoinPairs, Unpaired, Unpaired]:
    """Add up the result files of a query with columns left_id and right_id."""
    count, checksum = 0, np.uint64(0)
    unpaired: tuple[list[Ints], list[Ints]] = ([], [])
    for path in sorted(folder.glob("**/*.parquet")):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(columns=["left_id", "right_id"]):
                valid = [column.is_valid() for column in batch.columns]
                for side, ids in enumerate(unpaired):
                    ids.append(np.asarray(batch.column(side).filter(pc.invert(valid[1 - side]))))
                paired = batch.filter(pc.and_(*valid))
                left, right = (_mixed(np.asarray(column)) for column in paired.columns)
                count += paired.num_rows
                checksum = np.add(checksum, (left * right).sum(dtype=np.uint64))
    nothing = np.empty(0, dtype=np.int64)
    lefts, rights = (Unpaired(np.concatenate([nothing, *ids])) for ids in unpaired)
    return JoinPairs(count, int(checksum)), lefts, rights


def _place(keys: Ints, times: Ints) -> Ints:
    return (keys << 40) + times


def _mixed(ids: Ints) -> Words:
    """Turn ids into odd numbers that look random."""
    words = ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    words ^= words >> np.uint64(29)
    return (words * np.uint64(0xBF58476D1CE4E5B9)) | np.uint64(1)
