"""Window aggregates under update semantics: an answer for the newest window of every key.

Idea: a window queue, followed by an operator that obeys the queue's marks. The operator has at most
one open window for each key; tuples of a batch are folded into slots of open windows, field by
field, and the windows that end are lowered to rows. The caller decides how many tuples are served:
under overload older windows are skipped, never cut. The group-by columns may be more than the
update key: a window then supersedes older ones of its own group only, and ends by a later tuple of
that group or by the watermark.

Invariants:
1. Each answer is over all tuples of its key in its window, whatever was skipped before and however
   input and service are cut (`test_oracle_answers_are_over_whole_windows`).
2. Windows of a key are delivered in order (the same test).
3. Groups finer than the key have windows of their own
   (`test_oracle_windows_of_groups_end_by_their_tuples_or_the_watermark`).

Cost: O(tuples served x fields); a slot for each open window.

Limits: functions whose state is words.

References: section 6.1.3 of the source named in `docs/papers.md`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints
from icestream.core.errors import DefinitionError
from icestream.core.times import INFINITY, MINUS_INFINITY
from icestream.kernels.queue.windows import zones as z
from icestream.kernels.queue.windows.marks import NOWHERE, obey_marks
from icestream.operators.aggregates.aggregate import Aggregate, input_name
from icestream.operators.folding.columns import ARRIVAL, TIME, InputColumn
from icestream.operators.folding.exact_rows import replace_extents, reshaped
from icestream.operators.folding.fields import ENTRY_FIELDS, Layout, SumExtent
from icestream.operators.folding.fold import fold_fields, measured
from icestream.operators.latest.coalescing import identity_of
from icestream.operators.latest.saved_arrays import State, bytes_of, table_of
from icestream.operators.latest.update_stream import KeptKeys, UpdateStream
from icestream.state.identities import IdRange
from icestream.state.keys import KeyCodec, identified
from icestream.state.queue.pages import PagePool
from icestream.state.queue.windows.queue import WindowQueue, WindowTuples
from icestream.state.queue.windows.spec import UpdateWindows

#: columns of a window in the results: start and end
START = "window_start"
END = "window_end"


class MarkedAggregate:
    """Folds marked tuples and returns answers for the windows that end."""

    def __init__(self, payload: pa.Schema, aggregates: Sequence[Aggregate]) -> None:
        """Aggregate columns of a payload; DefinitionError for functions without words."""
        self._types = {input_name(field.name): field.type for field in payload}
        self._aggregates = tuple(each.of_inputs() for each in aggregates)
        self._layout = Layout.of(
            field for each in self._aggregates for field in each.fields(self._types)
        )
        self._table = np.tile(self._layout.entry_identity, (1, 1))
        self._free: Ints = np.zeros(0, dtype=np.int64)
        self._slot_of: Ints = np.zeros(0, dtype=np.int64)
        self._end_of: Ints = np.zeros(0, dtype=np.int64)
        self._arrivals = 0
        #: columns of the answers
        self.result = pa.schema(
            [pa.field(each.alias, each.result_type(self._types)) for each in self._aggregates]
        )

    @property
    def open_windows(self) -> int:
        """Return the number of windows that have begun and not ended."""
        return int(np.count_nonzero(self._slot_of))

    def state(self) -> State:
        """Return the open windows, for `recall`."""
        return {
            "open.table": self._table,
            "open.free": self._free,
            "open.slots": self._slot_of,
            "open.ends": self._end_of,
            "open.arrivals": np.array([self._arrivals]),
            "open.extents": np.array(self._layout.bounds, dtype=np.int64).reshape(-1, 3),
        }

    def taken_over(self, states: Sequence[State], keys: KeptKeys) -> State:
        """Return the open windows of several parents, of the keys that are kept, as one."""
        layouts = [replace_extents(self._layout, _extents_of(state)) for state in states]
        layout = self._layout
        for each in layouts:
            layout = layout.widened(each.bounds)
        tables, slots, ends = [layout.entry_identity[None, :]], [], []
        used = 1
        for state, own, kept in zip(states, layouts, keys.kept, strict=True):
            before, until = (
                np.pad(state[f"open.{name}"], (0, max(0, len(kept) - len(state[f"open.{name}"]))))
                for name in ("slots", "ends")
            )
            mine = before[: len(kept)][kept]
            is_open = mine != NOWHERE
            tables.append(reshaped(state["open.table"][mine[is_open]], own, layout, ENTRY_FIELDS))
            slots.append(np.where(is_open, used - 1 + np.cumsum(is_open), NOWHERE))
            ends.append(until[: len(kept)][kept])
            used += int(np.count_nonzero(is_open))
        return {
            "open.table": np.concatenate(tables),
            "open.free": np.zeros(0, dtype=np.int64),
            "open.slots": np.concatenate(slots),
            "open.ends": np.concatenate(ends),
            "open.arrivals": np.max([each["open.arrivals"] for each in states], axis=0),
            "open.extents": np.array(layout.bounds, dtype=np.int64).reshape(-1, 3),
        }

    def recall(self, state: State) -> None:
        """Restore what `state` returned."""
        table, free = state["open.table"], state["open.free"]
        slots, ends = state["open.slots"], state["open.ends"]
        used = np.concatenate([free, slots[slots != NOWHERE]])
        layout = replace_extents(self._layout, _extents_of(state))
        whole = table.dtype == np.int64 and table.shape[1:] == (layout.entry_width,)
        whole &= all(each.dtype == np.int64 and each.ndim == 1 for each in (free, slots, ends))
        if (
            not whole
            or len(slots) != len(ends)
            or len(np.unique(used)) < len(used)
            or not ((used > NOWHERE) & (used < len(table))).all()
        ):
            msg = "open windows share slots, or have slots that do not exist"
            raise ValueError(msg)
        self._table, self._free, self._slot_of, self._end_of = table, free, slots, ends
        self._layout = layout
        self._arrivals = int(state["open.arrivals"][0])

    def on_tuples(self, read: WindowTuples) -> tuple[Ints, Ints, pa.RecordBatch]:
        """Return (key number, end, answers) of the windows that end."""
        slots, emitted = self._slots(read)
        self._fold(read, slots[read.is_tuple])
        ended = slots[emitted]
        merged = np.ascontiguousarray(self._table[ended, ENTRY_FIELDS:])
        answers = [each.lower(merged, self._layout, self._types) for each in self._aggregates]
        columns = [
            answer.cast(field.type) if answer.type != field.type else answer
            for answer, field in zip(answers, self.result, strict=True)
        ]
        self._free = np.concatenate([self._free, ended])
        rows = pa.RecordBatch.from_arrays(columns, schema=self.result)
        return read.cells[emitted], read.times[emitted], rows

    def _slots(self, read: WindowTuples) -> tuple[Ints, Ints]:
        opens = int(np.count_nonzero(read.marks > 0))
        keys = int(read.cells.max(initial=-1)) + 1
        if keys > len(self._slot_of):
            more = np.zeros(max(keys, 2 * len(self._slot_of)) - len(self._slot_of), dtype=np.int64)
            self._slot_of = np.concatenate([self._slot_of, more])
            self._end_of = np.concatenate([self._end_of, more])
        if opens > len(self._free):
            known = len(self._table)
            fresh = np.tile(self._layout.entry_identity, (max(opens, known), 1))
            self._table = np.concatenate([self._table, fresh])
            self._free = np.concatenate([self._free, np.arange(known, len(self._table))])
        slots = np.empty(len(read), dtype=np.int64)
        opened = np.empty(opens, dtype=np.int64)
        emitted = np.empty(len(read), dtype=np.int64)
        left, opened_count, emits = obey_marks(
            read.cells, read.times, read.marks, self._slot_of, self._end_of,
            self._free, len(self._free), slots, opened, emitted,
        )  # fmt: skip
        self._free = self._free[:left]
        self._table[opened[:opened_count]] = self._layout.entry_identity
        return slots, emitted[:emits]

    def _fold(self, read: WindowTuples, slots: Ints) -> None:
        columns = {
            input_name(name): InputColumn(read.rows.column(name)) for name in read.rows.schema.names
        }
        if self._layout.needs_order:
            numbers = np.arange(self._arrivals, self._arrivals + len(slots))
            columns[TIME] = InputColumn(pa.array(read.times[read.is_tuple]))
            columns[ARRIVAL] = InputColumn(pa.array(numbers))
        self._arrivals += len(slots)
        before, self._layout = self._layout, measured(self._layout, columns, 0, len(slots))
        self._table = reshaped(self._table, before, self._layout, ENTRY_FIELDS)
        fold_fields(self._layout, self._table, ENTRY_FIELDS, slots, columns)
        self._table[NOWHERE] = self._layout.entry_identity


class WindowedUpdates:
    """Windows over an update stream: the newest window of every key, as fresh as possible."""

    def __init__(
        self,
        schema: pa.Schema,
        *,
        keys: Sequence[str],
        time: str,
        windows: UpdateWindows,
        aggregates: Sequence[Aggregate],
        by: Sequence[str] | None = None,
        schedule: Literal["inplace", "fifo"] = "inplace",
        pool: PagePool | None = None,
    ) -> None:
        """Create an operator without tuples.

        Args:
            schema: columns of the input.
            keys: columns of the update key.
            time: column of integers or timestamps that windows are over.
            windows: size and slide in the unit of the time column, and semantics.
            aggregates: columns of the answers.
            by: group-by columns, the key or more; by default the key.
            schedule: order of waiting groups.
            pool: where window buffers take their memory.
        """
        groups = tuple(keys if by is None else by)
        if not aggregates:
            msg = "an aggregate over windows needs at least one function"
            raise DefinitionError(msg)
        if not set(keys) <= set(groups):
            msg = (
                f"an aggregate over an update stream must group by its key {list(keys)}, and "
                f"optionally more, so that the key of each row is known; got {list(groups)}"
            )
            raise DefinitionError(msg)
        names = [*groups, START, END, *(each.alias for each in aggregates)]
        if len(set(names)) < len(names):
            msg = f"the columns of results need distinct names, got {names}: rename some"
            raise DefinitionError(msg)
        self._stream = UpdateStream(schema, tuple(keys), time)
        self._groups = groups
        self._spec = windows
        needed = {name for each in aggregates for name in each.columns}
        self._payload = pa.schema([field for field in schema if field.name in needed])
        self._queue = WindowQueue(self._payload, windows, schedule=schedule, pool=pool)
        self._operator = MarkedAggregate(self._payload, aggregates)
        self._codec = KeyCodec(pa.schema([schema.field(name) for name in groups]))
        self._known = self._codec.schema.empty_table()
        #: number of tuples processed
        self.processed = 0
        #: numbers of the keys whose windows the last call of `serve` committed to
        self.committed: Ints = np.zeros(0, dtype=np.int64)
        kind = schema.field(time).type
        bounds = [pa.field(START, kind), pa.field(END, kind)]
        columns = [*self._codec.schema, *bounds, *self._operator.result]
        #: group-by columns, which are the key of the results, bounds of the window, answers
        self.result = UpdateStream(pa.schema(columns), groups, END)

    @property
    def queue(self) -> WindowQueue:
        return self._queue

    @property
    def keys(self) -> int:
        return int(self._known.num_rows)

    @property
    def facts(self) -> dict[str, int]:
        """Return counters of the queue, and the number of open windows."""
        return {**self._queue.facts, "open": self._operator.open_windows}

    @property
    def next_end(self) -> int:
        """Return the first instant after the next window to end that has begun."""
        cells, windows = self._queue.table, self._spec
        begins = ((cells[:, z.CLOCK] + 1 - windows.size) // windows.slide + 1) * windows.slide
        begun = begins[begins <= cells[:, z.LAST]]
        return int(begun.min(initial=INFINITY - windows.size)) + windows.size

    @property
    def payload(self) -> pa.Schema:
        """Return the columns of waiting tuples, without group and time."""
        return self._payload

    def known(self, cells: Ints) -> list[pa.Array]:
        """Return the group-by columns of groups, given by number."""
        keys = self._known.take(pa.array(cells)).combine_chunks()
        return [_one_chunk(column) for column in keys.columns]

    def state(self) -> State:
        """Return the state outside the queue, which is in its own arrays, for `recall`."""
        return {**self._operator.state(), "keys": bytes_of(self._known)}

    def kept_keys(self, states: Sequence[State], keeps: IdRange) -> KeptKeys:
        """Return the groups of several parents whose keys are in a range."""
        found = []
        for state in states:
            known = table_of(state["keys"]).combine_chunks()
            batch = known.to_batches()[0] if known.num_rows else None
            found.append(
                np.empty(0, dtype=np.uint64)
                if batch is None
                else identity_of(batch, self._stream.keys)[0]
            )
        return KeptKeys([keeps.holds(each) for each in found])

    def without(self, before: int, least: int) -> tuple[KeptKeys, State] | None:
        """Return the groups that stay, and their state, if half of `least` or more can go.

        Those can go whose windows were all served, and which no window shares with a tuple from
        `before` on.
        """
        cells, windows = self._queue.table, self._spec
        last = cells[:, z.LAST]
        ends = last // windows.slide * windows.slide + windows.size
        idle = (cells[:, z.STATES] == 0) & (cells[:, z.FLYING] == z.NONE)
        idle &= (ends <= cells[:, z.CLOCK]) & (ends <= before)
        if 2 * np.count_nonzero(idle) < max(len(idle), least):
            return None
        kept = KeptKeys([~idle])
        return kept, self.taken_over([self.state()], kept)

    def taken_over(self, states: Sequence[State], keys: KeptKeys) -> State:
        """Return the states of several parents, of the groups that are kept, as one."""
        known = [
            table_of(state["keys"]).filter(pa.array(kept))
            for state, kept in zip(states, keys.kept, strict=True)
        ]
        names = {"keys": bytes_of(pa.concat_tables(known).combine_chunks())}
        return {**self._operator.taken_over(states, keys), **names}

    def recall(self, state: State) -> None:
        """Restore what `state` returned."""
        self._operator.recall(state)
        known = table_of(state["keys"])
        if known.schema != self._known.schema or known.num_rows != len(self._queue.table):
            msg = f"{known.num_rows} keys of windows, but {len(self._queue.table)} in the queue"
            raise ValueError(msg)
        self._known = known

    def enqueue(self, batch: pa.RecordBatch, arrived: Ints) -> None:
        """Add tuples, in the order of arrival."""
        times = self._stream.times(batch)
        id_high, id_low = identified(batch, self._groups)
        rows = batch.select(self._payload.names)
        cells = self._queue.cells(id_high, id_low)
        self._remember(batch, cells)
        self._queue.enqueue(id_high, id_low, times, arrived, rows)

    def advance(self, watermark: int) -> int:
        """End windows before a watermark, which no tuple precedes; return the updates by it."""
        if watermark == MINUS_INFINITY:
            return 0
        return self._queue.advance_all(watermark, watermark)

    def _remember(self, batch: pa.RecordBatch, cells: Ints) -> None:
        """Store the key columns of new keys, in the order of their numbers."""
        before = self._known.num_rows
        fresh = np.flatnonzero(cells >= before)
        if len(fresh):
            _, first = np.unique(cells[fresh], return_index=True)
            keys = self._codec.canonical(batch.take(pa.array(fresh[first])))
            self._known = pa.concat_tables([self._known, pa.Table.from_batches([keys])])

    def serve(self, count: int, most: int | None = None) -> pa.RecordBatch:
        """Process up to `count` tuples and return the windows that end with them, up to `most`."""
        read = self._queue.dequeue(count, most)
        self.processed += len(read)
        self.committed = read.cells[read.marks > 0]
        cells, ends, answers = self._operator.on_tuples(read)
        starts = ends - self._spec.size + 1
        kind = self.result.schema.field(END).type
        bounds = [pa.array(each).cast(kind) for each in (starts, ends)]
        columns = [*self.known(cells), *bounds, *answers.columns]
        return pa.RecordBatch.from_arrays(columns, schema=self.result.schema)


def _extents_of(state: State) -> list[SumExtent]:
    """Return the extents of sums in the open windows of a state."""
    return [SumExtent(low, high, bool(has)) for low, high, has in state["open.extents"].tolist()]


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
