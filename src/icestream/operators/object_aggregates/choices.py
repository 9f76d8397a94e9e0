"""Functions that choose one value of a window: the first, the last, the least, the greatest.

Idea: a state is the value chosen so far and the key of the choice: its time, or another value.
Among ties the value that is first in the stream is kept; `last` keeps the last one. Values of any
type can be chosen, unlike with words of fixed width.

Invariant: answers equal those of a scan of all events in the order of the stream
(`test_oracle_every_function_equals_the_obvious_one`).

Cost: one value per group and state, whatever the window holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icestream.core.arrays import Ints
from icestream.core.errors import DefinitionError
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.object_aggregates.protocol import Types, ValueFunction, check_ranked
from icestream.operators.object_aggregates.ragged import chosen_of, owners, rank


def _places(valid: pa.Array) -> Ints:
    return np.flatnonzero(np.asarray(valid.to_numpy(zero_copy_only=False)))


def _structs(columns: Sequence[pa.Array], kind: pa.DataType, chosen: pa.Array) -> pa.Array:
    """Return structs of the chosen positions, null where nothing was chosen."""
    parts = [column.take(chosen) for column in columns]
    return pa.StructArray.from_arrays(parts, fields=list(kind), mask=chosen.is_null())


def _latest(groups: Ints, keys: Ints, count: int) -> pa.Array:
    """Return the position of the greatest key of each group, the last of equal ones."""
    backwards = chosen_of(groups[::-1], -keys[::-1], count)
    places = len(keys) - 1 - np.asarray(backwards.fill_null(0))
    return pa.array(places, mask=np.asarray(backwards.is_null().to_numpy(zero_copy_only=False)))


@dataclass(frozen=True)
class FirstOrLast(ValueFunction):
    """The first or last value in the order of the stream."""

    accumulates: ClassVar[bool] = False

    last: bool
    skips_nulls: bool

    @classmethod
    def of(cls, aggregate: Aggregate, types: Types) -> Self:
        """Take any type; the parameter defines whether nulls are skipped."""
        skips = bool(aggregate.parameters and aggregate.parameters[0])
        return cls(types[aggregate.columns[0]], aggregate.function == "last", skips)

    @property
    def state(self) -> pa.DataType:
        return pa.struct([("time", pa.int64()), ("value", self.input)])

    def lift(self, columns: Sequence[pa.Array], times: Ints, bounds: Ints) -> pa.Array:
        values = columns[0]
        places = _places(values.is_valid()) if self.skips_nulls else np.arange(len(values))
        return self._chosen(times, values, owners(bounds), places, len(bounds) - 1)

    def combine(self, states: pa.Array, bounds: Ints) -> pa.Array:
        times = np.asarray(states.field("time").fill_null(0))
        places = _places(states.is_valid())
        return self._chosen(times, states.field("value"), owners(bounds), places, len(bounds) - 1)

    def lower(self, states: pa.Array) -> pa.Array:
        return pc.struct_field(states, [1])

    def _chosen(
        self, times: Ints, values: pa.Array, groups: Ints, places: Ints, count: int
    ) -> pa.Array:
        choose = _latest if self.last else chosen_of
        inner = choose(groups[places], times[places], count)
        chosen = pa.array(places, pa.int64()).take(inner)
        return _structs([pa.array(times), values], self.state, chosen)


@dataclass(frozen=True)
class ObjectExtreme(ValueFunction):
    """The least or greatest value, for types that do not fit into words."""

    accumulates: ClassVar[bool] = False

    greatest: bool

    @classmethod
    def of(cls, aggregate: Aggregate, types: Types) -> Self:
        kind = types[aggregate.columns[0]]
        check_ranked(aggregate, kind)
        return cls(kind, aggregate.function == "max")

    @property
    def state(self) -> pa.DataType:
        return self.input

    def lift(self, columns: Sequence[pa.Array], times: Ints, bounds: Ints) -> pa.Array:
        return self.combine(columns[0], bounds)

    def combine(self, states: pa.Array, bounds: Ints) -> pa.Array:
        places = _places(states.is_valid())
        ranks, distinct = rank(states.drop_null())
        keys = -ranks if self.greatest else ranks
        chosen = chosen_of(owners(bounds)[places], keys, len(bounds) - 1)
        return distinct.take(pa.array(ranks).take(chosen))

    def lower(self, states: pa.Array) -> pa.Array:
        return states


@dataclass(frozen=True)
class ExtremeBy(ValueFunction):
    """The value of the event in which another one is least or greatest."""

    accumulates: ClassVar[bool] = False

    by: pa.DataType
    greatest: bool

    @classmethod
    def of(cls, aggregate: Aggregate, types: Types) -> Self:
        """Take any type, chosen by a type with an order."""
        if len(aggregate.columns) != 2:
            msg = (
                f"{aggregate.function} takes a value and a column to choose it by; got "
                f"{len(aggregate.columns)} columns (as {aggregate.alias!r})"
            )
            raise DefinitionError(msg)
        value, by = (types[name] for name in aggregate.columns)
        check_ranked(aggregate, by)
        return cls(value, by, aggregate.function == "max_by")

    @property
    def state(self) -> pa.DataType:
        """Return the type of a value with its time and the key of the choice."""
        return pa.struct([("time", pa.int64()), ("by", self.by), ("value", self.input)])

    def lift(self, columns: Sequence[pa.Array], times: Ints, bounds: Ints) -> pa.Array:
        """Choose from each run of events; events with a null key are skipped."""
        value, by = columns
        places = _places(by.is_valid())
        return self._chosen([pa.array(times), by, value], owners(bounds), places, len(bounds) - 1)

    def combine(self, states: pa.Array, bounds: Ints) -> pa.Array:
        places = _places(states.is_valid())
        columns = [states.field(name) for name in ("time", "by", "value")]
        return self._chosen(columns, owners(bounds), places, len(bounds) - 1)

    def lower(self, states: pa.Array) -> pa.Array:
        return pc.struct_field(states, [2])

    def _chosen(
        self, columns: Sequence[pa.Array], groups: Ints, places: Ints, count: int
    ) -> pa.Array:
        ranks, _ = rank(columns[1].take(pa.array(places)))
        keys = _before(-ranks if self.greatest else ranks, np.asarray(columns[0])[places])
        chosen = pa.array(places, pa.int64()).take(chosen_of(groups[places], keys, count))
        return _structs(columns, self.state, chosen)


def _before(ranks: Ints, times: Ints) -> Ints:
    """Return one number that orders by rank, then by time."""
    order = np.lexsort((times, ranks))
    changed = (np.diff(ranks[order]) != 0) | (np.diff(times[order]) != 0)
    dense = np.empty(len(ranks), dtype=np.int64)
    dense[order] = np.concatenate([[0], np.cumsum(changed)])[: len(ranks)]
    return dense
