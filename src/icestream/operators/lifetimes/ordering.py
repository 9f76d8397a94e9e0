"""The order of a top-k: which rows are better, by columns and directions, with stable tie-breaks.

Idea: two orders. The *rank* of a row is one word by which state can be read, as fine as a word can
be: better rows never have a smaller rank. The *place* among the rows at hand decides the rest, by
the other columns and then the identity of the payload, so that any two kinds of rows differ.

Invariants:
1. Ranks and places are those of Spark's ORDER BY: nulls last in descending order, first
   in ascending order, NaN greatest (`test_oracle_places_are_those_of_a_sort`).
2. A better place never has a smaller rank (the same test).

Limits: numbers, dates, timestamps, booleans, decimals up to 18 digits, and text by its bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from icestream.core.arrays import Ints
from icestream.core.errors import DefinitionError
from icestream.operators.aggregates.protocol import is_word
from icestream.operators.folding.columns import InputColumn
from icestream.operators.lifetimes.changes import (
    DIFF,
    LE,
    RE,
    column_of,
    identities,
    identities_of,
    payload_of,
)
from icestream.state.identities import numbered

_WORST = np.int64(-(2**63))
_BEST = np.int64(2**63 - 1)
#: events of a group of which the best are selected before all of them are compared
_LARGE = 256


@dataclass(frozen=True, slots=True)
class Order:
    """One column to order by."""

    column: str
    #: whether the greatest values are the best
    descending: bool = True


class Ordering:
    """Which rows of a payload are better than others."""

    def __init__(self, payload: pa.Schema, by: Sequence[Order]) -> None:
        """Order by columns, most significant first; DefinitionError for types without an order."""
        if not by:
            msg = "a top-k needs a column to order by: name at least one"
            raise DefinitionError(msg)
        for each in by:
            if payload.get_field_index(each.column) < 0:
                msg = f"cannot order by {each.column!r}: choose among {payload.names}"
                raise DefinitionError(msg)
            kind = payload.field(each.column).type
            if not (is_word(kind) or _is_text(kind)):
                msg = (
                    f"cannot order by {each.column!r}, a {kind}: use a number, text, a date, a "
                    "timestamp, a boolean or a decimal up to 18 digits"
                )
                raise DefinitionError(msg)
        self._by = tuple(by)

    def ranks(self, payload: pa.RecordBatch) -> Ints:
        """Return the rank of each row, greater is better."""
        first = self._by[0]
        column = payload.column(first.column)
        words = _prefixes(column) if _is_text(column.type) else InputColumn(column).ranked
        return _directed(words, column, descending=first.descending)

    def places(self, payload: pa.RecordBatch) -> Ints:
        """Return the places of rows with different payloads; the best is 0."""
        id_high, id_low = identities(payload)
        keys: list[Ints] = []
        for each in self._by:
            column = payload.column(each.column)
            words = _text_ranks(column) if _is_text(column.type) else InputColumn(column).ranked
            keys += [_nulls(column, descending=each.descending), words]
            if each.descending:
                keys[-1] = ~words
        order = np.lexsort((id_low, id_high, *keys[::-1]))
        places = np.empty(len(order), dtype=np.int64)
        places[order] = np.arange(len(order))
        return places

    def selected(self, changes: pa.RecordBatch, k: int) -> pa.RecordBatch:
        """Return the events that rank at least as high as the k-th of the same group."""
        if not changes.num_rows:
            return changes
        ranks = self.ranks(payload_of(changes))
        numbers, heads = numbered(*identities_of(changes))
        if k == 1:
            least = np.full(len(heads), np.iinfo(np.int64).min)
            np.maximum.at(least, numbers, ranks)
        else:
            order = np.lexsort((~ranks, numbers))
            counts = np.bincount(numbers)
            last = np.cumsum(counts) - np.maximum(counts - k, 0) - 1
            least = ranks[order[last]]
        chosen = ranks >= least[numbers]
        return changes if chosen.all() else changes.filter(pa.array(chosen))

    def selected_at_once(self, changes: pa.RecordBatch, k: int) -> pa.RecordBatch:
        """Return all changes that may be among the `k` best, given all changes of their groups.

        Only of large groups whose events are added and live at the same time some are left out.
        """
        if changes.num_rows < _LARGE:
            return changes
        le, re, diff = (column_of(changes, name) for name in (LE, RE, DIFF))
        id_high, id_low = identities_of(changes)
        goes_on = (id_high[1:] == id_high[:-1]) & (id_low[1:] == id_low[:-1])
        together = (id_high[1:] > id_high[:-1]) | (
            goes_on & (le[1:] == le[:-1]) & (re[1:] == re[:-1])
        )
        if not together.all() or (diff <= 0).any():
            return changes
        bounds = np.concatenate([[0], np.flatnonzero(~goes_on) + 1, [len(id_high)]])
        large = np.flatnonzero(np.diff(bounds) >= max(_LARGE, 2 * k))
        if not len(large):
            return changes
        ranks, chosen = self.ranks(payload_of(changes)), np.ones(len(id_high), dtype=np.bool_)
        for begin, end in zip(bounds[large].tolist(), bounds[large + 1].tolist(), strict=True):
            mine = ranks[begin:end]
            chosen[begin:end] = mine >= np.partition(mine, len(mine) - k)[len(mine) - k]
        return changes.filter(pa.array(chosen))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_binary(kind))


def _directed(words: Ints, column: pa.Array, *, descending: bool) -> Ints:
    directed: Ints = words if descending else ~words
    if column.null_count:
        missing = column.is_null().to_numpy(zero_copy_only=False)
        directed = np.where(missing, _WORST if descending else _BEST, directed)
    return directed


def _nulls(column: pa.Array, *, descending: bool) -> Ints:
    """Return a sort key that places nulls first or last."""
    missing: Ints = column.is_null().to_numpy(zero_copy_only=False).astype(np.int64)
    return missing if descending else -missing


def _text_ranks(column: pa.Array) -> Ints:
    plain = pc.fill_null(column.cast(pa.binary()), b"")
    ranks = pc.rank(plain, sort_keys="ascending", tiebreaker="dense")
    return np.asarray(ranks.cast(pa.int64()).to_numpy())


def _prefixes(column: pa.Array) -> Ints:
    """Return the first eight bytes of each text as a number of the same order."""
    plain = pc.fill_null(column.cast(pa.binary()), b"")
    first = pc.binary_slice(plain, 0, 8)
    lengths = pc.binary_length(first).to_numpy()
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    joined = np.frombuffer(b"".join(first.to_pylist()), dtype=np.uint8)
    padded = np.zeros((len(column), 8), dtype=np.uint8)
    rows = np.repeat(np.arange(len(column)), lengths)
    padded[rows, np.arange(len(joined)) - offsets[rows]] = joined
    words = padded.view(">u8").reshape(-1).astype(np.uint64)
    return (words ^ np.uint64(2**63)).view(np.int64)
