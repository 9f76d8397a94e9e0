"""Values of many groups in flat arrays with bounds, sorted and counted without loops.

Idea: the values of one group are a run of a flat array; `bounds` has the starts and ends of runs.
Values of any type are replaced by their rank among the distinct ones, so one sort of (group, rank)
orders, counts or removes duplicates for all groups at once.

Invariants:
1. Ranks order values as Spark does: NaN is the greatest float and equals itself, -0.0 equals 0.0,
   strings by their bytes (`test_oracle_ranks_order_values_as_spark_does`).
2. Tallies equal those of a dict of counters (`test_oracle_tallies_equal_counters`).

Cost: O(n log n) comparisons for n values; values other than numbers, dates and times are hashed
first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icestream.core.arrays import Ints
from icestream.kernels.tallies import tally_runs


@dataclass(frozen=True, slots=True)
class Tally:
    """Distinct values of each group in ascending order, with their counts."""

    bounds: Ints
    values: pa.Array
    counts: Ints


def owners(bounds: Ints) -> Ints:
    """Return the run, of ragged values, of each position."""
    return np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))


def bounds_of(groups: Ints, count: int) -> Ints:
    """Return the bounds of `count` ragged groups, given the ascending group of each position."""
    return np.searchsorted(groups, np.arange(count + 1)).astype(np.int64)


def lengths(lists: pa.Array) -> Ints:
    """Return the length of each ragged list; none is null."""
    return np.diff(np.asarray(lists.offsets)).astype(np.int64)


def starts_of(lists: pa.Array) -> Ints:
    """Return where the values of each ragged list begin among all, and where the last one ends."""
    offsets: Ints = np.asarray(lists.offsets).astype(np.int64)
    return offsets - offsets[:1]


def lists_of(bounds: Ints, values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return ragged lists of a list type, sliced from flat values."""
    return pa.ListArray.from_arrays(pa.array(bounds.astype(np.int32)), values, type=kind)


def spread(lists: pa.Array, bounds: Ints) -> tuple[Ints, pa.Array]:
    """Return the flat values of all ragged lists and, for each value, the run of its list."""
    return np.repeat(owners(bounds), lengths(lists)), lists.flatten()


def present(values: pa.Array, groups: Ints) -> tuple[Ints, pa.Array]:
    """Drop nulls of ragged values, and their groups."""
    if values.null_count == 0:
        return groups, values
    valid = values.is_valid()
    return groups[np.asarray(valid.to_numpy(zero_copy_only=False))], values.filter(valid)


def plain_floats(values: pa.Array) -> pa.Array:
    """Make floats among ragged values that Spark treats as equal equal to the bit."""
    if not pa.types.is_floating(values.type):
        return values
    floats = np.asarray(values.to_numpy(zero_copy_only=False))
    plain = floats + floats.dtype.type(0)
    plain[np.isnan(plain)] = np.nan
    missing = values.is_null().to_numpy(zero_copy_only=False) if values.null_count else None
    return pa.array(plain, values.type, mask=missing)


def rank(values: pa.Array) -> tuple[Ints, pa.Array]:
    """Return the rank of each ragged value among the distinct ones, and these in ascending order.

    Values must not be null, but fields of structs may be: a null is the least.
    """
    if pa.types.is_struct(values.type):
        return _rank_structs(values)
    encoded = plain_floats(values).dictionary_encode()
    order = np.asarray(pc.sort_indices(encoded.dictionary)).astype(np.int64)
    places = np.empty(len(order), dtype=np.int64)
    places[order] = np.arange(len(order))
    return places[np.asarray(encoded.indices)], encoded.dictionary.take(pa.array(order))


def _rank_structs(values: pa.Array) -> tuple[Ints, pa.Array]:
    columns = [plain_floats(column) for column in values.flatten()]
    codes = np.zeros(len(values), dtype=np.int64)
    for column in columns:
        valid = np.asarray(column.is_valid().to_numpy(zero_copy_only=False))
        ranks, distinct = rank(column.drop_null())
        inner = np.zeros(len(values), dtype=np.int64)
        inner[valid] = ranks + 1
        _, codes = np.unique(codes * (len(distinct) + 1) + inner, return_inverse=True)
    _, first, codes = np.unique(codes, return_index=True, return_inverse=True)
    plain = pa.StructArray.from_arrays(columns, fields=list(values.type))
    return codes.astype(np.int64), plain.take(pa.array(first))


def tally(values: pa.Array, groups: Ints, count: int, weights: Ints | None = None) -> Tally:
    """Count the distinct ragged values of each of `count` groups, each once without weights."""
    keys = _keys(values)
    if keys is not None:
        return _tally_of_keys(keys, groups, count, weights, values.type)
    ranks, distinct = rank(values)
    keys = groups * max(1, len(distinct)) + ranks
    order = np.argsort(keys, kind="stable")
    found, starts = np.unique(keys[order], return_index=True)
    owner, chosen = np.divmod(found, max(1, len(distinct)))
    kept = distinct.take(pa.array(chosen))
    return Tally(bounds_of(owner, count), kept, _counts(order, starts, weights))


def _counts(order: Ints, starts: Ints, weights: Ints | None) -> Ints:
    """Return the number or the weight of the positions in each run of an order."""
    if weights is None or len(starts) == 0:
        return np.diff(np.append(starts, len(order))).astype(np.int64)
    return np.add.reduceat(weights[order], starts).astype(np.int64)


def _tally_of_keys(
    keys: Ints, groups: Ints, count: int, weights: Ints | None, kind: pa.DataType
) -> Tally:
    """Count values that are whole numbers of the same order; groups are mostly ascending."""
    weights = np.ones(len(keys), dtype=np.int64) if weights is None else weights.astype(np.int64)
    if (groups[1:] < groups[:-1]).any():
        order = np.argsort(groups, kind="stable")
        keys, groups, weights = keys[order], groups[order], weights[order]
    bounds = bounds_of(groups, count)
    out, counts = np.empty((2, len(keys)), dtype=np.int64)
    spare = np.empty((3, int(np.diff(bounds).max(initial=0))), dtype=np.int64)
    found = np.empty(count + 1, dtype=np.int64)
    total = tally_runs(keys, weights, bounds, out, counts, found, spare[0], spare[1], spare[2])
    return Tally(found, _from_keys(out[:total], kind), counts[:total])


def _keys(values: pa.Array) -> Ints | None:
    """Return numbers, dates and times as whole numbers of the same order; None for other types."""
    kind = values.type
    if pa.types.is_floating(kind):
        floats = np.asarray(plain_floats(values))
        bits = floats.view(f"i{floats.itemsize}").astype(np.int64)
        return np.where(bits < 0, bits ^ _magnitude(floats.dtype), bits)
    whole = kind if pa.types.is_integer(kind) else whole_type(kind)
    return None if whole is None else np.asarray(values.view(whole)).astype(np.int64)


def _from_keys(keys: Ints, kind: pa.DataType) -> pa.Array:
    """Return the values of keys."""
    if pa.types.is_floating(kind):
        floats = np.dtype(kind.to_pandas_dtype())
        bits = np.where(keys < 0, keys ^ _magnitude(floats), keys)
        return pa.array(bits.astype(f"i{floats.itemsize}").view(floats), kind)
    whole = whole_type(kind)
    return pa.array(keys, kind) if whole is None else pa.array(keys, whole).view(kind)


def _magnitude(floats: np.dtype[Any]) -> int:
    """Return the bits of a float that are not its sign: they descend where it is negative."""
    return (1 << (8 * floats.itemsize - 1)) - 1


def whole_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the integer type of the width of ragged values that are dates or times, else None."""
    if not pa.types.is_temporal(kind) or pa.types.is_interval(kind):
        return None
    return pa.int32() if kind.bit_width == 32 else pa.int64()


def chosen_of(groups: Ints, keys: Ints, count: int) -> pa.Array:
    """Return the position of the least key of each ragged group, the first of equal ones."""
    order = np.lexsort((keys, groups))
    owner, first = np.unique(groups[order], return_index=True)
    places = np.zeros(count, dtype=np.int64)
    missing = np.ones(count, dtype=np.bool_)
    places[owner] = order[first]
    missing[owner] = False
    return pa.array(places, mask=missing)
