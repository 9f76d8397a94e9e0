"""Partial aggregates as columns that people can read and edit, and back.

Idea: the state of windows over some events is a row of fields, each of one to four words. A field
is shown as the number it represents, or as its words if it contains an order.

Invariant: fields that are shown and converted back are the same fields, except for the low word of
a float sum, which is below its last bit (`test_parity_fields_are_shown_and_taken_back`); in rows
that were not edited that word is preserved, too (`test_rows_that_nobody_edited_make_no_version`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints, Table
from icestream.core.errors import InputError
from icestream.kernels import field_words
from icestream.operators.aggregates.decimals import decimals_of_words
from icestream.operators.aggregates.word_values import decode_ordered
from icestream.operators.folding.columns import InputColumn
from icestream.operators.folding.fields import ENTRY_FIELDS, Field, Layout
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
        """Return the columns."""
        return [
            pa.field(self._name(each), self._type(each), nullable=each.op in _EXTREMES)
            for each in self.layout.fields
        ]

    def shown(self, entries: Table) -> list[pa.Array]:
        """Return the columns of entries."""
        return [self._shown(each, entries) for each in self.layout.fields]

    def taken(self, rows: pa.RecordBatch) -> Table:
        """Return the fields of rows as entries, without ids; InputError if one has no events."""
        out = np.zeros((rows.num_rows, self.layout.entry_width), dtype=np.int64)
        for each, place in zip(self.layout.fields, self.layout.places.tolist(), strict=True):
            count = field_words.WORDS[each.op]
            out[:, place : place + count] = self._words(each, rows.column(self._name(each)))
        if (out[:, self.layout.places[0]] < 1).any():
            msg = "a row has no events: delete the row to remove the group"
            raise InputError(msg)
        return out

    def keep_unedited(self, entries: Table, known: Table, places: Ints) -> None:
        """Restore the stored words where an entry shows the same; place -1 means unknown."""
        edited = np.flatnonzero(places >= 0)
        kept = known[places[edited]]
        for field, first in zip(self.layout.fields, self.layout.places.tolist(), strict=True):
            shown = self._words(field, self._shown(field, kept))
            own = slice(first, first + shown.shape[1])
            same = (shown == entries[edited, own]).all(axis=1)
            entries[edited[same], own] = kept[same, own]

    def _name(self, field: Field) -> str:
        return f"__{field.kind}({', '.join(self.named[each] for each in field.columns)})"

    def _type(self, field: Field) -> pa.DataType:
        if field.op == field_words.ADD_I64:
            return pa.int64()
        if field.op == field_words.ADD_I128:
            kind = self.types[str(field.column)]
            scaled = field.kind == "sum_i128" and pa.types.is_decimal(kind)
            return pa.decimal128(_DIGITS, kind.scale if scaled else 0)
        if field.op == field_words.ADD_DD:
            return pa.float64()
        if field.op in _EXTREMES:
            return self.types[str(field.column)]
        return pa.list_(pa.int64())

    def _shown(self, field: Field, entries: Table) -> pa.Array:
        place, count = self.layout.place(field) + ENTRY_FIELDS, field_words.WORDS[field.op]
        own = np.ascontiguousarray(entries[:, place : place + count])
        if field.op == field_words.ADD_I64:
            return pa.array(own[:, 0])
        if field.op == field_words.ADD_I128:
            return decimals_of_words(own, np.ones(len(own), dtype=np.bool_), self._type(field))
        if field.op == field_words.ADD_DD:
            return pa.array(own.view(np.float64)[:, 0])
        if field.op in _EXTREMES:
            empty = own[:, 0] == field_words.IDENTITY[field.op]
            return decode_ordered(own[:, 0], self._type(field), empty)
        offsets = pa.array(np.arange(len(own) + 1, dtype=np.int32) * count)
        return pa.ListArray.from_arrays(offsets, pa.array(own.reshape(-1)))

    def _words(self, field: Field, shown: pa.Array) -> Table:
        count = field_words.WORDS[field.op]
        if field.op == field_words.ADD_DD:
            pair = np.zeros((len(shown), 2))
            pair[:, 0] = shown.to_numpy(zero_copy_only=False)
            return pair.view(np.int64)
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
