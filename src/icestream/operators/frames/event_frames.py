"""Frames of single events: each event learns what its frames hold, under its own identity.

Idea: the events of a shard are tuples as those of other frames, with the identity of the event,
which orders events of equal time, until they settle. Frames of one kind, with or without peers,
move together, so that an event's answers of all of them are one row: identity, then a column for
each aggregate. Keys are not stored: the event itself has them, and `operators.dataflow.gather`
brings both together.

Invariants:
1. There is one row for each event, in the version whose watermark passes it, with the answers of
   SQL: a range has the event's peers, rows do not (`test_oracle_features_are_those_of_sql`).
2. Rows do not depend on batches, budget, shards or restarts (`TestOver`).
3. An instant with more events than memory holds is entered as a whole before it is shown
   (`test_bounded_an_instant_of_more_events_than_a_chunk`).

Cost: as `operators.frames.operator`; 16 bytes more for each event that waits, and for each event of
a version on the local disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints, Table
from icestream.core.times import MINUS_INFINITY, Micros
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.folding.columns import ARRIVAL, BATCH, TIME
from icestream.operators.folding.fold import ID_HIGH_COLUMN, ID_LOW_COLUMN, LAST
from icestream.operators.frames.lift import bounded_slices, distinct_groups
from icestream.operators.frames.moving import MovingPass
from icestream.operators.frames.operator import FrameOperator, buffered_chunks
from icestream.operators.frames.rings import RingPass, Rings
from icestream.operators.frames.spec import FrameSpec
from icestream.operators.frames.tuples import BLOCK_BYTES, EVENT_WORDS, TupleLog, TupleRun
from icestream.operators.grid.partitions import Partition
from icestream.operators.lifetimes.changes import LE, changes_of, one_each
from icestream.operators.protocol import ChangeInputs, Shard
from icestream.plan.windows.frame import Frame
from icestream.state.identities import identities

#: columns with the identity of an event: the order in which events of equal time arrived
EVENT_FIELDS = (
    pa.field(BATCH, pa.int64(), nullable=False),
    pa.field(ARRIVAL, pa.int64(), nullable=False),
)
_NO_KEYS = pa.schema([])


@dataclass(frozen=True)
class EventFramesSpec:
    """What events learn from frames of one grouping, all with peers or all without."""

    #: frames, each with its aggregates
    frames: tuple[tuple[Frame, tuple[Aggregate, ...]], ...]
    inputs: pa.Schema
    #: the edges on which events arrive
    edges: tuple[int, ...] = ()

    @cached_property
    def specs(self) -> tuple[FrameSpec, ...]:
        return tuple(
            FrameSpec(aggregates, _NO_KEYS, self.inputs, frame, pa.int64())
            for frame, aggregates in self.frames
        )

    @cached_property
    def answers(self) -> tuple[pa.Schema, ...]:
        return tuple(
            pa.schema(
                [pa.field(each.alias, each.result_type(spec.types)) for each in spec.aggregates]
            )
            for spec in self.specs
        )

    @cached_property
    def result(self) -> pa.Schema:
        """Return the columns of the answers of all frames, after the identity of the event."""
        return pa.schema([*EVENT_FIELDS, *(field for schema in self.answers for field in schema)])

    @property
    def received(self) -> pa.Schema:
        """Return the columns that arrive: identities and inputs."""
        return pa.schema([*EVENT_FIELDS, *self.inputs])

    @property
    def lifetimes(self) -> tuple[str, ...]:
        return FrameOperator.lifetimes

    @property
    def lends_buffers(self) -> bool:
        return True

    @property
    def least_quota(self) -> int:
        """Return the bytes that a shard needs: twice its buffers."""
        return 2 * buffered_chunks(len(self.frames)) * BLOCK_BYTES

    def opened(self, shard: Shard) -> EventFrames:
        return EventFrames(self, shard)


class EventFrames(FrameOperator):
    """The frames of the events of one shard."""

    _chunks = 20

    def __init__(self, spec: EventFramesSpec, shard: Shard) -> None:
        self._spec = spec
        results = [pa.schema([pa.field(TIME, pa.int64()), *each]) for each in spec.answers]
        super().__init__(spec.specs, shard, results)
        self._changes: ChangeInputs | None = None
        #: identities of the events that settled in the current version
        self._events = Rings(shard.arena, 1, EVENT_WORDS, "events")
        self._settled_rows = 0
        #: bytes of rows that steps after this one may hold
        self.gathered_bytes = self._chunk_bytes

    def run(self, inputs: ChangeInputs | None, watermark: Micros) -> Iterator[pa.RecordBatch]:
        """Yield the answers of the events that a watermark makes final."""
        self._changes = inputs
        self._events.open()
        with closing(self._events):
            for _, batch in self.on_watermark(watermark):
                yield batch
        self._changes = None

    def _arriving(self) -> Iterator[tuple[Table, Micros]]:
        """Yield the events of the batch as tuples with identities, on all edges."""
        inputs, edges = self._changes, self._spec.edges
        if inputs is None:
            return
        sent = chain.from_iterable(map(inputs.as_sent, edges))
        batches = map(one_each, sent)
        earliest = np.concatenate(list(map(inputs.earliest_sent, edges)))
        for events, bound in bounded_slices(batches, earliest, LE, self._tuples.chunk_rows):
            yield self._identified(events), bound

    def _identified(self, events: pa.RecordBatch) -> Table:
        """Return events as tuples with identities before their times."""
        names = [TIME if name == LE else name for name in events.schema.names]
        piece = events.rename_columns(names)
        tuples = self._tuples_in(piece)
        whole = np.empty((len(tuples), tuples.shape[1] + EVENT_WORDS), dtype=np.int64)
        whole[:, : -1 - EVENT_WORDS] = tuples[:, :-1]
        whole[:, -3] = piece.column(BATCH).to_numpy()
        whole[:, -2] = piece.column(ARRIVAL).to_numpy()
        whole[:, -1] = tuples[:, -1]
        return whole

    def _tuple_log(self, settled: Any = None) -> TupleLog:
        return super()._tuple_log(settled or self._settled_form)

    def _settled_form(self, table: Table) -> Table:
        """Keep the identities of tuples that settle for this version, the rest for later ones."""
        if len(table) == 0:
            return table
        events = np.ascontiguousarray(table[:, -1 - EVENT_WORDS : -1])
        self._events.write(self._settled_rows, 0, events)
        self._settled_rows += len(events)
        return np.concatenate([table[:, : -1 - EVENT_WORDS], table[:, -1:]], axis=1)

    def _events_at(self, places: Ints) -> Table:
        """Return the identities of tuples that settled in this version, by ascending place."""
        begin = self._position["entered"]
        first, last = int(places[0]), int(places[-1]) + 1
        found = np.empty((last - first, EVENT_WORDS), dtype=np.int64)
        self._events.read(first - begin, 0, found)
        return found if len(places) == last - first else found[places - first]

    # -- a watermark -----------------------------------------------------------------------

    def _open_groups(self, partition: Partition) -> None:
        """Open the groups of tuples that settled, when they are about to enter."""
        for stretch in self._tuples.read(self._position["entered"], self._tuples.size, partition):
            if len(stretch.tuples):
                self._admit(partition, partial(_groups_of, stretch, partition))

    def _log_keys(self, keys: pa.Table) -> None:
        """Log nothing: tuples that settled have the identities of their groups."""

    def _settle(self, watermark: Micros, dues: Sequence[Micros | None]) -> None:
        super()._settle(watermark, dues)
        self._settled_rows = 0

    def _pass(
        self, partition: Partition, passes: Sequence[MovingPass | RingPass], watermark: Micros
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Let settled tuples enter every frame, instant by instant; yield answers by event."""
        begin, end = self._position["entered"], self._tuples.size
        for each in passes:
            each.begin(begin)
        runs = self._tuples.read(begin, end, partition, len(passes))
        if any(spec.frame.peers for spec in self._specs):
            yield from ((0, batch) for batch in self._with_peers(runs, partition, passes))
        else:
            for stretch in runs:
                slots = self._groups.locate(stretch.tuples)
                yield from self._answers(stretch, [each.take(stretch, slots) for each in passes])
        for each in passes:
            for _ in each.finish(end, watermark):
                pass
        self._close(passes, watermark)

    def _with_peers(
        self,
        runs: Iterator[TupleRun],
        partition: Partition,
        passes: Sequence[MovingPass | RingPass],
    ) -> Iterator[pa.RecordBatch]:
        """Yield answers such that no instant is shown before all of it has entered."""
        waiting: TupleRun | None = None
        #: where the tuples of the latest instant begin that have entered but were not shown
        entered: int | None = None
        instant = MINUS_INFINITY
        moving = [each for each in passes if isinstance(each, MovingPass)]

        def shown(until: int) -> Iterator[pa.RecordBatch]:
            assert entered is not None
            for run in self._tuples.read(entered, until, partition):
                slots = self._groups.locate(run.tuples)
                for _, batch in self._answers(run, [each.show(run, slots) for each in moving]):
                    yield batch

        def taken(run: TupleRun) -> Iterator[pa.RecordBatch]:
            slots = self._groups.locate(run.tuples)
            for _, batch in self._answers(run, [each.take(run, slots) for each in moving]):
                yield batch

        for run in runs:
            current = run if waiting is None else _joined(waiting, run)
            waiting = None
            if entered is not None and current.times[-1] > instant:
                # the instant that was too large ends inside or before this run
                ends = int(np.searchsorted(current.times, instant, side="right"))
                some = _part(current, 0, ends)
                if ends > 0:
                    for each in moving:
                        each.enter(some, self._groups.locate(some.tuples))
                yield from shown(some.last)
                entered = None
                current = _part(current, ends, len(current.times))
            first = int(np.searchsorted(current.times, current.times[-1]))
            if first > 0:
                yield from taken(_part(current, 0, first))
                current = _part(current, first, len(current.times))
            if entered is not None or len(current.times) >= self._tuples.chunk_rows:
                entered = current.first if entered is None else entered
                instant = int(current.times[-1])
                for each in moving:
                    each.enter(current, self._groups.locate(current.tuples))
            else:
                waiting = current
        if waiting is not None:
            yield from taken(waiting)
        if entered is not None:
            yield from shown(self._tuples.size)

    def _answers(
        self, run: TupleRun, found: Sequence[Iterator[pa.RecordBatch]]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        frames = [list(each) for each in found]
        count = len(run.places)
        if self._past is not None or count == 0:
            return
        events = self._events_at(run.places)
        columns: list[pa.Array] = [pa.array(events[:, 0]), pa.array(events[:, 1])]
        for batches in frames:
            table = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
            columns += table.columns[1:]
        times = np.ascontiguousarray(run.tuples[:, -1])
        payload = pa.RecordBatch.from_arrays(columns, schema=self._spec.result)
        nobody = np.zeros(count, dtype=np.uint64)
        yield 0, changes_of(payload, times, times + 1, 1, nobody, nobody)

    @property
    def _needed_bytes(self) -> int:
        """Return the quota with which everything in memory can stay there."""
        account = self._shard.account
        held = account.budget.whole(account.held + self._shard.arena.bytes)
        return max(held, self._spec.least_quota)

    @property
    def statistics(self) -> dict[str, Any]:
        return {
            **super().statistics,
            "loads": [],
            "needed_bytes": self._needed_bytes,
            "cold": {"bytes_read": self._partitions.bytes_read},
        }


def _groups_of(run: TupleRun, partition: Partition) -> pa.Table:
    """Return the groups of a run's tuples inside a partition, with their latest times."""
    id_high, id_low = identities(run.tuples)
    times, inside = np.ascontiguousarray(run.tuples[:, -1]), partition.holds(id_high)
    ids, last, _ = distinct_groups(id_high, id_low, times, np.flatnonzero(inside))
    columns = [pa.array(each) for each in (ids[:, 0], ids[:, 1], last)]
    return pa.Table.from_arrays(columns, names=[ID_HIGH_COLUMN, ID_LOW_COLUMN, LAST])


def _part(run: TupleRun, first: int, last: int) -> TupleRun:
    """Return the tuples of a run from one place in it to another."""
    begin, end = run.first + first, run.first + last
    low, high = np.searchsorted(run.places, [begin, end])
    return TupleRun(begin, end, run.times[first:last], run.tuples[low:high], run.places[low:high])


def _joined(one: TupleRun, other: TupleRun) -> TupleRun:
    """Return two runs of which the second follows the first."""
    return replace(
        one,
        last=other.last,
        times=np.concatenate([one.times, other.times]),
        tuples=np.concatenate([one.tuples, other.tuples]),
        places=np.concatenate([one.places, other.places]),
    )
