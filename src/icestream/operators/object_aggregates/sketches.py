"""Approximate functions by Apache DataSketches: distinct counts, percentiles, frequent items.

Idea: a state is the serialized sketch, empty if there were no values. The library merges the
sketches of panes, so the cost of a window is the number of its sketches, not of its events. Values
are deduplicated or counted first, for all groups at once, so a sketch gets each value of a pane
once.

Invariants:
1. Answers are within the error that the library states (`test_a_sketch_is_within_its_own_bounds`).
2. Distinct counts do not depend on how the events were cut into sketches
   (`test_a_distinct_count_does_not_depend_on_the_cut`).

Cost: one Python loop over sketches; `2**lg_k` bytes at most for distinct counts (4 bits each and
some), about `24 k` for percentiles.

Limits: the library compacts percentile sketches at random, so two runs over the same events may
give different answers, within the bounds. NaN is ignored in percentiles.

References: Apache DataSketches (HLL, KLL, frequent items).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import datasketches as ds
import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints
from icestream.core.errors import DefinitionError
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.object_aggregates.protocol import (
    Types,
    ValueFunction,
    check_number,
    check_ranked,
)
from icestream.operators.object_aggregates.ragged import (
    owners,
    plain_floats,
    present,
    tally,
    whole_type,
)
from icestream.operators.object_aggregates.stored_values import doubles, fractions_of, listed

#: sizes that the library accepts for a sketch of distinct values
LEAST_LG_K, MOST_LG_K, LG_K = 7, 21, 12
#: and for a sketch of quantiles
LEAST_K, MOST_K, K = 8, 65535, 200
#: items tracked and returned by `approx_top_k` by default, as in Spark
ITEMS_TRACKED, ITEMS = 10_000, 5

_NOTHING = b""


def _parameter(aggregate: Aggregate, place: int, default: int, least: int, most: int) -> int:
    """Return a whole number among the parameters; DefinitionError if it is out of range."""
    given = aggregate.parameters[place] if len(aggregate.parameters) > place else default
    if not isinstance(given, int) or not least <= given <= most:
        msg = (
            f"{aggregate.function} takes a whole number from {least} to {most}; got {given!r} "
            f"(as {aggregate.alias!r})"
        )
        raise DefinitionError(msg)
    return given


class _Sketch(ValueFunction):
    """Common base of sketches: states are bytes, runs of one state pass through."""

    @property
    def state(self) -> pa.DataType:
        return pa.binary()

    def combine(self, states: pa.Array, bounds: Ints) -> pa.Array:
        payloads = states.to_pylist()
        return pa.array(
            [self._merged(payloads[first:last]) for first, last in pairwise(bounds.tolist())],
            pa.binary(),
        )

    def _merged(self, payloads: list[bytes]) -> bytes:
        some = [payload for payload in payloads if payload]
        if len(some) < 2:
            return some[0] if some else _NOTHING
        return self._merge(some)

    @abstractmethod
    def _merge(self, payloads: list[bytes]) -> bytes:
        """Merge serialized sketches, of which there are at least two."""


def _merged_into_first(kind: Any, payloads: list[bytes]) -> bytes:
    sketch, *others = map(kind.deserialize, payloads)
    for each in others:
        sketch.merge(each)
    return bytes(sketch.serialize())


@dataclass(frozen=True)
class ApproxCountDistinct(_Sketch):
    """The approximate number of distinct values."""

    lg_k: int

    @classmethod
    def of(cls, aggregate: Aggregate, types: Types) -> Self:
        """Take a type with an order; the parameter is lg_k."""
        kind = types[aggregate.columns[0]]
        check_ranked(aggregate, kind)
        return cls(kind, _parameter(aggregate, 0, LG_K, LEAST_LG_K, MOST_LG_K))

    @property
    def result(self) -> pa.DataType:
        return pa.int64()

    def lift(self, columns: Sequence[pa.Array], times: Ints, bounds: Ints) -> pa.Array:
        groups, values = present(columns[0], owners(bounds))
        found = tally(values, groups, len(bounds) - 1)
        data = _hashable(found.values)
        states = [self._sketch(data[a:b]) for a, b in pairwise(found.bounds.tolist())]
        return pa.array(states, pa.binary())

    def lower(self, states: pa.Array) -> pa.Array:
        """Return estimates, rounded.

        A sketch that saw all values itself estimates differently from a merged one; so it is merged
        with itself, and the answer depends on the values alone.
        """
        answers = []
        for payload in states.to_pylist():
            union = ds.hll_union(self.lg_k)
            for _ in range(2 if payload else 0):
                union.update(ds.hll_sketch.deserialize(payload))
            answers.append(round(union.get_estimate()))
        return pa.array(answers, pa.int64())

    def _sketch(self, data: list[Any]) -> bytes:
        if not data:
            return _NOTHING
        sketch = ds.hll_sketch(self.lg_k, ds.tgt_hll_type.HLL_4)
        for each in data:
            sketch.update(each)
        return bytes(sketch.serialize_compact())

    def _merge(self, payloads: list[bytes]) -> bytes:
        union = ds.hll_union(self.lg_k)
        for payload in payloads:
            union.update(ds.hll_sketch.deserialize(payload))
        return bytes(union.get_result(ds.tgt_hll_type.HLL_4).serialize_compact())


def _hashable(values: pa.Array) -> list[Any]:
    """Return values in a form that the library hashes: whole numbers, floats or text."""
    kind = values.type
    if (whole := whole_type(kind)) is not None:
        values = values.view(whole)
    elif pa.types.is_boolean(kind):
        values = values.cast(pa.int8())
    elif pa.types.is_decimal(kind):
        values = values.cast(pa.string())
    listed: list[Any] = values.to_pylist()
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return [each.hex() for each in listed]
    return [repr(each) for each in listed] if pa.types.is_struct(kind) else listed


@dataclass(frozen=True)
class ApproxPercentile(_Sketch):
    """Approximate percentiles: values at the given fractions."""

    fractions: tuple[float, ...]
    #: whether the answer is a list
    many: bool
    k: int

    @classmethod
    def of(cls, aggregate: Aggregate, types: Types) -> Self:
        """Take a number; the parameters are fractions and k."""
        kind = types[aggregate.columns[0]]
        check_number(aggregate, kind)
        fractions, many = fractions_of(aggregate)
        return cls(kind, fractions, many, _parameter(aggregate, 1, K, LEAST_K, MOST_K))

    @property
    def result(self) -> pa.DataType:
        return pa.list_(pa.float64()) if self.many else pa.float64()

    def lift(self, columns: Sequence[pa.Array], times: Ints, bounds: Ints) -> pa.Array:
        groups, values = present(columns[0], owners(bounds))
        floats = np.asarray(doubles(values))
        kept = ~np.isnan(floats)
        floats, groups = floats[kept], groups[kept]
        cuts = np.searchsorted(groups, np.arange(len(bounds))).tolist()
        states = []
        for first, last in pairwise(cuts):
            sketch = ds.kll_doubles_sketch(self.k)
            sketch.update(floats[first:last])
            states.append(bytes(sketch.serialize()) if first < last else _NOTHING)
        return pa.array(states, pa.binary())

    def lower(self, states: pa.Array) -> pa.Array:
        answers = np.zeros((len(states), len(self.fractions)))
        empty = np.zeros(len(states), dtype=np.bool_)
        for place, payload in enumerate(states.to_pylist()):
            if payload:
                sketch = ds.kll_doubles_sketch.deserialize(payload)
                answers[place] = sketch.get_quantiles(list(self.fractions), inclusive=True)
            else:
                empty[place] = True
        return listed(answers, empty, many=self.many)

    def _merge(self, payloads: list[bytes]) -> bytes:
        return _merged_into_first(ds.kll_doubles_sketch, payloads)


@dataclass(frozen=True)
class ApproxTopK(_Sketch):
    """The most frequent values with their approximate counts, most frequent first."""

    items: int
    #: logarithm of the size of the sketch's table, which can be three quarters full
    lg_size: int

    @classmethod
    def of(cls, aggregate: Aggregate, types: Types) -> Self:
        """Take a type that can be written as text; the parameters are k and the items tracked."""
        kind = types[aggregate.columns[0]]
        check_ranked(aggregate, kind)
        if pa.types.is_binary(kind) or pa.types.is_struct(kind):
            msg = (
                f"{aggregate.function} of a {kind} is not supported (as {aggregate.alias!r}): use "
                "a number, text, date, timestamp or boolean"
            )
            raise DefinitionError(msg)
        items = _parameter(aggregate, 0, ITEMS, 1, 100_000)
        tracked = _parameter(aggregate, 1, ITEMS_TRACKED, items, 1_000_000)
        return cls(kind, items, max(3, (4 * tracked // 3).bit_length()))

    @property
    def result(self) -> pa.DataType:
        """Return Spark's type: a list of items with counts."""
        return pa.list_(pa.struct([("item", self.input), ("count", pa.int64())]))

    def lift(self, columns: Sequence[pa.Array], times: Ints, bounds: Ints) -> pa.Array:
        groups, values = present(columns[0], owners(bounds))
        found = tally(plain_floats(values), groups, len(bounds) - 1)
        texts, counts = self._as_text(found.values).to_pylist(), found.counts.tolist()
        states = []
        for first, last in pairwise(found.bounds.tolist()):
            sketch = ds.frequent_strings_sketch(self.lg_size)
            for text, count in zip(texts[first:last], counts[first:last], strict=True):
                sketch.update(text, count)
            states.append(bytes(sketch.serialize()) if first < last else _NOTHING)
        return pa.array(states, pa.binary())

    def lower(self, states: pa.Array) -> pa.Array:
        """Return the items with the greatest estimates, equal ones in the order of their text."""
        bounds, texts, counts = [0], [], []
        wanted = ds.frequent_items_error_type.NO_FALSE_NEGATIVES
        for payload in states.to_pylist():
            if payload:
                sketch = ds.frequent_strings_sketch.deserialize(payload)
                found = sketch.get_frequent_items(wanted)
                found.sort(key=lambda item: (-item[1], item[0]))
                texts += [item[0] for item in found[: self.items]]
                counts += [item[1] for item in found[: self.items]]
            bounds.append(len(texts))
        pairs = pa.StructArray.from_arrays(
            [self._from_text(pa.array(texts, pa.string())), pa.array(counts, pa.int64())],
            fields=list(self.result.value_type),
        )
        return pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), pairs, type=self.result)

    def _merge(self, payloads: list[bytes]) -> bytes:
        return _merged_into_first(ds.frequent_strings_sketch, payloads)

    def _as_text(self, values: pa.Array) -> pa.Array:
        whole = whole_type(self.input)
        return (values if whole is None else values.view(whole)).cast(pa.string())

    def _from_text(self, texts: pa.Array) -> pa.Array:
        whole = whole_type(self.input)
        return texts.cast(self.input) if whole is None else texts.cast(whole).view(self.input)
