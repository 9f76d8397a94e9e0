"""Erases one key from a checkpoint: from its state, its log, its kept versions and `now` tables.

Idea: all shards of a stopped query are restored without the groups of the key and written whole, as
snapshots that refer to nothing before them, in one version of a new epoch. Once it is committed,
everything older is deleted. So the key is in no file, whatever versions were kept.

Invariants:
1. Afterwards the value of the key is in no file of the checkpoint, and the query goes on as if the
   key had had no events so far; other keys do not notice
   (`test_oracle_an_erased_key_is_in_no_file_and_others_do_not_notice`).
2. An erasure that is killed can be repeated; the state is that of before or of after
   (`test_crash_every_step_of_an_erasure`).
3. Where rows of other groups contain the key, nothing is erased
   (`test_a_key_in_rows_of_other_groups_is_not_erased`).

Cost: the log of all shards is written once more.

Limits: windows, sessions and groups as for `rewrite`; other state is refused. Groups inside groups
of the key are known by half a word of its identity: of 4 billion keys, one more is taken for it.
Rows in sinks, and Spark's log of the source and its offsets, are not reached.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icestream.core.arrays import Ids, Mask
from icestream.core.errors import CheckpointError, DefinitionError
from icestream.core.times import INFINITY
from icestream.inspect.access.adapter_protocol import ReadRequest, StateTable
from icestream.inspect.access.checkpoint import Checkpoint
from icestream.inspect.access.scratch_shard import ScratchShard
from icestream.inspect.adapters.dataflow import DataflowState, StoredTable, group_chunks
from icestream.inspect.adapters.windows import kept
from icestream.inspect.copying import SPARK
from icestream.inspect.repair import DROPPED
from icestream.inspect.rewrite import MaintenanceVersion, check_stopped, rewriter_of
from icestream.inspect.rewriting import panes
from icestream.inspect.rewriting.changes import ShardRewrite
from icestream.inspect.state_rows import Reading
from icestream.operators.dataflow.sorted_changes import INNER_BITS
from icestream.plan.nodes.queries import Plan
from icestream.plan.state_schema import DataflowSchema
from icestream.runtime.tables.current_table import CurrentTable
from icestream.state.files import folder_of
from icestream.state.groups.spec import GroupRows
from icestream.state.groups.store import GroupStore
from icestream.state.stores.packs import holder_of
from icestream.state.versions.commits import (
    BASE,
    COMMITS,
    EXCHANGE,
    RESULTS,
    SEGMENTS,
    Commit,
)

#: decision of a commit: how many groups were erased
ERASED = "erased"


@dataclass(frozen=True)
class Erasure:
    """The result of an erasure."""

    #: the version without the key
    version: int
    #: groups of the key that had state, and rows of `now` tables
    groups: int
    rows: int
    #: files that were deleted
    files: int


def erase(reading: Reading, key: Mapping[str, str]) -> Erasure:
    """Erase all groups of a key from the newest version, and delete everything before it.

    Args:
        reading: the checkpoint, at its newest version.
        key: columns and their values, as text. Windows may be grouped by further columns.
    """
    at, commit = reading.checkpoint, reading.commit
    check_stopped(at)
    _check_delivered(at, commit)
    changed = _changed(reading, ReadRequest(frozenset(), key))
    made = MaintenanceVersion(reading, "icestream state erase")
    for shard in range(len(commit.bases)):
        made.change(shard, changed)
    committed = made.commit({"flush": False, ERASED: made.groups}, manifests=True)
    tables = CurrentTable.all_in(at.files, at.root)
    rows = sum(_erase_rows(each, key, committed.version - 1) for each in tables)
    return Erasure(committed.version, made.groups, rows, _delete_others(at, committed))


def _check_delivered(at: Checkpoint, commit: Commit) -> None:
    """Refuse while rows of the last batch may have to be delivered again: they are deleted."""
    spark = f"{folder_of(at.root)}/{SPARK}"
    if commit.batch is None or not at.files.exists(f"{spark}/offsets"):
        return
    if str(commit.batch) not in at.files.list(f"{spark}/commits"):
        msg = (
            f"batch {commit.batch} of {at.root} may not have reached its sink: start the query, "
            "let it finish the batch, stop it, and erase again"
        )
        raise CheckpointError(msg)


def _changed(reading: Reading, asked: ReadRequest) -> Callable[[ScratchShard], ShardRewrite | None]:
    """Return what writes a shard without the key; an error if this state cannot be written."""
    schema, commit = reading.checkpoint.state_schema, reading.commit
    if isinstance(schema, DataflowSchema):
        if schema.options.durability != "log":
            msg = "a query with durability 'evict' cannot be restored: nothing of it can be erased"
            raise CheckpointError(msg)
        return _GroupEraser(schema, commit, asked).change
    if isinstance(schema, Plan):
        state = kept(schema, commit)
        if state is None:
            panes.check(schema, commit)
        assert state is not None
        parts = replace(reading, kept=state.table.name)
        [table] = parts.tables
        _check_named(asked, [table], whole=False)
        rows = pa.Table.from_batches(list(parts.batches()), schema=parts.schema)
        left = rows.filter(pc.invert(_of_key(rows, table.columns, asked)))
        rewriter = rewriter_of(parts, table, left, keep=False)
        rewriter.whole = True

        def change(source: ScratchShard) -> ShardRewrite | None:
            before = tuple(source.space.log.segments)
            done = rewriter.change(source)
            return None if done is None else replace(done, released=before)

        return change
    msg = "keys can be erased from windows, sessions and groups; this query keeps other state"
    raise CheckpointError(msg)


def _check_named(asked: ReadRequest, tables: list[StateTable], *, whole: bool) -> None:
    """Refuse a key whose columns no table has as its key."""
    assert asked.key is not None
    for table in tables:
        names = set(table.keys.names)
        if names == set(asked.key) or (not whole and asked.key and set(asked.key) <= names):
            return
    there = "; ".join(dict.fromkeys(", ".join(table.keys.names) for table in tables))
    msg = f"no state has the key {', '.join(asked.key)}; the keys are: {there}"
    raise DefinitionError(msg)


def _of_key(rows: pa.Table | pa.RecordBatch, columns: pa.Schema, asked: ReadRequest) -> pa.Array:
    """Return which rows have the key in the columns of its name; none where one is missing."""
    assert asked.key is not None
    if not set(asked.key) <= set(columns.names):
        return pa.array(np.zeros(rows.num_rows, dtype=np.bool_))
    wanted = asked.key_row(pa.schema([columns.field(name) for name in asked.key]))
    found = pa.array(np.ones(rows.num_rows, dtype=np.bool_))
    for name, [value] in zip(wanted.schema.names, wanted.columns, strict=True):
        column = rows.column(name)
        same = pc.equal(column, value) if value.is_valid else pc.is_null(column)
        found = pc.and_(found, pc.fill_null(same, False))
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


class _GroupEraser:
    """Empties the groups of a key in the stores of a dataflow, and writes all others again."""

    def __init__(self, schema: DataflowSchema, commit: Commit, asked: ReadRequest) -> None:
        self._asked = asked
        self._schema = schema
        if any(component.join is not None for component in schema.components):
            msg = "a join that defers results refers to its rows on the log: it cannot be erased"
            raise CheckpointError(msg)
        if any(component.is_sole for component in schema.components):
            msg = (
                "windows and frames inside of a dataflow keep events of many keys together: "
                "nothing of this query can be erased. Let them expire"
            )
            raise CheckpointError(msg)
        state = DataflowState(schema, commit)
        self._stores: dict[int, dict[int, list[StoredTable]]] = {}
        for each in state.stored.values():
            for shard in each.table.shards:
                self._stores.setdefault(shard, {}).setdefault(each.scope, []).append(each)
        _check_named(asked, list(state.tables), whole=True)

    def change(self, source: ScratchShard) -> ShardRewrite | None:
        before, watermark = tuple(source.space.log.segments), source.history[-1].watermark
        scopes = self._stores.get(source.shard, {})
        groups = 0
        lifetimes: tuple[str, ...] = ()
        for _, tables in sorted(scopes.items()):
            store, lifetimes = tables[0].store(source), tables[0].component.lifetimes
            groups += self._empty(store, tables, watermark)
            self._check_rest(store, tables, watermark)
            store.end_version(watermark, snapshot=True, whole=True)
        for lifetime in (*lifetimes, BASE):
            source.space.seal(lifetime)
        return ShardRewrite(groups, 0, snapshot=True, released=before)

    def _empty(self, store: GroupStore, tables: list[StoredTable], watermark: int) -> int:
        """Empty the groups of the key; return how many had state."""
        groups = 0
        for id_high, id_low in group_chunks(store, store.chunk_groups):
            chosen = self._chosen(tables[0], id_high, id_low)
            if not chosen.any():
                continue
            store.begin(watermark)
            for slots in store.portions(store.locate(id_high[chosen], id_low[chosen])):
                groups += len(slots)
                for place, each in enumerate(tables):
                    none = pa.RecordBatch.from_pylist([], schema=each.table.columns)
                    store.rewrite(place, slots, GroupRows(np.empty(0, dtype=np.int64), none))
                    store.remind(slots, np.full(len(slots), INFINITY), place)
        return groups

    def _chosen(self, table: StoredTable, id_high: Ids, id_low: Ids) -> Mask:
        """Return which groups are those of the key, or groups inside of these."""
        outer, asked = table.component.groupings[0].keys, self._asked
        assert asked.key is not None
        found = np.zeros(len(id_high), dtype=np.bool_)
        if set(table.keys.names) == set(asked.key):
            own = asked.group(table.keys)
            bits = np.uint64(INNER_BITS if table.scope else -1 % (1 << 64))
            found |= ((id_high ^ own[0]) & bits == 0) & (id_low == own[1])
        if table.scope and set(outer.names) == set(asked.key):
            found |= (id_high ^ asked.group(outer)[0]) & ~INNER_BITS == 0
        return found

    def _check_rest(self, store: GroupStore, tables: list[StoredTable], watermark: int) -> None:
        """Refuse if rows of other groups have the key."""
        assert self._asked.key is not None
        named = [each for each in tables if set(self._asked.key) <= set(each.table.columns.names)]
        for id_high, id_low in group_chunks(store, store.chunk_groups) if named else ():
            store.begin(watermark)
            for slots in store.portions(store.locate(id_high, id_low)):
                for each in named:
                    if any(
                        pc.any(_of_key(found.rows, found.rows.schema, self._asked)).as_py()
                        for found in store.pieces(each.place, slots)
                    ):
                        key = ", ".join(f"{name}={text}" for name, text in self._asked.key.items())
                        msg = (
                            f"rows of other groups in {each.table.operator}, {each.table.name}, "
                            f"have {key}: nothing was erased. Let them expire, or change them "
                            "with `icestream state rewrite`, and erase again"
                        )
                        raise CheckpointError(msg)


# -- files --------------------------------------------------------------------------------


def _erase_rows(table: CurrentTable, key: Mapping[str, str], version: int) -> int:
    """Write a table again without rows of the key, and delete all its other files."""
    asked = ReadRequest(frozenset(), key)
    return table.keep(version, lambda rows: pc.invert(_of_key(rows, rows.schema, asked)))


def _delete_others(at: Checkpoint, commit: Commit) -> int:
    """Delete all files that only versions before a commit need; return how many."""
    files, root = at.files, at.root
    at.store.look()
    at.store.forget_before(commit.version)
    # before anything that the forgotten versions need is deleted
    files.sync_folder(f"{root}/{COMMITS}")
    live = at.live(commit.version)
    named = {holder_of(files, f"{root}/{SEGMENTS}/{each.info.name}") for each in live}
    gone = [
        path
        for folder in (SEGMENTS, RESULTS, EXCHANGE, DROPPED)
        for name in files.walk(f"{root}/{folder}")
        if (path := f"{root}/{folder}/{name}") not in named
    ]
    files.unlink(*gone)
    for folder in {folder_of(path) for path in gone}:
        files.sync_folder(folder)
    return len(gone)
