"""Tables of states: the form of a slice, and how events become states and states answers.

Idea: a row is one group: its *entry* (identity and the words of all word aggregates), its key, and
a column of states for each object aggregate. Words are folded and merged by the kernels of the pane
operator, so a query may mix both kinds; sums of doubles are a column of bytes (`exact_rows`).

Invariants:
1. Lifting and combining give one row per target and group, sorted by (target, id_high, id_low)
   (`test_oracle_lifted_rows_are_sorted_and_one_per_group`).
2. Word aggregates answer as the pane operator does (`test_parity_words_beside_the_pane_operator`),
   also as object functions, for windows that only these can slide over
   (`test_oracle_every_aggregate_of_rows_within_a_range`).

Cost: one sort of the rows, plus the cost of each function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icestream.core.arrays import Ids, Ints, Table, slice_bounds
from icestream.kernels.field_words import combine_sorted
from icestream.operators.aggregates.aggregate import Aggregate, AggregateSpec
from icestream.operators.bad_rows import BadRows
from icestream.operators.folding.columns import InputColumn
from icestream.operators.folding.exact_rows import ExactRows, rows_with_sums, sums_column
from icestream.operators.folding.fields import ENTRY_FIELDS, Layout
from icestream.operators.folding.fold import ID_HIGH_COLUMN, ID_LOW_COLUMN, fold_fields, measured
from icestream.operators.object_aggregates.functions import failed_rows, function_of, is_object
from icestream.operators.object_aggregates.protocol import ObjectFunction, Types
from icestream.operators.object_aggregates.ragged import owners
from icestream.plan.windows.grid import Cumulative, Windows
from icestream.state.keys import KeyCodec

#: name of the time column of tuples
TIME = "time"


@dataclass(frozen=True)
class ObjectSpec(AggregateSpec):
    """What an object aggregate computes, with the types of keys and inputs."""

    windows: Windows | Cumulative


class States:
    """The states of one query."""

    def __init__(self, spec: ObjectSpec) -> None:
        types = spec.types
        self._spec = spec
        self._codec = KeyCodec(spec.keys)
        self._objects: list[tuple[Aggregate, ObjectFunction]] = [
            (each, function_of(each, types)) for each in spec.aggregates if is_object(each, types)
        ]
        #: rows on which functions of the user failed
        self.bad: list[BadRows] = []
        words = [each for each in spec.aggregates if not is_object(each, types)]
        #: the fields of all word aggregates
        self.layout = Layout.of(field for each in words for field in each.fields(types))
        self._inputs = sorted({name for each in words for name in each.columns})
        #: columns before those of keys
        self._words = 2 if self.layout.sums else 1
        #: columns of a slice
        self.schema = pa.schema(
            [
                pa.field("entry", pa.binary(8 * self.layout.entry_width)),
                *([pa.field("sums", pa.binary())] if self.layout.sums else []),
                *(pa.field(f"k{i}", key.type) for i, key in enumerate(spec.keys)),
                *(pa.field(f"s{i}", each.state) for i, (_, each) in enumerate(self._objects)),
            ]
        )

    def lift(self, tuples: pa.RecordBatch, panes: Ints) -> tuple[Ints, pa.RecordBatch]:
        """Return pane and state of each (pane, group) of events in arrival order."""
        id_high, id_low = (
            np.asarray(tuples.column(name)) for name in (ID_HIGH_COLUMN, ID_LOW_COLUMN)
        )
        times = np.asarray(tuples.column(TIME))
        order = np.lexsort((times, id_low, id_high, panes))
        bounds = slice_bounds(panes[order], id_high[order], id_low[order])
        places = pa.array(order)
        ordered = {
            name: tuples.column(name).take(places)
            for name in {name for each, _ in self._objects for name in each.columns}
        }
        states = [
            each.lift([ordered[name] for name in aggregate.columns], times[order], bounds)
            for aggregate, each in self._objects
        ]
        self._note_failures(lambda: tuples.take(places))
        firsts = order[bounds[:-1]]
        keys = self._codec.canonical(tuples.take(pa.array(firsts)))
        slots = np.empty_like(order)
        slots[order] = owners(bounds)
        entries = self._fold(tuples, slots, id_high[firsts], id_low[firsts])
        return panes[firsts], self.batch(entries, keys.columns, states)

    def folded(self, events: pa.RecordBatch, slots: Ints, count: int) -> pa.RecordBatch:
        """Return the states of `count` groups without keys or objects, of events in `slots`."""
        nobody = np.zeros(count, dtype=np.uint64)
        return self.batch(self._fold(events, slots, nobody, nobody), [], [])

    def empty(self, number: int, count: int) -> pa.Array:
        """Return states of an object aggregate that has seen no value."""
        aggregate, function = self._objects[number]
        nulls = [pa.nulls(count, self._spec.types[name]) for name in aggregate.columns]
        return function.lift(nulls, np.zeros(count, dtype=np.int64), np.arange(count + 1))

    def combine(self, targets: Ints, rows: pa.RecordBatch) -> tuple[Ints, pa.RecordBatch]:
        """Return target and state of each (target, group) of rows in arrival order."""
        exact = self.entries(rows)
        layout, entries = exact.layout, exact.table
        id_high, id_low = _ids(entries, 0), _ids(entries, 1)
        order = np.lexsort((id_low, id_high, targets))
        bounds = slice_bounds(targets[order], id_high[order], id_low[order])
        firsts = order[bounds[:-1]]
        if len(firsts) == len(order):
            return targets[order], rows.take(pa.array(order))
        merged = np.empty((len(firsts), entries.shape[1]), dtype=np.int64)
        kept = np.empty(len(firsts), dtype=np.int64)
        combine_sorted(order, targets, entries, layout.ops, layout.places, merged, kept)
        keys = len(self._spec.keys)
        places = pa.array(order)
        states = [
            each.combine(rows.column(self._words + keys + i).take(places), bounds)
            for i, (_, each) in enumerate(self._objects)
        ]
        self._note_failures(lambda: self._named_keys(rows).take(places))
        chosen = pa.array(firsts)
        columns = [rows.column(self._words + i).take(chosen) for i in range(keys)]
        return kept, self.batch(ExactRows(layout, merged), columns, states)

    def lower(self, rows: pa.RecordBatch) -> list[pa.Array]:
        """Return the columns of the answers, in the order of the aggregates."""
        exact = self.entries(rows)
        fields = np.ascontiguousarray(exact.table[:, ENTRY_FIELDS:])
        first = self._words + len(self._spec.keys)
        objects = {
            aggregate.alias: each.lower(rows.column(first + i))
            for i, (aggregate, each) in enumerate(self._objects)
        }
        self._note_failures(lambda: self._named_keys(rows))
        return [
            objects[each.alias]
            if each.alias in objects
            else each.lower(fields, exact.layout, self._spec.types)
            for each in self._spec.aggregates
        ]

    def take_bad(self) -> list[BadRows]:
        """Return the rows on which functions of the user failed since the last call."""
        found, self.bad = self.bad, []
        return found

    def _note_failures(self, rows: Callable[[], pa.RecordBatch]) -> None:
        for aggregate, each in self._objects:
            if getattr(each, "failures", None):
                self.bad += failed_rows(aggregate, each, rows())

    def _named_keys(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        names = self._spec.keys.names
        if not names:
            return pa.RecordBatch.from_arrays([pa.nulls(rows.num_rows)], names=["group"])
        return pa.RecordBatch.from_arrays(self.keys(rows), names=names)

    def keys(self, rows: pa.RecordBatch) -> list[pa.Array]:
        return [rows.column(self._words + i) for i in range(len(self._spec.keys))]

    @property
    def objects(self) -> list[tuple[Aggregate, pa.DataType]]:
        return [(aggregate, each.state) for aggregate, each in self._objects]

    @property
    def accumulates(self) -> bool:
        """Return whether the state of a group grows with the events of its window."""
        return any(each.accumulates for _, each in self._objects)

    def values(self, rows: pa.RecordBatch) -> int:
        """Return how many values the states of rows have."""
        lists = [each for each in self.of_objects(rows) if pa.types.is_list(each.type)]
        return int(rows.num_rows + sum(len(each.flatten()) for each in lists))

    def of_objects(self, rows: pa.RecordBatch) -> list[pa.Array]:
        """Return the columns with the states of object aggregates."""
        first = self._words + len(self._spec.keys)
        return [rows.column(place) for place in range(first, rows.num_columns)]

    def entries(self, rows: pa.RecordBatch) -> ExactRows:
        """Return identities and words, one row per group, with room to add all of them up."""
        words = self._entry_words(rows)
        if not self.layout.sums:
            return ExactRows(self.layout, words)
        return rows_with_sums(words, rows.column(1), self.layout, len(words))

    def _entry_words(self, rows: pa.RecordBatch) -> Table:
        """Return identities and the words of all fields but sums of doubles."""
        width = self.layout.entry_width
        entry = rows.column(0)
        data = np.frombuffer(entry.buffers()[1], dtype=np.int64)
        return data[entry.offset * width : (entry.offset + len(entry)) * width].reshape(-1, width)

    def identities(self, rows: pa.RecordBatch) -> tuple[Ids, Ids]:
        words = self._entry_words(rows)
        return _ids(words, 0), _ids(words, 1)

    def parts(self, rows: pa.RecordBatch, size: int) -> Iterator[pa.RecordBatch]:
        """Split rows into parts of about `size` bytes, at least one row each."""
        if rows.num_rows == 0:
            return
        if rows.num_rows == 1 or rows.nbytes <= size:
            yield rows
            return
        half = rows.num_rows // 2
        yield from self.parts(rows.slice(0, half), size)
        yield from self.parts(rows.slice(half), size)

    def ends(self, rows: pa.RecordBatch) -> tuple[int, int]:
        """Return the least and greatest id_high of sorted rows."""
        first, last = self._entry_words(rows)[[0, -1], 0].view(np.uint64).tolist()
        return first, last

    def inside(self, rows: pa.RecordBatch, low: int, high: int) -> pa.RecordBatch:
        """Return the rows with `low <= id_high < high`, given sorted rows."""
        if rows.num_rows == 0:
            return rows
        id_high = _ids(self._entry_words(rows), 0)
        first = int(np.searchsorted(id_high, np.uint64(low), side="left"))
        last = int(np.searchsorted(id_high, np.uint64(high - 1), side="right"))
        some = rows.slice(first, last - first)
        # a slice keeps all rows in memory
        if 2 * some.nbytes >= rows.get_total_buffer_size():
            return some
        return self.read(some.serialize(), trusted=True)

    def middle(self, parts: Iterable[pa.RecordBatch]) -> tuple[int, int]:
        """Return the least id_high, and where to cut, so that half of the bytes are before it.

        If the least id_high has more than half, the cut is after it.
        """
        every = list(parts)
        id_high = np.concatenate([self.identities(each)[0] for each in every])
        sizes = np.concatenate([_sizes(each) for each in every])
        order = np.argsort(id_high, kind="stable")
        id_high, sums = id_high[order], np.cumsum(sizes[order])
        least, cut = int(id_high[0]), int(id_high[np.searchsorted(sums, sums[-1] / 2)])
        return least, cut if cut > least else least + 1

    def write(self, rows: pa.RecordBatch) -> pa.Buffer:
        return rows.serialize()

    def read(self, payload: bytes | pa.Buffer, *, trusted: bool = False) -> pa.RecordBatch:
        """Decode the rows of a payload, and check them unless they were written here."""
        batch = pa.ipc.read_record_batch(pa.py_buffer(payload), self.schema)
        if not trusted:
            batch.validate(full=True)
        return batch

    def _fold(self, tuples: pa.RecordBatch, slots: Ints, id_high: Ids, id_low: Ids) -> ExactRows:
        """Fold the words of events into the rows `slots` of groups with the given identities."""
        columns = {name: InputColumn(tuples.column(name)) for name in self._inputs}
        layout = measured(self.layout, columns, 0, len(slots))
        entries = np.tile(layout.entry_identity, (len(id_high), 1))
        entries[:, 0], entries[:, 1] = id_high.view(np.int64), id_low.view(np.int64)
        fold_fields(layout, entries, ENTRY_FIELDS, slots, columns)
        return ExactRows(layout, entries)

    def batch(
        self, entries: ExactRows, keys: list[pa.Array], states: list[pa.Array]
    ) -> pa.RecordBatch:
        """Return rows of the schema, given identities and words, keys and states of objects."""
        flat = pa.py_buffer(np.ascontiguousarray(entries.table[:, : self.layout.entry_width]))
        entry = pa.Array.from_buffers(self.schema.field(0).type, len(entries), [None, flat])
        sums = [sums_column(entries)] if self.layout.sums else []
        return pa.RecordBatch.from_arrays([entry, *sums, *keys, *states], schema=self.schema)


def _sizes(rows: pa.RecordBatch) -> Ints:
    """Return about how many bytes each row has."""
    sizes = np.full(rows.num_rows, 8 * rows.num_columns, dtype=np.int64)
    for column in rows.columns:
        if pa.types.is_list(column.type):
            sizes += 8 * pc.list_value_length(column).fill_null(0).to_numpy()
        elif pa.types.is_binary(column.type) or pa.types.is_string(column.type):
            sizes += pc.binary_length(column).fill_null(0).to_numpy()
    return sizes


def _ids(entries: Table, column: int) -> Ids:
    return np.ascontiguousarray(entries[:, column]).view(np.uint64)


_ANY_WINDOWS = Windows(1, 1)


def any_function_of(aggregate: Aggregate, types: Types) -> ObjectFunction:
    """Return an object function for any aggregate; DefinitionError if the types do not fit."""
    if is_object(aggregate, types):
        return function_of(aggregate, types)
    return WordStates(aggregate, pa.schema([(each, types[each]) for each in aggregate.columns]))


@dataclass(frozen=True)
class WordStates(ObjectFunction):
    """An aggregate whose state has a fixed number of words."""

    aggregate: Aggregate
    inputs: pa.Schema

    @cached_property
    def _states(self) -> States:
        return States(ObjectSpec((self.aggregate,), pa.schema([]), self.inputs, _ANY_WINDOWS))

    @property
    def state(self) -> pa.DataType:
        return pa.struct(list(self._states.schema))

    @property
    def result(self) -> pa.DataType:
        types = {each.name: each.type for each in self.inputs}
        return self.aggregate.result_type(types)

    def lift(self, columns: Sequence[pa.Array], times: Ints, bounds: Ints) -> pa.Array:
        events = pa.RecordBatch.from_arrays(list(columns), schema=self.inputs)
        return self._structs(self._states.folded(events, owners(bounds), len(bounds) - 1))

    def combine(self, states: pa.Array, bounds: Ints) -> pa.Array:
        return self._structs(self._states.combine(owners(bounds), self._rows(states))[1])

    def lower(self, states: pa.Array) -> pa.Array:
        (answers,) = self._states.lower(self._rows(states))
        return answers

    def _rows(self, states: pa.Array) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(states.flatten(), schema=self._states.schema)

    def _structs(self, rows: pa.RecordBatch) -> pa.Array:
        return pa.StructArray.from_arrays(rows.columns, fields=list(self._states.schema))
