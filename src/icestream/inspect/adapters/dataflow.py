"""State of dataflows: rows by group, and rows of joins that defer results.

Idea: the stores of a shard are restored without the steps around them, so no user code runs. Groups
are read in the order of their ids, as many at a time as the store has room for. Rows of a join are
those on the log that some result may still need; `resident` marks those that were in memory.

Invariants:
1. Rows are those the query would read (`test_parity_rows_of_groups_beside_the_running_store`).
2. One group is found by its key without reading others
   (`test_one_group_is_found_by_its_key_alone`).

Limits: a checkpoint does not record which groups were hot: all are restored cold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ids
from icestream.core.errors import DefinitionError
from icestream.inspect.access.adapter_protocol import ReadRequest, StateRows, StateTable, key_row
from icestream.kernels.multi_join import resident as k
from icestream.kernels.multi_join.rows import gather_payloads
from icestream.operators.dataflow.sorted_changes import INNER_BITS
from icestream.operators.multi_join.generations import MARKER, Generations
from icestream.operators.multi_join.logged_rows import LoggedRows
from icestream.operators.multi_join.recovery import JoinRecovery
from icestream.operators.multi_join.resident import Resident
from icestream.operators.multi_join.spec import partitions_of
from icestream.operators.protocol import PastVersion, Shard
from icestream.plan.state_schema import ComponentSchema, DataflowSchema, GroupingSchema, JoinSchema
from icestream.state.groups.options import StoreOptions
from icestream.state.groups.store import GroupStore
from icestream.state.identities import identities
from icestream.state.keys import KeyCodec
from icestream.state.rows import RowCodec
from icestream.state.versions.commits import Commit

#: columns of a join's rows before their payload: their lifetimes and where they were
_LIVES = (
    pa.field("__le", pa.int64(), nullable=False),
    pa.field("__re", pa.int64(), nullable=False),
    pa.field("__resident", pa.bool_(), nullable=False),
)
#: size of records for the layout of a join; reading does not depend on it
_RECORD_BYTES = 65536


@dataclass(frozen=True)
class StoredTable:
    """A kind of rows by group, and the store that contains it."""

    table: StateTable
    grouping: GroupingSchema
    options: StoreOptions
    #: groupings of the component, the number of this one, and of the table in it
    groupings: int
    scope: int
    place: int
    #: lifetime classes of the segments that the component writes
    lifetimes: tuple[str, ...]

    def store(self, space: Shard, history: Sequence[PastVersion]) -> GroupStore:
        """Restore the store of a shard."""
        return _store(self.grouping, self.scope, self.groupings, self.options, space, history)


def stored(state_schema: DataflowSchema, commit: Commit, table: StateTable) -> StoredTable:
    """Find the store of a table of a dataflow's state; DefinitionError for rows of a join."""
    shards = len(commit.bases) // max(1, len(state_schema.components))
    component = state_schema.components[table.shards.start // shards]
    for scope, grouping in enumerate(component.groupings):
        for place, synopsis in enumerate(grouping.synopses):
            where = f"component {table.shards.start // shards}, grouping {scope}"
            if (table.operator, table.name) == (where, f"{place}: {synopsis.name}"):
                return StoredTable(
                    table,
                    grouping,
                    state_schema.options,
                    len(component.groupings),
                    scope,
                    place,
                    component.lifetimes,
                )
    msg = f"rows of {table.operator} wait for further results: they cannot be rewritten"
    raise DefinitionError(msg)


class DataflowState:
    """The state of a dataflow."""

    def __init__(self, state_schema: DataflowSchema, commit: Commit) -> None:
        """Read the components and their shards from the schema."""
        self._state_schema = state_schema
        self._shards = len(commit.bases) // max(1, len(state_schema.components))
        self.tables: Sequence[StateTable] = [
            table
            for number, component in enumerate(state_schema.components)
            for table in self._tables(number, component)
        ]
        self.notes: Sequence[str] = (
            ("hot and cold groups are not distinguished: a checkpoint has all groups on its log",)
            if any(not component.join for component in state_schema.components)
            else ()
        )

    def _tables(self, number: int, component: ComponentSchema) -> Iterator[StateTable]:
        shards = range(number * self._shards, (number + 1) * self._shards)
        if component.join is not None:
            join = component.join
            for port, payload in enumerate(join.inputs):
                keys = pa.schema([payload.field(name) for name in join.keys[port]])
                columns = pa.schema([*_LIVES, *payload])
                name = f"stream {port}"
                yield StateTable(f"join {join.number}", name, join.text, keys, columns, shards)
        for grouping, each in enumerate(component.groupings):
            where = f"component {number}, grouping {grouping}"
            for place, (synopsis, text) in enumerate(zip(each.synopses, each.steps, strict=True)):
                name = f"{place}: {synopsis.name}"
                yield StateTable(where, name, text, each.keys, synopsis.schema, shards)

    def read(
        self,
        shard: int,
        space: Shard,
        history: Sequence[PastVersion],
        commit: Commit,
        asked: ReadRequest,
    ) -> Iterator[StateRows]:
        """Restore the stores or the join of a shard, and yield their rows."""
        del commit
        number = shard // self._shards
        component = self._state_schema.components[number]
        mine = [table for table in self.tables if shard in table.shards]
        if component.join is not None:
            yield from _joined(component.join, mine, shard, space, history, asked)
            return
        first = 0
        for scope, grouping in enumerate(component.groupings):
            tables = mine[first : first + len(grouping.synopses)]
            first += len(tables)
            if asked.tables & set(tables):
                yield from self._grouped(scope, grouping, tables, shard, space, history, asked)

    def _grouped(
        self,
        scope: int,
        grouping: GroupingSchema,
        tables: list[StateTable],
        shard: int,
        space: Shard,
        history: Sequence[PastVersion],
        asked: ReadRequest,
    ) -> Iterator[StateRows]:
        groupings = len(self._state_schema.components[shard // self._shards].groupings)
        store = _store(grouping, scope, groupings, self._state_schema.options, space, history)
        watermark = history[-1].watermark
        for id_high, id_low in _identities(store, grouping, asked, is_inner=scope > 0):
            store.begin(watermark)
            slots = store.locate(id_high, id_low)
            for some in store.portions(slots):
                for place, table in enumerate(tables):
                    if table in asked.tables:
                        found = store.read(place, some)
                        owners = store.identities(some)
                        identity = owners[0][found.owners], owners[1][found.owners]
                        yield StateRows(table, shard, found.rows, identity)


def _identities(
    store: GroupStore, grouping: GroupingSchema, asked: ReadRequest, *, is_inner: bool
) -> Iterator[tuple[Ids, Ids]]:
    """Yield the groups of a store, or the requested one, in chunks that it can hold."""
    if asked.key is not None:
        wanted = KeyCodec(grouping.keys).identify(key_row(grouping.keys, asked.key))
        if not is_inner:
            yield wanted
            return
        # the other bits are those of the outer group
        for id_high, id_low in every_group(store):
            same = (id_high ^ wanted[0]) & INNER_BITS == 0
            same &= id_low == wanted[1]
            if same.any():
                yield id_high[same], id_low[same]
        return
    most = max(1, store.chunk_groups)
    for id_high, id_low in every_group(store):
        for first in range(0, len(id_high), most):
            yield id_high[first : first + most], id_low[first : first + most]


def every_group(store: GroupStore) -> list[tuple[Ids, Ids]]:
    """Return the groups of a store of a dataflow, in the order of their ids."""
    directory = store.directory
    entries = directory.entries(directory.every())
    entries = entries[np.lexsort(identities(entries)[::-1])]
    return [identities(block) for block in store.index.scan(entries)]


def _store(
    grouping: GroupingSchema,
    scope: int,
    groupings: int,
    options: StoreOptions,
    space: Shard,
    history: Sequence[PastVersion],
) -> GroupStore:
    share = space.account.budget.free // (2 * groupings)
    store = GroupStore(grouping.synopses, space, options, scope=scope, share=share)
    store.restore(history)
    return store


def _joined(
    join: JoinSchema,
    tables: list[StateTable],
    shard: int,
    space: Shard,
    history: Sequence[PastVersion],
    asked: ReadRequest,
) -> Iterator[StateRows]:
    """Yield the rows of a join that some result may need."""
    name = f"join-{join.number}"
    numbers = space.arena.header.setdefault(name, {})
    numbers.setdefault("watermark", 0)
    resident = Resident(space.arena, name, len(join.inputs), join.partitions, numbers)
    generations = Generations(space.arena, name, join.partitions, numbers)
    codecs = [RowCodec(schema) for schema in join.inputs]
    past = JoinRecovery(join.number, space, resident, generations, numbers, _RECORD_BYTES, codecs)
    past.restore(history)
    owing = resident.facts[:, k.OLDER] + (resident.facts[:, k.MEMBERS] > 0) > 1
    owing &= resident.facts[:, k.NEWS] > 0
    floor = np.array(resident.facts[:, k.FLOOR])
    markers = np.sort(generations.records[:, MARKER].view(np.uint64))
    for record in space.log.read_many(markers):
        rows = past.rows_of(record)
        table = tables[rows.port]
        if table not in asked.tables:
            continue
        partitions = partitions_of(rows.id_high, join.partitions)
        needed = (rows.epoch > floor[partitions]) & (
            (rows.re > numbers["watermark"]) | owing[partitions]
        )
        if asked.key is not None:
            id_high, id_low = KeyCodec(table.keys).identify(key_row(table.keys, asked.key))
            needed &= (rows.id_high == id_high) & (rows.id_low == id_low)
        rows = rows.where(np.flatnonzero(needed))
        if len(rows.starts):
            yield _rows_of(rows, codecs[rows.port], past, table, shard)


def _rows_of(
    rows: LoggedRows, codec: RowCodec, past: JoinRecovery, table: StateTable, shard: int
) -> StateRows:
    payloads = rows.payloads
    words = np.empty(int((rows.words[payloads] >> 32).sum()), dtype=np.int64)
    gather_payloads(rows.words, payloads, words)
    payload = codec.decode(words, len(payloads))
    resident = past.is_resident(rows)
    columns = [pa.array(rows.le), pa.array(rows.re), pa.array(resident), *payload.columns]
    batch = pa.RecordBatch.from_arrays(columns, schema=table.columns)
    return StateRows(table, shard, batch, (rows.id_high, rows.id_low))


__all__ = ["DataflowState", "StoredTable", "every_group", "stored"]
