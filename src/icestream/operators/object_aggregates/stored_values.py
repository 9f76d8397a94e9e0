"""Functions that store the values themselves: collections, distinct counts, exact percentiles.

Idea: a state is a list of values: sorted and distinct if order does not matter (with counts if
multiplicity does), with their times if order matters. Combining is one concatenation and one sort
for all groups; nothing is done value by value in Python.

Invariant: answers equal those over a list of all values
(`test_oracle_every_function_equals_the_obvious_one`; DuckDB's in `test_oracle_duckdb_agrees`).

Cost: the state grows with the values of a window, distinct ones for all but `collect_list`.

Limits: `collect_set` returns its values in ascending order, and `mode` returns the least of equally
frequent values (Spark promises no order). Percentiles are computed with doubles, as in Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Floats, Ints, Mask, Table, numbers_of
from icestream.core.errors import DefinitionError, InputError
from icestream.kernels.sliding_counts import DISTINCT, LISTED, MOST, RANKS
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.object_aggregates.protocol import (
    Types,
    ValueFunction,
    check_number,
    input_of,
)
from icestream.operators.object_aggregates.ragged import (
    Tally,
    bounds_of,
    chosen_of,
    lengths,
    lists_of,
    owners,
    plain_floats,
    present,
    spread,
    starts_of,
    tally,
)
from icestream.operators.object_aggregates.sliding import Slides

_NONE: Floats = np.empty(0)


def doubles(values: pa.Array) -> pa.Array:
    """Return stored numbers as doubles, equal ones equal to the bit."""
    return plain_floats(values.cast(pa.float64(), safe=False))


def fractions_of(aggregate: Aggregate) -> tuple[tuple[float, ...], bool]:
    """Return the fractions of a percentile of stored values, and whether they were a list."""
    wanted = aggregate.parameters[0] if aggregate.parameters else None
    many = isinstance(wanted, list | tuple)
    fractions = tuple(wanted) if many else (wanted,)  # type: ignore[arg-type]
    for each in fractions:
        if not isinstance(each, int | float) or not 0.0 <= each <= 1.0:
            msg = (
                f"{aggregate.function} needs fractions between 0 and 1, got {wanted!r} (as "
                f"{aggregate.alias!r}): write 0.95 for the 95th percentile"
            )
            raise DefinitionError(msg)
    return tuple(float(each) for each in fractions), many


def listed(answers: Floats, empty: Mask, *, many: bool) -> pa.Array:
    """Return percentiles of each group's stored values, as a list or one; null without values."""
    if not many:
        return pa.array(answers[:, 0], mask=empty)
    bounds = np.arange(len(answers) + 1, dtype=np.int32) * answers.shape[1]
    return pa.ListArray.from_arrays(
        pa.array(bounds),
        pa.array(answers.ravel()),
        type=pa.list_(pa.float64()),
        mask=pa.array(empty),
    )


class CollectList(ValueFunction):
    """All values that are not null, in the order of the stream."""

    @classmethod
    def of(cls, aggregate: Aggregate, types: Types) -> Self:
        return cls(input_of(aggregate, types))

    @property
    def state(self) -> pa.DataType:
        return pa.list_(pa.struct([("time", pa.int64()), ("value", self.input)]))

    @property
    def result(self) -> pa.DataType:
        return pa.list_(self.input)

    def lift(self, columns: Sequence[pa.Array], times: Ints, bounds: Ints) -> pa.Array:
        """Keep the values of each run with their times."""
        places = np.arange(len(times))
        places, values = present(columns[0], places)
        return self._lists(times[places], values, owners(bounds)[places], len(bounds) - 1)

    def combine(self, states: pa.Array, bounds: Ints) -> pa.Array:
        """Merge lists by time; equal times keep the order of the states."""
        groups, flat = spread(states, bounds)
        times = np.asarray(flat.field("time"))
        values = flat.field("value")
        if not ((np.diff(times) >= 0) | (np.diff(groups) > 0)).all():
            order = np.lexsort((times, groups))
            times, values, groups = times[order], values.take(pa.array(order)), groups[order]
        return self._lists(times, values, groups, len(bounds) - 1)

    def lower(self, states: pa.Array) -> pa.Array:
        bounds = np.concatenate([[0], np.cumsum(lengths(states))])
        return lists_of(bounds, states.flatten().field("value"), self.result)

    def over(self, states: pa.Array, slides: Slides) -> pa.Array:
        """List the values of each window, which are in order."""
        ends = starts_of(states)
        values = states.flatten().field("value")
        first, last = ends[slides.first], ends[slides.last]
        bounds = np.concatenate([[0], np.cumsum(last - first)])
        return lists_of(bounds, values.take(pa.array(numbers_of(first, last))), self.result)

    def _lists(self, times: Ints, values: pa.Array, groups: Ints, count: int) -> pa.Array:
        kind = self.state.value_type
        pairs = pa.StructArray.from_arrays([pa.array(times), values], fields=list(kind))
        return lists_of(bounds_of(groups, count), pairs, self.state)


class _Distinct(ValueFunction):
    """The distinct values that are not null, in ascending order."""

    @property
    def state(self) -> pa.DataType:
        return pa.list_(self.input)

    def lift(self, columns: Sequence[pa.Array], times: Ints, bounds: Ints) -> pa.Array:
        """Keep the distinct values of each run; with several columns, of rows without a null."""
        groups, values = present(_joined(columns, self.input), owners(bounds))
        return self._lists(tally(values, groups, len(bounds) - 1))

    def combine(self, states: pa.Array, bounds: Ints) -> pa.Array:
        groups, values = spread(states, bounds)
        return self._lists(tally(values, groups, len(bounds) - 1))

    def _lists(self, found: Tally) -> pa.Array:
        return lists_of(found.bounds, found.values, self.state)


class CountDistinct(_Distinct):
    """The number of distinct values."""

    @property
    def result(self) -> pa.DataType:
        return pa.int64()

    def lower(self, states: pa.Array) -> pa.Array:
        return pa.array(lengths(states))

    def over(self, states: pa.Array, slides: Slides) -> pa.Array:
        found, _ = slides.counted(states.flatten(), None, starts_of(states), DISTINCT, _NONE)
        return pa.array(found[:, 0])


class CollectSet(_Distinct):
    """The distinct values themselves."""

    @property
    def result(self) -> pa.DataType:
        return self.state

    def lower(self, states: pa.Array) -> pa.Array:
        return states

    def over(self, states: pa.Array, slides: Slides) -> pa.Array:
        found, values = slides.counted(states.flatten(), None, starts_of(states), LISTED, _NONE)
        return lists_of(np.concatenate([[0], np.cumsum(found[:, 0])]), values, self.result)


def _joined(columns: Sequence[pa.Array], kind: pa.DataType) -> pa.Array:
    """Return one column as it is, several as structs that are null if one of them is."""
    if len(columns) == 1:
        return columns[0]
    missing = np.zeros(len(columns[0]), dtype=np.bool_)
    for column in columns:
        missing |= np.asarray(column.is_null().to_numpy(zero_copy_only=False))
    return pa.StructArray.from_arrays(list(columns), fields=list(kind), mask=pa.array(missing))


class _Counted(ValueFunction):
    """Distinct values with their counts."""

    @property
    def state(self) -> pa.DataType:
        return pa.list_(pa.struct([("value", self.input), ("count", pa.int64())]))

    def combine(self, states: pa.Array, bounds: Ints) -> pa.Array:
        groups, flat = spread(states, bounds)
        counts = np.asarray(flat.field("count"))
        return self._lists(tally(flat.field("value"), groups, len(bounds) - 1, counts))

    def _slid(
        self, states: pa.Array, slides: Slides, kind: int, fractions: tuple[float, ...]
    ) -> tuple[Table, pa.Array]:
        """Return what a kind of answer is for each window, and the values of codes."""
        flat = states.flatten()
        counts, starts = np.asarray(flat.field("count")), starts_of(states)
        return slides.counted(flat.field("value"), counts, starts, kind, np.array(fractions))

    def _lists(self, found: Tally) -> pa.Array:
        kind = self.state.value_type
        pairs = pa.StructArray.from_arrays(
            [found.values, pa.array(found.counts)], fields=list(kind)
        )
        return lists_of(found.bounds, pairs, self.state)


@dataclass(frozen=True)
class Percentile(_Counted):
    """Percentiles with Spark's linear interpolation; values may have frequencies."""

    fractions: tuple[float, ...]
    #: whether the answer is a list
    many: bool

    @classmethod
    def of(cls, aggregate: Aggregate, types: Types) -> Self:
        """Take a number, fractions and optionally a column with frequencies."""
        check_number(aggregate, types[aggregate.columns[0]])
        if aggregate.function == "median":
            return cls(pa.float64(), (0.5,), many=False)
        for weights in aggregate.others:
            if not pa.types.is_integer(types[weights]):
                msg = (
                    f"the frequency of a percentile must be whole, got {types[weights]} (as "
                    f"{aggregate.alias!r}): cast it to an integer"
                )
                raise DefinitionError(msg)
        fractions, many = fractions_of(aggregate)
        return cls(pa.float64(), fractions, many)

    @property
    def result(self) -> pa.DataType:
        return pa.list_(pa.float64()) if self.many else pa.float64()

    def lift(self, columns: Sequence[pa.Array], times: Ints, bounds: Ints) -> pa.Array:
        places = np.arange(len(columns[0]))
        for column in columns:
            places = places[np.asarray(column.take(pa.array(places)).is_valid())]
        weights = None
        if len(columns) > 1:
            weights = np.asarray(columns[1].take(pa.array(places)).cast(pa.int64()))
            if (weights < 0).any():
                msg = "the frequency of a percentile must not be negative; filter such events out"
                raise InputError(msg)
            places, weights = places[weights > 0], weights[weights > 0]
        values = doubles(columns[0].take(pa.array(places)))
        return self._lists(tally(values, owners(bounds)[places], len(bounds) - 1, weights))

    def lower(self, states: pa.Array) -> pa.Array:
        """Interpolate between the two values nearest to each fraction."""
        flat = states.flatten()
        values = np.asarray(flat.field("value"))
        passed = np.concatenate([[0], np.cumsum(np.asarray(flat.field("count")))]).astype(np.int64)
        bounds = np.concatenate([[0], np.cumsum(lengths(states))])
        before, total = passed[bounds[:-1]], np.diff(passed[bounds])
        around = []
        for fraction in self.fractions:
            position = np.maximum(total - 1, 0) * fraction
            for rank in (np.floor(position), np.ceil(position)):
                around.append(self._value_at(values, passed, before + rank.astype(np.int64)))
        return self._interpolated(total, around)

    def over(self, states: pa.Array, slides: Slides) -> pa.Array:
        found, values = self._slid(states, slides, RANKS, self.fractions)
        padded = np.append(np.asarray(values), 0.0)
        around = [padded[np.minimum(codes, len(values))] for codes in found[:, 1:].T]
        return self._interpolated(found[:, 0], around)

    def _interpolated(self, total: Ints, around: Sequence[Floats]) -> pa.Array:
        """Return the answers, given the values before and after each fraction of the values."""
        answers = np.empty((len(total), len(self.fractions)))
        for place, fraction in enumerate(self.fractions):
            position = np.maximum(total - 1, 0) * fraction
            low, high = around[2 * place], around[2 * place + 1]
            answers[:, place] = _between(low, high, position - np.floor(position))
        return listed(answers, total == 0, many=self.many)

    @staticmethod
    def _value_at(values: Floats, passed: Ints, ranks: Ints) -> Floats:
        places = np.searchsorted(passed, ranks, side="right") - 1
        padded = np.append(values, 0.0)
        return np.asarray(padded[np.minimum(places, len(values))])


def _between(low: Floats, high: Floats, above: Floats) -> Floats:
    """Return what lies a fraction `above` the lower value, with the roundings of Spark's sum."""
    with np.errstate(invalid="ignore", over="ignore"):
        mixed = low + (high - low) * above
    return np.where((low == high) | (above == 0), low, mixed)


class Mode(_Counted):
    """The most frequent value, the least of equally frequent ones."""

    def lift(self, columns: Sequence[pa.Array], times: Ints, bounds: Ints) -> pa.Array:
        groups, values = present(columns[0], owners(bounds))
        return self._lists(tally(values, groups, len(bounds) - 1))

    def lower(self, states: pa.Array) -> pa.Array:
        flat = states.flatten()
        groups = np.repeat(np.arange(len(states)), lengths(states))
        rarity = -np.asarray(flat.field("count"))
        return flat.field("value").take(chosen_of(groups, rarity, len(states)))

    def over(self, states: pa.Array, slides: Slides) -> pa.Array:
        found, values = self._slid(states, slides, MOST, ())
        return values.take(pa.array(found[:, 0], mask=found[:, 0] < 0))
