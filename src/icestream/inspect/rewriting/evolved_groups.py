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

from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ids, Ints
from icestream.core.errors import CheckpointError
from icestream.core.times import INFINITY, MINUS_INFINITY, Micros
from icestream.inspect.access.scratch_shard import ScratchShard
from icestream.inspect.adapters.dataflow import group_chunks
from icestream.inspect.rewriting.changes import ShardRewrite
from icestream.inspect.rewriting.evolved_windows import FieldConversion
from icestream.kernels.lifetimes.sweep import scale_rows
from icestream.operators.dataflow.stores import ColdOptions, ShardStores
from icestream.operators.folding.exact_rows import ExactRows, copies_of
from icestream.operators.lifetimes.changes import DIFF, RE, column_of
from icestream.operators.lifetimes.lift import Lifting, added_up
from icestream.plan.evolution.dataflows import carried_words
from icestream.plan.state_schema import ComponentSchema, GroupingSchema
from icestream.state import snapshot_schedule
from icestream.state.groups.options import StoreOptions
from icestream.state.groups.spec import GroupRows
from icestream.state.groups.store import GroupStore
from icestream.state.identities import distinct, places_among

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
            # as many groups at a time as all stores have room for
            most = min(*(each.chunk_groups for each in old), *map(new.chunk_groups, (SUMS, HELD)))
            for id_high, id_low in group_chunks(old[SUMS], most):
                groups += len(id_high)
                rows += self._converted(old, new, id_high, id_low, watermark)
                new.rest()
            snapshot_schedule.schedule_all(made.space.arena.header, "now")
            new.end_version(watermark)
        return ShardRewrite(groups, rows, snapshot=True, released=released)

    def _converted(
        self, old: list[GroupStore], new: ShardStores, id_high: Ids, id_low: Ids, watermark: Micros
    ) -> int:
        """Write sums and rows of some groups; return the number of rows."""
        was, lifting = (_lifting(each.groupings[SUMS]) for each in (self.before, self.after))
        conversion = FieldConversion(lifting.fold.layout, carried_words(self.before, self.after))
        old[SUMS].begin(watermark)
        written = 0
        for portion in old[SUMS].portions(old[SUMS].locate(id_high, id_low)):
            found = _alive(old[SUMS].read(0, portion))
            counts = column_of(found.rows, DIFF) if DIFF in found.rows.schema.names else None
            words = was.fold.loaded(found.rows.columns[-len(was.fold.schema) :])
            copies = len(words) if counts is None else copies_of(counts) + len(words)
            words = words.reshaped(words.layout.with_room(copies)).copied()
            if counts is not None:
                scale_rows(words.table, counts, *words.layout.at.sums)
            zeros = np.zeros(len(words), dtype=np.int64)
            heads, sums = added_up(found.owners, zeros, zeros, words)
            known = _Sums(
                old[SUMS].identities(portion), found.owners[heads], conversion.of(sums), lifting
            )
            written += self._hold(old[HELD], new, known, watermark)
        return written

    def _hold(self, old: GroupStore, new: ShardStores, known: _Sums, watermark: Micros) -> int:
        """Write the sums of some groups and the rows that hold, with the answers of the new query.

        Sums begin when the row that holds does: the aggregate takes back what it showed since.
        """
        tables = [each.synopses for each in self.after.groupings]
        names = self.after.groupings[SUMS].keys.names
        old.begin(watermark)
        written = 0
        for portion in old.portions(old.locate(*known.ids)):
            held, ids = old.read(0, portion), old.identities(portion)
            if len(np.unique(held.owners)) < len(held.owners):
                msg = "some keys have several rows that hold: start a new checkpoint"
                raise CheckpointError(msg)
            sums, answers = known.of(ids, held.owners)
            life = held.rows.columns[:LIFETIMES]
            shown = [*life, *(held.rows.column(name) for name in names), *answers]
            stored = known.lifting.fold.stored(sums)
            rows = [[life[0], *stored]] if len(tables[SUMS]) == 1 else [[*life, *stored], shown]
            for scope, columns in ((SUMS, rows), (HELD, [shown])):
                new.begin(scope, watermark)
                groups = new.groups(scope, 0, len(columns))
                slots = groups.locate(*ids)
                for number, (each, table) in enumerate(zip(columns, tables[scope], strict=True)):
                    batch = pa.RecordBatch.from_arrays(each, schema=table.schema)
                    groups.append(number, slots[held.owners], batch)
                due = INFINITY if scope == SUMS else MINUS_INFINITY + 1
                groups.remind(slots, np.full(len(slots), due))
            written += held.rows.num_rows
        return written


@dataclass(frozen=True)
class _Sums:
    """The converted sums of some groups."""

    ids: tuple[Ids, Ids]
    #: the place of the group of each row, among the ids
    owners: Ints
    words: ExactRows
    lifting: Lifting

    def of(self, ids: tuple[Ids, Ids], owners: Ints) -> tuple[ExactRows, list[pa.Array]]:
        """Return sums and answers for the owners of rows, given the groups of these."""
        row_of = np.full(len(self.ids[0]), -1, dtype=np.int64)
        row_of[self.owners] = np.arange(len(self.owners))
        chosen = self.words[row_of[_places(self.ids, ids)[owners]]]
        return chosen, self.lifting.lower(chosen)


def _alive(rows: GroupRows) -> GroupRows:
    """Return the rows of sums that hold for ever."""
    if RE not in rows.rows.schema.names:
        return rows
    return rows.where(column_of(rows.rows, RE) == INFINITY)


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
