"""Changes: what operators over events with lifetimes exchange.

Idea: a stream is a bag of events, each a payload with a lifetime [le, re). A *change* adds an event
to the bag (`diff` > 0) or retracts one (`diff` < 0). An end edge that shortens a lifetime is thus
two changes, and operators forward revisions like any other change. A query is defined over the bag
that all changes add up to; how they were cut into batches has no effect on the result.

Changes are consolidated to one row for each event: rows that agree in all columns except the count
share a 128-bit identity, as group keys do. Lists cannot be keys; they are encoded as the
concatenated identities of their elements.

Invariants:
1. Changes concern instants at or after the watermark: the bags before and after a change agree on
   every earlier instant (`test_changes_leave_the_past_alone`).
2. Consolidated changes add up to the same bag, have no two rows for one event and no row with
   count 0, and keep the order in which events first appeared
   (`test_oracle_consolidated_changes_are_the_bag`).

Limits: null equals null and NaN equals NaN, as in a grouping key; maps are rejected.

References: temporal algebra of lifetimes; multisets with signed counts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from icestream.core.arrays import Ids, Ints
from icestream.core.times import Micros
from icestream.operators.folding.fold import ID_HIGH_COLUMN, ID_LOW_COLUMN
from icestream.state.groups.spec import Groups, Synopsis
from icestream.state.identities import numbered
from icestream.state.keys import codec_of

#: columns before the payload: start and (exclusive) end of the lifetime; how many such events are
#: added (or retracted); the identity of the group
LE = "__le"
RE = "__re"
DIFF = "__diff"
#: column of a payload with the time of an event whose lifetime does not begin then
BEGAN = "__began"
HEAD = (
    pa.field(LE, pa.int64(), nullable=False),
    pa.field(RE, pa.int64(), nullable=False),
    pa.field(DIFF, pa.int64(), nullable=False),
    pa.field(ID_HIGH_COLUMN, pa.uint64(), nullable=False),
    pa.field(ID_LOW_COLUMN, pa.uint64(), nullable=False),
)


def changes_schema(payload: pa.Schema) -> pa.Schema:
    """Return the schema of changes to events with a payload."""
    return pa.schema([*HEAD, *payload])


def changes_of(
    payload: pa.RecordBatch, le: Ints, re: Ints, diff: Ints | int, id_high: Ids, id_low: Ids
) -> pa.RecordBatch:
    """Build a batch of changes to events with lifetimes; `diff` may be one for all."""
    diffs = np.full(len(le), diff) if isinstance(diff, int) else diff
    head = [pa.array(part) for part in (le, re, diffs, id_high, id_low)]
    return pa.RecordBatch.from_arrays(
        [*head, *payload.columns], schema=changes_schema(payload.schema)
    )


def payload_of(changes: pa.RecordBatch) -> pa.RecordBatch:
    """Return the payload of changes to events with lifetimes."""
    return changes.select(changes.schema.names[len(HEAD) :])


def with_payload(changes: pa.RecordBatch, payload: pa.RecordBatch) -> pa.RecordBatch:
    """Return changes to the same lifetimes and groups, of events with another payload."""
    columns = [*changes.columns[: len(HEAD)], *payload.columns]
    return pa.RecordBatch.from_arrays(columns, schema=changes_schema(payload.schema))


def with_nulls(rows: pa.RecordBatch, payload: pa.Schema) -> pa.RecordBatch:
    """Return the payload of changes that rows have some columns of, with nulls for the others."""
    there = set(rows.schema.names)
    columns = [
        rows.column(each.name) if each.name in there else pa.nulls(len(rows), each.type)
        for each in payload
    ]
    return pa.RecordBatch.from_arrays(columns, schema=payload)


def column_of(changes: pa.RecordBatch, name: str) -> Ints:
    """Return one of the columns of changes before the payload as an array."""
    return np.asarray(changes.column(name).to_numpy())


def with_column(changes: pa.RecordBatch, name: str, values: Ints) -> pa.RecordBatch:
    """Return changes with other values in one of the columns before the payload."""
    place = changes.schema.get_field_index(name)
    return changes.set_column(place, changes.schema.field(place), pa.array(values))


def began_of(changes: pa.RecordBatch) -> pa.Array:
    """Return when the events of changes began."""
    return changes.column(BEGAN if BEGAN in changes.schema.names else LE)


def identities_of(changes: pa.RecordBatch) -> tuple[Ids, Ids]:
    """Return id_high and id_low of the group of each change in a batch."""
    id_high, id_low = (
        np.asarray(changes.column(name).to_numpy()) for name in (ID_HIGH_COLUMN, ID_LOW_COLUMN)
    )
    return id_high, id_low


def one_each(changes: pa.RecordBatch) -> pa.RecordBatch:
    """Repeat the events of changes that count more than once; none may be retracted."""
    diffs = column_of(changes, DIFF)
    if (diffs == 1).all():
        return changes
    if (diffs < 0).any():
        msg = "an event was retracted where only final events may arrive, as before over(...)"
        raise AssertionError(msg)
    return changes.take(pa.array(np.repeat(np.arange(len(diffs)), diffs)))


class LifetimeOperator(ABC):
    """A stateful operator over changes, for all groups at once.

    It has no state of its own: all state is in the `Groups` it receives, which have the synopses it
    asks for. Changes to one group may arrive in any number of chunks.
    """

    #: what it stores for each group
    synopses: tuple[Synopsis, ...]
    #: columns of the events it emits
    result: pa.Schema
    #: the port whose changes should arrive before those of all others, so that less is stored
    first_port: int | None = None
    #: whether it sorts the changes of a group by time, unless they are sorted already
    takes_by_time = False
    #: whether it emits all consequences of changes at once, and nothing at a watermark
    is_prompt = False
    #: of a prompt operator: whether it emits all output of a group in one batch, and whether it
    #: stores nothing for a group whose events have all ended
    emits_at_once = False
    forgets = False

    @abstractmethod
    def on_changes(
        self, port: int, changes: pa.RecordBatch, groups: Groups, watermark: Micros
    ) -> Iterator[pa.RecordBatch]:
        """Process changes on one of its inputs; yield how its answer changes.

        `watermark` is the one before the batch. `groups.begin` was called for this chunk.
        """

    def on_last_changes(
        self, port: int, changes: pa.RecordBatch, groups: Groups, watermark: Micros, over: Micros
    ) -> Iterator[pa.RecordBatch]:
        """Process the last changes to these groups that concern instants before `over`.

        What ends by then need not be stored.
        """
        return self.on_changes(port, changes, groups, watermark)

    def on_watermark(self, groups: Groups, watermark: Micros) -> Iterator[pa.RecordBatch]:
        """Yield how a new watermark changes its answer; most operators yield nothing."""
        return iter(())


class PromptOperator(LifetimeOperator):
    """An operator that emits all consequences of changes at once."""

    is_prompt = True

    def on_changes(
        self, port: int, changes: pa.RecordBatch, groups: Groups, watermark: Micros
    ) -> Iterator[pa.RecordBatch]:
        """Store what ends after the watermark."""
        return self.on_last_changes(port, changes, groups, watermark, watermark)


def taken(batch: pa.RecordBatch, order: Ints) -> pa.RecordBatch:
    """Return some rows of changes, or the batch itself if these are all rows in order."""
    if len(order) == batch.num_rows and np.array_equal(order, np.arange(len(order))):
        return batch
    return pc.take(batch, pa.array(order.astype(np.int32)), boundscheck=False)


def identities(rows: pa.RecordBatch) -> tuple[Ids, Ids]:
    """Return the ids that changes are consolidated by: equal exactly where all columns are."""
    columns = [
        _list_as_bytes(column) if _is_list(column.type) else column for column in rows.columns
    ]
    schema = pa.schema([pa.field(str(place), column.type) for place, column in enumerate(columns)])
    return codec_of(schema).identify(pa.RecordBatch.from_arrays(columns, schema=schema))


def consolidated(changes: pa.RecordBatch) -> pa.RecordBatch:
    """Consolidate changes: add up those to each event and drop those that add up to zero."""
    diffs = column_of(changes, DIFF)
    if len(diffs) <= 1:
        return changes if diffs.all() else changes.slice(0, 0)
    numbers, heads = numbered(*identities(changes.drop_columns([DIFF])))
    if len(heads) == len(diffs):
        return changes if diffs.all() else changes.filter(pa.array(diffs != 0))
    totals = np.zeros(len(heads), dtype=np.int64)
    np.add.at(totals, numbers, diffs)
    left = totals != 0
    return with_column(changes.take(pa.array(heads[left])), DIFF, totals[left])


def _is_list(kind: pa.DataType) -> bool:
    return bool(pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind))


def _list_as_bytes(lists: pa.Array) -> pa.Array:
    """Return a binary column, equal where the lists are: 16 bytes for each element."""
    elements = pa.RecordBatch.from_arrays([lists.flatten()], names=["element"])
    words = np.stack(identities(elements), axis=1)
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]) * 16
    whole = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(lists), [None, pa.py_buffer(offsets), pa.py_buffer(words)]
    )
    return pc.if_else(lists.is_valid(), whole, pa.scalar(None, pa.large_binary()))
