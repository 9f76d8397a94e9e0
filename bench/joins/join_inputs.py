"""Five streams whose partitions differ in productivity: the input of the spill bench.

Idea: streams A to E have two columns each; A.1 = B.1 = C.1, then C.2 = D.1, then D.2 = E.1. In each
range of K tuples of a stream every value occurs R times: the *range join ratio* of its partition. R
differs by partition, and its average is the average join ratio of the join. The paper can be read
in two ways: all partitions have equally many tuples, so that productive ones have fewer values; or
equally many values, so that productive ones have more tuples. All parameters are in one table:

    partitions of each join              300
    tuple range K                        as many tuples as a stream has in a run
    R of a partition                     half of them 0.3, half 1.7 times the average of the join
    equal in all partitions              tuples, or values
    partitions of the next join that     1, 2, 8 or all; each half of the partitions goes evenly to
    rows of one partition go to          both halves
    average R of the three joins         (3, 1, 1), (1, 3, 3) or (3, 2, 3)
    order in a range                     at random, by seed

Invariants:
1. In a range every partition has equally many tuples or values, and every value occurs R times, up
   to rounding (`test_values_come_as_often_as_their_ratio_says`,
   `test_productive_partitions_have_more_tuples_if_all_have_as_many_values`).
2. The exact number of results equals DuckDB's
   (`test_oracle_the_exact_number_of_results_is_that_of_duckdb`).
3. The same seed makes the same streams (`test_streams_are_a_function_of_their_seed`).
4. Rows of a partition go to as many partitions of the next join as asked for
   (`test_rows_of_a_partition_go_to_so_many_of_the_next_join`).

References: Liu, Zhu, Rundensteiner (2006), section 6.1, which leaves K, R and the order open.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icestream.core.arrays import Floats, Ints
from icestream.operators.multi_join.spec import partitions_of
from icestream.state.keys import identified

Batch = dict[str, pa.RecordBatch]

PARTITIONS = 300
#: range join ratios of the two halves of a join's partitions, as parts of the average
LOW, HIGH = 0.3, 1.7
#: average join ratios of the three joins
SETTINGS = ((3, 1, 1), (1, 3, 3), (3, 2, 3))
#: what all partitions have equally many of
TUPLES, VALUES = "tuples", "values"
READINGS = (TUPLES, VALUES)
STREAMS = ("a", "b", "c", "d", "e")
JOINS = 3


@dataclass(frozen=True)
class JoinInputs:
    """The streams of one run."""

    #: average join ratio of each join
    ratios: tuple[int, ...]
    #: tuples of each stream
    tuples: int
    seed: int = 1
    #: partitions of the next join to which rows of one partition go
    spread: int = 1
    #: what all partitions have equally many of
    equal: str = TUPLES

    @cached_property
    def columns(self) -> dict[str, Ints]:
        """Return all columns, by names a1 to e2."""
        dice = np.random.default_rng(self.seed)
        high = [dice.permutation(np.arange(PARTITIONS) % 2 == 1) for _ in range(JOINS)]
        ratios = [
            ratio * np.where(half, HIGH, LOW) for ratio, half in zip(self.ratios, high, strict=True)
        ]
        each = [
            ratio if self.equal == TUPLES else np.full(PARTITIONS, float(average))
            for ratio, average in zip(ratios, self.ratios, strict=True)
        ]
        values = [_values(self.tuples, ratio) for ratio in each]
        ways = 1 if self.spread == PARTITIONS else self.spread
        onward = [
            np.array([_onward(high[n], high[n + 1], dice) for _ in range(ways)])
            for n in range(JOINS - 1)
        ]

        def places(join: int) -> Ints:
            if self.equal == TUPLES:
                return dice.permutation(np.arange(self.tuples) % PARTITIONS)
            ends = np.cumsum(ratios[join]) / ratios[join].sum()
            evenly = (np.arange(self.tuples) + 0.5) / self.tuples
            return dice.permutation(np.searchsorted(ends, evenly))

        place = {name: places(max(0, number - 2)) for number, name in enumerate(STREAMS)}

        def column(join: int, places: Ints) -> Ints:
            return _dealt(values[join], places, dice)

        def after(join: int, places: Ints) -> Ints:
            if self.spread == PARTITIONS:
                return dice.permutation(places)
            way = 0 if self.spread == 1 else dice.integers(0, self.spread, len(places))
            return np.asarray(onward[join][way, places])

        numbers = np.arange(self.tuples)
        return {
            "a1": column(0, place["a"]),
            "a2": numbers,
            "b1": column(0, place["b"]),
            "b2": numbers,
            "c1": column(0, place["c"]),
            "c2": column(1, after(0, place["c"])),
            "d1": column(1, place["d"]),
            "d2": column(2, after(1, place["d"])),
            "e1": column(2, place["e"]),
            "e2": numbers,
        }

    def batches(self, count: int) -> Iterator[Batch]:
        """Yield the streams in a number of batches, each with the same part of every stream."""
        edges = np.linspace(0, self.tuples, count + 1).astype(np.int64)
        for first, last in pairwise(edges.tolist()):
            yield {
                stream: pa.record_batch(
                    {name: self.columns[name][first:last] for name in (f"{stream}1", f"{stream}2")}
                )
                for stream in STREAMS
            }

    @cached_property
    def results(self) -> int:
        """Return the exact number of results of all three joins."""
        rows = self.columns
        top = 1 + max(int(each.max()) for each in rows.values())
        found = _count(rows["a1"], top)[rows["c1"]] * _count(rows["b1"], top)[rows["c1"]]
        found = _sums(rows["c2"], found, top)[rows["d1"]]
        return int(_sums(rows["d2"], found, top)[rows["e1"]].sum())


def _values(tuples: int, ratios: Floats) -> list[Ints]:
    """Return the values of partitions that have equally many tuples, by their range join ratio."""
    wanted = np.maximum(1, np.round(tuples / PARTITIONS / ratios)).astype(np.int64)
    candidates = np.arange(2 * PARTITIONS * int(wanted.max()) + 1000)
    id_high, _ = identified(pa.record_batch({"v": candidates}), ("v",))
    homes = partitions_of(id_high, PARTITIONS)
    order = np.argsort(homes, kind="stable")
    ends = np.cumsum(np.bincount(homes, minlength=PARTITIONS))
    return [
        part[:count]
        for part, count in zip(np.split(candidates[order], ends[:-1]), wanted, strict=True)
    ]


def _onward(
    high: npt.NDArray[np.bool_], next_high: npt.NDArray[np.bool_], dice: np.random.Generator
) -> Ints:
    """Return the next join's partition for each of this one, each half spread over both halves."""
    by_half = np.lexsort((dice.random(PARTITIONS), high))
    ranks = np.empty(PARTITIONS, dtype=np.int64)
    for half in (False, True):
        members = np.flatnonzero(next_high == half)
        ranks[dice.permutation(members)] = np.arange(len(members))
    alternating = np.lexsort((next_high, ranks))
    onward = np.empty(PARTITIONS, dtype=np.int64)
    onward[by_half] = alternating
    return onward


def _dealt(values: list[Ints], places: Ints, dice: np.random.Generator) -> Ints:
    """Give each tuple a value of its partition, all values of a partition equally often."""
    order = np.argsort(places, kind="stable")
    column = np.empty(len(places), dtype=np.int64)
    starts = np.searchsorted(places[order], np.arange(PARTITIONS + 1))
    for mine, first, last in zip(values, starts[:-1], starts[1:], strict=True):
        column[order[first:last]] = dice.permutation(
            np.resize(dice.permutation(mine), last - first)
        )
    return column


def _count(column: Ints, top: int) -> Ints:
    return np.bincount(column, minlength=top)


def _sums(column: Ints, weights: Ints, top: int) -> Ints:
    return np.bincount(column, weights.astype(np.float64), top).astype(np.int64)
