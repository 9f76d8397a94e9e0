"""Writes aggregates over events that live for ever anew, and the rows that hold of them.

Idea: the sums of a group are all that is known of its events. Fields that both queries have are
carried over, new ones begin empty, and the answers of the new query replace the rows that hold: the
aggregate will take back exactly these. All keys are due at once, so the sink gets every row with
its new columns in the next version.

Invariant: the table is that of a query that had both definitions for their own events
(`test_oracle_aggregates_are_added_to_a_table_of_what_holds`).

Cost: all groups of the shard are read and written once, some at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ids, Ints
from icestream.core.errors import CheckpointError
from icestream.core.times import INFINITY, MINUS_INFINITY, Micros
from icestream.inspect.access.scratch_shard import ScratchShard
from icestream.inspect.adapters.dataflow import every_group
from icestream.inspect.rewriting.changes import ShardRewrite
from icestream.inspect.rewriting.field_conversion import FieldConversion
from icestream.operators.dataflow.stores import ColdOptions, ShardStores
from icestream.operators.folding.exact_rows import ExactRows
from icestream.operators.latest.identities import places_among
from icestream.operators.lifetimes.lift import Lifting, added_up
from icestream.plan.evolution import carried_words
from icestream.plan.state_schema import ComponentSchema, GroupingSchema
from icestream.state import snapshot_schedule
from icestream.state.groups.options import StoreOptions
from icestream.state.groups.store import GroupStore
from icestream.state.identities import distinct

#: the groupings of sums, and of rows that hold; columns of these in front of their payload
SUMS, HELD, LIFETIMES = 0, 1, 3


@dataclass(frozen=True)
class EvolvedAggregates:
    """The conversion of the state of a component with a table of sums."""

    before: ComponentSchema
    after: ComponentSchema
    options: StoreOptions

    def change(
        self, reads: AbstractContextManager[ScratchShard], made: ScratchShard
    ) -> ShardRewrite:
        """Write the state of a shard to `made`, given how it is opened for reading."""
        released = tuple(made.space.log.segments)
        tables = [each.synopses for each in self.after.groupings]
        groups = rows = 0
        with reads as source:
            watermark = source.history[-1].watermark
            share = source.space.account.budget.free // (2 * len(self.before.groupings))
            old = [
                GroupStore(each.synopses, source.space, self.options, scope=scope, share=share)
                for scope, each in enumerate(self.before.groupings)
            ]
            for store in old:
                store.restore(source.history)
            new = ShardStores(tables, made.space, ColdOptions(self.options))
            for id_high, id_low in self._chunks(old, new):
                groups += len(id_high)
                rows += self._converted(old, new, id_high, id_low, watermark)
                new.rest()
            snapshot_schedule.demand_all(made.space.arena.header)
            new.end_version(watermark)
        return ShardRewrite(groups, rows, snapshot=True, released=released)

    def _chunks(self, old: list[GroupStore], new: ShardStores) -> Iterator[tuple[Ids, Ids]]:
        """Yield the groups of a shard, as many at a time as all stores have room for."""
        most = min(*(each.chunk_groups for each in old), *map(new.chunk_groups, (SUMS, HELD)))
        for id_high, id_low in every_group(old[SUMS]):
            for first in range(0, len(id_high), max(1, most)):
                yield id_high[first : first + most], id_low[first : first + most]

    def _converted(
        self, old: list[GroupStore], new: ShardStores, id_high: Ids, id_low: Ids, watermark: Micros
    ) -> int:
        """Write sums and rows of some groups; return the number of rows."""
        was, lifting = (_lifting(each.groupings[SUMS]) for each in (self.before, self.after))
        conversion = FieldConversion(lifting.fold.layout, carried_words(self.before, self.after))
        old[SUMS].begin(watermark)
        written = 0
        for portion in old[SUMS].portions(old[SUMS].locate(id_high, id_low)):
            found = old[SUMS].read(0, portion)
            high, low = old[SUMS].identities(portion)
            words = conversion.of(was.fold.loaded(found.rows.columns[1:]))
            schema = self.after.groupings[SUMS].synopses[0].schema
            stored = [found.rows.column(0), *lifting.fold.stored(words)]
            new.begin(SUMS, watermark)
            groups = new.groups(SUMS, 0, 1)
            slots = groups.locate(high, low)
            edges = pa.RecordBatch.from_arrays(stored, schema=schema)
            groups.append(0, slots[found.owners], edges)
            groups.remind(slots, np.full(len(slots), INFINITY))
            written += self._hold(old, new, (high, low), found.owners, words, watermark)
        return written

    def _hold(
        self,
        old: list[GroupStore],
        new: ShardStores,
        ids: tuple[Ids, Ids],
        owners: Ints,
        words: ExactRows,
        watermark: Micros,
    ) -> int:
        """Write the rows that hold of some groups, with the answers of the new query."""
        lifting, grouping = _lifting(self.after.groupings[SUMS]), self.after.groupings[HELD]
        zeros = np.zeros(len(owners), dtype=np.int64)
        room = words.reshaped(words.layout.with_room(len(words))).copied()
        heads, sums = added_up(owners, zeros, zeros, room)
        answer_of = np.full(len(ids[0]), -1, dtype=np.int64)
        answer_of[owners[heads]] = np.arange(len(heads))
        answers = lifting.lower(sums)
        old[HELD].begin(watermark)
        written = 0
        for portion in old[HELD].portions(old[HELD].locate(*ids)):
            held = old[HELD].read(0, portion)
            high, low = old[HELD].identities(portion)
            if len(np.unique(held.owners)) < len(held.owners):
                msg = "some keys have several rows that hold: start a new checkpoint"
                raise CheckpointError(msg)
            place = _places(ids, (high, low))[held.owners]
            chosen = pa.array(answer_of[place])
            keys = self.before.groupings[SUMS].keys.names
            columns = [
                *held.rows.columns[:LIFETIMES],
                *(held.rows.column(name) for name in keys),
                *(each.take(chosen) for each in answers),
            ]
            new.begin(HELD, watermark)
            groups = new.groups(HELD, 0, 1)
            slots = groups.locate(high, low)
            rows = pa.RecordBatch.from_arrays(columns, schema=grouping.synopses[0].schema)
            groups.append(0, slots[held.owners], rows)
            groups.hasten(slots, np.full(len(slots), MINUS_INFINITY + 1))
            written += rows.num_rows
        return written


def _lifting(grouping: GroupingSchema) -> Lifting:
    assert grouping.aggregate is not None
    return Lifting(grouping.aggregate.payload, grouping.aggregate.aggregates)


def _places(ids: tuple[Ids, Ids], wanted: tuple[Ids, Ids]) -> Ints:
    """Return the place of each wanted group among others."""
    high, low, numbers = distinct(*ids)
    place = np.empty(len(high), dtype=np.int64)
    place[numbers] = np.arange(len(numbers))
    found: Ints = place[places_among(*wanted, high, low)]
    return found
