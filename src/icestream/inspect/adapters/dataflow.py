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
from itertools import groupby

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ids
from icestream.core.errors import DefinitionError
from icestream.inspect.access.adapter_protocol import ReadRequest, StateRows, StateTable
from icestream.inspect.access.scratch_shard import ScratchShard
from icestream.inspect.adapters.windows import WindowState
from icestream.kernels.multi_join import resident as k
from icestream.kernels.multi_join.rows import gather_payloads
from icestream.operators.dataflow.sorted_changes import INNER_BITS
from icestream.operators.multi_join.generations import MARKER, Generations
from icestream.operators.multi_join.logged_rows import LoggedRows
from icestream.operators.multi_join.recovery import JoinRecovery
from icestream.operators.multi_join.resident import Resident
from icestream.operators.multi_join.spec import partitions_of
from icestream.plan.state_schema import ComponentSchema, DataflowSchema, JoinSchema
from icestream.state.groups.options import StoreOptions
from icestream.state.groups.store import GroupStore
from icestream.state.identities import identities
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
    component: ComponentSchema
    #: number of the grouping in the component, and of the table in it
    scope: int
    place: int
    options: StoreOptions

    @property
    def keys(self) -> pa.Schema:
        return self.component.groupings[self.scope].keys

    def store(self, source: ScratchShard) -> GroupStore:
        """Restore the store of a shard, which contains all tables of the grouping."""
        share = source.space.account.budget.free // (2 * len(self.component.groupings))
        synopses = self.component.groupings[self.scope].synopses
        store = GroupStore(synopses, source.space, self.options, scope=self.scope, share=share)
        store.restore(source.history)
        return store


def stored(state_schema: DataflowSchema, commit: Commit, table: StateTable) -> StoredTable:
    """Find the store of a table of a dataflow's state; DefinitionError for rows of a join."""
    found = DataflowState(state_schema, commit).stored.get(table)
    if found is None:
        msg = (
            f"rows of {table.operator} are those of a join or of windows: they cannot be rewritten"
        )
        raise DefinitionError(msg)
    return found


class DataflowState:
    """The state of a dataflow."""

    def __init__(self, state_schema: DataflowSchema, commit: Commit) -> None:
        components = self._components = state_schema.components
        self._shards = len(commit.bases) // max(1, len(components))
        #: tables of groups, and the rows of joins
        self.stored: dict[StateTable, StoredTable] = {}
        self._windows: dict[int, WindowState] = {}
        tables: list[StateTable] = []
        for number, component in enumerate(components):
            shards = range(number * self._shards, (number + 1) * self._shards)
            if component.join is not None:
                tables += _join_tables(component.join, shards)
            if component.windows is not None:
                windows = WindowState(
                    component.windows.plan,
                    commit,
                    f"component {number}",
                    shards,
                    component.windows.delay,
                )
                self._windows[number] = windows
                tables += windows.tables
            for each in _group_tables(number, component, state_schema.options, shards):
                self.stored[each.table] = each
                tables.append(each.table)
        self.tables: Sequence[StateTable] = tables
        self.notes: Sequence[str] = (
            ("hot and cold groups are not distinguished: a checkpoint has all groups on its log",)
            if any(component.groupings for component in components)
            else ()
        )
        self.notes += tuple(note for each in self._windows.values() for note in each.notes)

    def read(self, source: ScratchShard, asked: ReadRequest) -> Iterator[StateRows]:
        """Restore the stores or the join of a shard, and yield their rows."""
        mine = [table for table in self.tables if source.shard in table.shards]
        number = source.shard // self._shards
        if number in self._windows:
            yield from self._windows[number].read(source, asked)
            return
        join = self._components[number].join
        if join is not None:
            yield from _joined(join, mine, source, asked)
            return
        wanted = (self.stored[table] for table in mine if table in asked.tables)
        for _, tables in groupby(wanted, key=lambda each: each.scope):
            yield from _grouped(list(tables), source, asked)


def _join_tables(join: JoinSchema, shards: range) -> Iterator[StateTable]:
    for port, payload in enumerate(join.inputs):
        keys = pa.schema([payload.field(name) for name in join.keys[port]])
        columns = pa.schema([*_LIVES, *payload])
        yield StateTable(f"join {join.number}", f"stream {port}", join.text, keys, columns, shards)


def _group_tables(
    number: int, component: ComponentSchema, options: StoreOptions, shards: range
) -> Iterator[StoredTable]:
    for scope, grouping in enumerate(component.groupings):
        where = f"component {number}, grouping {scope}"
        steps = zip(grouping.synopses, grouping.steps, strict=True)
        for place, (synopsis, text) in enumerate(steps):
            name = f"{place}: {synopsis.name}"
            table = StateTable(where, name, text, grouping.keys, synopsis.schema, shards)
            yield StoredTable(table, component, scope, place, options)


def _grouped(
    tables: Sequence[StoredTable], source: ScratchShard, asked: ReadRequest
) -> Iterator[StateRows]:
    store = tables[0].store(source)
    watermark = source.history[-1].watermark
    for id_high, id_low in _identities(store, tables[0], asked):
        store.begin(watermark)
        for some in store.portions(store.locate(id_high, id_low)):
            owners = store.identities(some)
            for each in tables:
                for found in store.pieces(each.place, some):
                    identity = owners[0][found.owners], owners[1][found.owners]
                    yield StateRows(each.table, source.shard, found.rows, identity)


def _identities(
    store: GroupStore, table: StoredTable, asked: ReadRequest
) -> Iterator[tuple[Ids, Ids]]:
    """Yield the groups of a store, or the requested one, in chunks that it can hold."""
    if asked.key is not None:
        wanted = asked.group(table.keys)
        if table.scope == 0:
            yield wanted
            return
        # the other bits are those of the outer group
        for id_high, id_low in group_chunks(store, store.chunk_groups):
            same = (id_high ^ wanted[0]) & INNER_BITS == 0
            same &= id_low == wanted[1]
            if same.any():
                yield id_high[same], id_low[same]
        return
    yield from group_chunks(store, store.chunk_groups)


def group_chunks(store: GroupStore, most: int) -> Iterator[tuple[Ids, Ids]]:
    """Yield the groups of a store of a dataflow in the order of their ids, some at a time."""
    directory, most = store.directory, max(1, most)
    entries = directory.entries(directory.every())
    entries = entries[np.lexsort(identities(entries)[::-1])]
    # all are known before the first is changed
    for id_high, id_low in [identities(block) for block in store.index.scan(entries)]:
        for first in range(0, len(id_high), most):
            yield id_high[first : first + most], id_low[first : first + most]


def _joined(
    join: JoinSchema,
    tables: Sequence[StateTable],
    source: ScratchShard,
    asked: ReadRequest,
) -> Iterator[StateRows]:
    """Yield the rows of a join that some result may need."""
    space = source.space
    name = f"join-{join.number}"
    numbers = space.arena.header.setdefault(name, {})
    numbers.setdefault("watermark", 0)
    resident = Resident(space.arena, name, len(join.inputs), join.partitions, numbers)
    generations = Generations(space.arena, name, join.partitions, numbers)
    codecs = [RowCodec(schema) for schema in join.inputs]
    past = JoinRecovery(join.number, space, resident, generations, numbers, _RECORD_BYTES, codecs)
    past.restore(source.history)
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
            id_high, id_low = asked.group(table.keys)
            needed &= (rows.id_high == id_high) & (rows.id_low == id_low)
        rows = rows.where(np.flatnonzero(needed))
        if len(rows.starts):
            yield _rows_of(rows, codecs[rows.port], past, table, source.shard)


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
