"""What a task that reads events sends to the shards: folded entries, or the events themselves.

Idea: an `EntryFolder` folds events into entries, one per (group, pane), and sends each to the shard
that owns its key group; a `TupleSender` sends the events themselves. Both handle every grouping of
the plan in one pass over the batch. If a group is *hot*, with a large part of a batch, a
`TupleSender` first folds its events into states, if the aggregates allow it: so its work is divided
among all reading tasks, and its shard only combines.

Invariants:
1. What a shard receives depends only on the events of the split and their order
   (`test_the_same_split_makes_the_same_parcel`).
2. Rows do not depend on which groups are hot in which batch
   (`test_oracle_hot_groups_are_split_and_consolidated`).

Cost: one pass over the events per field and grouping; memory of one `EntryTable` and one batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icestream.core.arrays import Ints, slice_bounds
from icestream.kernels.fold import routes_of
from icestream.operators.folding.columns import InputColumn
from icestream.operators.folding.exact_rows import ExactRows
from icestream.operators.folding.fold import ID_HIGH_COLUMN, ID_LOW_COLUMN, EntryRun, EntryTable
from icestream.operators.folding.sorted_runs import sorted_run
from icestream.operators.lifetimes.changes import taken
from icestream.operators.object_aggregates.states import States
from icestream.plan.grid.lower import liftable, tuple_keys, whole_stream, window_spec
from icestream.plan.nodes.queries import TIME, Plan
from icestream.plan.windows.grid import Grid
from icestream.runtime.exchange.parcels import ENTRIES, ExchangeWriter
from icestream.state.keys import KeyCodec

#: maximum and minimum bytes of the table in which entries are folded before they are sent
TABLE_BYTES = 8 << 20
LEAST_TABLE_BYTES = 1 << 20
#: rows of events sent in one record
TUPLE_ROWS = 16_384
#: a group is hot if it has this part of a batch, and at least this many events
HOT_SHARE = 1 / 16
HOT_ROWS = 2_048
#: one of this many events is sampled to find hot groups
SAMPLED = 16

#: column that precedes those of the state
PANE = "pane"


class EntryFolder:
    """Folds events and sends the entries to their shards."""

    def __init__(
        self,
        plan: Plan,
        routes: tuple[int, ...],
        table_bytes: int,
        out: ExchangeWriter,
        *,
        kind: int = ENTRIES,
        partial: bool = False,
        part: int = 0,
    ) -> None:
        """Fold into a table of this many bytes; `partial` rows are already aggregated.

        `part` is the number of the plan among the parts that are sent together.
        """
        self.layout = window_spec(plan).layout
        self.entries = 0
        self.groups = 0
        #: entries by key group
        self.load = np.zeros(plan.key_groups, dtype=np.int64)
        capacity = table_bytes // EntryTable.row_bytes(self.layout)
        self._table = EntryTable(self.layout, KeyCodec(plan.group_keys), capacity, partial=partial)
        self._plan = plan
        self._out = out
        self._kind = kind
        self._part = part
        self._routes = np.array(routes, dtype=np.int64)

    def take(self, batch: pa.RecordBatch, panes: Ints, columns: Mapping[str, InputColumn]) -> None:
        """Fold one batch, given the pane and the inputs of each row."""
        by = groupings(self._plan, batch, self._plan.group_keys)
        for run in self._table.fold(by, panes, columns):
            self._send(run)

    def finish(self) -> None:
        """Send the remaining entries."""
        self._send(self._table.take())

    def _send(self, run: EntryRun) -> None:
        if len(run.panes) == 0:
            return
        self.entries += len(run.panes)
        self.groups += run.keys.num_rows
        key_groups = self._plan.key_groups
        layout, table = run.entries.layout, run.entries.table
        id_high = np.ascontiguousarray(table[:, 0]).view(np.uint64)
        shards = np.empty(len(id_high), dtype=np.int64)
        routes_of(id_high, key_groups, self._routes, shards, self.load)
        lowest = int(run.panes.min())
        span = int(run.panes.max()) - lowest + 1
        ranks, entries = sorted_run(shards * span + (run.panes - lowest), table, layout)
        owners, panes = ranks // span, ranks % span + lowest
        for first, last in pairwise(slice_bounds(owners).tolist()):
            part = np.concatenate([panes[first:last, None], entries[first:last]], axis=1)
            sent = ExactRows(layout, part)
            self._out.entries(int(owners[first]), sent, self._kind, self._part)
        if self._kind != ENTRIES:
            return
        key_id_high = run.keys.column(ID_HIGH_COLUMN).to_numpy()
        key_shards = np.empty(len(key_id_high), dtype=np.int64)
        routes_of(key_id_high, key_groups, self._routes, key_shards, np.zeros_like(self.load))
        order = np.argsort(key_shards, kind="stable")
        keys, key_shards = run.keys.take(pa.array(order)), key_shards[order]
        for first, last in pairwise(slice_bounds(key_shards).tolist()):
            self._out.keys(int(key_shards[first]), keys.slice(first, last - first), self._part)


class TupleSender:
    """Sends events to the shards of their groups."""

    def __init__(
        self, plan: Plan, routes: tuple[int, ...], out: ExchangeWriter, part: int = 0
    ) -> None:
        """Send by the routes of a version; for `part` see `EntryFolder`."""
        self.entries = 0
        #: events of hot groups
        self.lifted = 0
        self.load = np.zeros(plan.key_groups, dtype=np.int64)
        self._plan = plan
        self._out = out
        self._part = part
        spec = liftable(plan)
        self._lifting = None if spec is None else (States(spec), Grid.of([spec.windows]))
        self._keys = tuple_keys(plan)
        self._codec = KeyCodec(self._keys)
        self._whole = whole_stream(plan)
        self._routes = np.array(routes, dtype=np.int64)

    def take(self, batch: pa.RecordBatch, times: Ints) -> None:
        """Send one batch of events, once per grouping."""
        for keys in groupings(self._plan, batch, self._keys):
            id_high, id_low = self._codec.identify(keys)
            shards = np.empty(len(id_high), dtype=np.int64)
            routes_of(id_high, self._plan.key_groups, self._routes, shards, self.load)
            if self._whole:
                shards[:] = 0
            canonical = self._codec.canonical(keys) if len(self._keys) else keys
            names = self._plan.inputs.names
            events = pa.RecordBatch.from_arrays(
                [
                    pa.array(times),
                    pa.array(id_high),
                    pa.array(id_low),
                    *canonical.columns,
                    *(batch.column(name) for name in names),
                ],
                names=[TIME, ID_HIGH_COLUMN, ID_LOW_COLUMN, *self._keys.names, *names],
            )
            cold = np.ones(len(id_high), dtype=np.bool_)
            if self._lifting is not None and len(hot := hot_groups(id_high)):
                cold = ~np.isin(id_high, hot)
                for group in hot:
                    chosen = np.flatnonzero(id_high == group)
                    self._lift(int(shards[chosen[0]]), events, chosen)
            for shard in np.flatnonzero(np.bincount(shards[cold])).tolist():
                self._send(shard, events, np.flatnonzero(cold & (shards == shard)))

    def _send(self, shard: int, events: pa.RecordBatch, chosen: Ints) -> None:
        mine = taken(events, chosen)
        self.entries += mine.num_rows
        times = np.asarray(mine.column(TIME).to_numpy())
        for first in range(0, mine.num_rows, TUPLE_ROWS):
            earliest = int(times[first : first + TUPLE_ROWS].min())
            self._out.tuples(shard, mine.slice(first, TUPLE_ROWS), self._part, earliest)

    def _lift(self, shard: int, events: pa.RecordBatch, chosen: Ints) -> None:
        """Send the states of the events of a hot group."""
        assert self._lifting is not None
        states, grid = self._lifting
        self.lifted += len(chosen)
        for first in range(0, len(chosen), TUPLE_ROWS):
            part = events.take(pa.array(chosen[first : first + TUPLE_ROWS]))
            times = np.asarray(part.column(TIME).to_numpy())
            panes, rows = states.lift(part, grid.panes_of(times))
            self.entries += rows.num_rows
            names = [PANE, *rows.schema.names]
            sent = pa.RecordBatch.from_arrays([pa.array(panes), *rows.columns], names=names)
            self._out.states(shard, sent, self._part)


def hot_groups(id_high: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the ids with a large part of the events to fold, estimated from a sample."""
    if len(id_high) < HOT_ROWS:
        return id_high[:0]
    found, counts = np.unique(id_high[::SAMPLED], return_counts=True)
    return found[counts * SAMPLED >= max(HOT_ROWS, HOT_SHARE * len(id_high))]


def groupings(plan: Plan, batch: pa.RecordBatch, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the keys of a batch to fold once per grouping; keys outside it are null."""
    rows = batch.num_rows
    columns = [batch.column(f"k{place}") for place in range(len(plan.keys))]
    if plan.one_grouping:
        yield _batch(columns, schema, rows)
        return
    absent = [_nulls(column.type, rows.bit_length()).slice(0, rows) for column in columns]
    for chosen in plan.groupings:
        masked = [
            column if place in chosen else absent[place] for place, column in enumerate(columns)
        ]
        ids = pa.array(np.full(rows, plan.grouping_id(chosen), dtype=np.int64))
        yield _batch([*masked, ids], schema, rows)


@lru_cache(16)
def _nulls(kind: pa.DataType, bits: int) -> pa.Array:
    """Return 2**bits nulls; batches have few sizes, and nulls take memory."""
    return pa.nulls(1 << bits, kind)


def _batch(columns: list[pa.Array], schema: pa.Schema, rows: int) -> pa.RecordBatch:
    if not columns:
        none = pa.StructArray.from_buffers(pa.struct([]), rows, [None])
        return pa.RecordBatch.from_struct_array(none)
    return pa.RecordBatch.from_arrays(columns, schema=schema)
