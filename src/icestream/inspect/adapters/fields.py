"""Partial aggregates as columns that people can read and edit, and back.

Idea: the state of windows over some events is a row of fields, each of one to four words. A field
is shown as the number it represents, or as its words if it contains an order.

Invariant: fields that are shown and converted back are the same fields, except for the bits of a
sum of doubles below those of a double (`test_parity_fields_are_shown_and_taken_back`); in rows
that were not edited those are preserved, too (`test_rows_that_nobody_edited_make_no_version`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints, Table
from icestream.core.errors import InputError
from icestream.kernels import double_sums, field_words
from icestream.kernels.fold import ALL_VALID
from icestream.operators.aggregates.choices import decode_ordered
from icestream.operators.aggregates.decimals import decimals_of_words
from icestream.operators.aggregates.protocol import MergedFields
from icestream.operators.folding.columns import InputColumn
from icestream.operators.folding.exact_rows import ExactRows
from icestream.operators.folding.fields import (
    ENTRY_FIELDS,
    ROOM_BITS,
    Field,
    Layout,
    SumExtent,
    moved_sums,
)
from icestream.plan.nodes.queries import Plan

_DIGITS = 38
_EXTREMES = (field_words.MIN, field_words.MAX)


@dataclass(frozen=True)
class FieldColumns:
    """The fields of a layout as columns; an entry consists of an id and its fields."""

    layout: Layout
    #: types of the columns that fields are computed from, and the user's names for them
    types: Mapping[str, pa.DataType]
    named: Mapping[str, str]

    @classmethod
    def of(cls, layout: Layout, types: Mapping[str, pa.DataType], plan: Plan) -> FieldColumns:
        """Name fields by the names that a plan has for its inputs."""
        return cls(layout, types, dict(zip(plan.inputs.names, plan.expressions, strict=True)))

    @property
    def schema(self) -> list[pa.Field]:
        return [
            pa.field(self._name(each), self._type(each), nullable=each.op in _EXTREMES)
            for each in self.layout.fields
        ]

    def shown(self, entries: ExactRows) -> list[pa.Array]:
        return [self._shown(each, entries) for each in self.layout.fields]

    def taken(self, rows: pa.RecordBatch) -> ExactRows:
        """Return the fields of rows as entries, without ids; InputError if one has no events."""
        sums = {each: InputColumn(rows.column(self._name(each))) for each in self.layout.sums}
        extents = [
            SumExtent(*double_sums.sum_extent(each.floats.view(np.int64), ALL_VALID))
            for each in sums.values()
        ]
        layout = self.layout.widened(each.with_room((1 << ROOM_BITS) - 1) for each in extents)
        out = np.zeros((rows.num_rows, layout.entry_width), dtype=np.int64)
        for each, place in zip(layout.fixed, layout.places.tolist(), strict=False):
            count = field_words.WORDS[each.op]
            out[:, place : place + count] = self._words(each, rows.column(self._name(each)))
        places = moved_sums(layout.at.sums_at, ENTRY_FIELDS)
        for of, column in zip(places, sums.values(), strict=True):
            bits = column.floats.view(np.int64)
            double_sums.add_doubles(out, of, np.arange(len(bits)), bits, ALL_VALID)
        if (out[:, ENTRY_FIELDS] < 1).any():
            msg = "a row has no events: delete the row to remove the group"
            raise InputError(msg)
        return ExactRows(layout, out)

    def with_unedited(self, entries: ExactRows, known: ExactRows, places: Ints) -> ExactRows:
        """Restore the stored words where an entry shows the same; place -1 means unknown."""
        edited = np.flatnonzero(places >= 0)
        layout = entries.layout.widened(known.layout.bounds)
        out, kept = entries.reshaped(layout).copied(), known.reshaped(layout)[places[edited]]
        sums_at = moved_sums(layout.at.sums_at, ENTRY_FIELDS)[:, double_sums.PLACE].tolist()
        firsts = [*layout.places[: len(layout.fixed)].tolist(), *sums_at]
        ends = [*firsts[1:], layout.entry_width]
        for field, first, end in zip((*layout.fixed, *layout.sums), firsts, ends, strict=True):
            shown, mine = (self._comparable(field, each) for each in (kept, out[edited]))
            same = (shown == mine).all(axis=1)
            out.table[edited[same], first:end] = kept.table[same, first:end]
        return out

    def _comparable(self, field: Field, entries: ExactRows) -> Table:
        """Return words that are equal where entries show the same."""
        shown = self._shown(field, entries)
        if field.adds_doubles:
            return np.asarray(shown.to_numpy()).view(np.int64).reshape(-1, 1)
        return self._words(field, shown)

    def _name(self, field: Field) -> str:
        return f"__{field.kind}({', '.join(self.named[each] for each in field.columns)})"

    def _type(self, field: Field) -> pa.DataType:
        if field.op == field_words.ADD_I64:
            return pa.int64()
        if field.op == field_words.ADD_I128:
            kind = self.types[str(field.column)]
            scaled = field.kind == "sum_i128" and pa.types.is_decimal(kind)
            return pa.decimal128(_DIGITS, kind.scale if scaled else 0)
        if field.adds_doubles:
            return pa.float64()
        if field.op in _EXTREMES:
            return self.types[str(field.column)]
        return pa.list_(pa.int64())

    def _shown(self, field: Field, entries: ExactRows) -> pa.Array:
        if field.adds_doubles:
            merged = MergedFields(entries.table[:, ENTRY_FIELDS:], entries.layout)
            return pa.array(merged.sums(field))
        place, count = self.layout.place(field) + ENTRY_FIELDS, field_words.WORDS[field.op]
        own = np.ascontiguousarray(entries.table[:, place : place + count])
        if field.op == field_words.ADD_I64:
            return pa.array(own[:, 0])
        if field.op == field_words.ADD_I128:
            return decimals_of_words(own, np.ones(len(own), dtype=np.bool_), self._type(field))
        if field.op in _EXTREMES:
            empty = own[:, 0] == field_words.IDENTITY[field.op]
            return decode_ordered(own[:, 0], self._type(field), empty)
        offsets = pa.array(np.arange(len(own) + 1, dtype=np.int32) * count)
        return pa.ListArray.from_arrays(offsets, pa.array(own.reshape(-1)))

    def _words(self, field: Field, shown: pa.Array) -> Table:
        count = field_words.WORDS[field.op]
        column = InputColumn(shown)
        if field.op == field_words.ADD_I128:
            return np.stack(column.pair, axis=1)
        if field.op in _EXTREMES:
            there = np.asarray(shown.is_valid().to_numpy(zero_copy_only=False))
            ordered = np.where(there, column.ordered, field_words.IDENTITY[field.op])
            return ordered.reshape(-1, 1)
        if field.op == field_words.ADD_I64:
            return column.integers.reshape(-1, 1)
        lengths = np.asarray(shown.value_lengths().to_numpy())
        if (lengths != count).any():
            msg = f"column {self._name(field)!r} has {count} words in each row; keep them"
            raise InputError(msg)
        return np.asarray(shown.flatten().to_numpy()).reshape(len(shown), count)
