"""The grouped sub-queries of one shard, run over the changes of a batch.

Idea: changes are pushed through the graph of steps in the order of their groups, a chunk at a time.
The output of a step goes to the next steps at once, so only the current chunks are in memory. Where
a grouping begins, small batches are collected into a chunk, because operators are efficient only on
many groups at once. Each grouping has its own store; the shard's cold state manager is informed of
what was touched and chooses, between two chunks, which groups to evict.

Invariants:
1. The output changes add up to the answer over the input changes, whatever the chunks
   (`test_oracle_a_graph_of_steps_adds_up_to_the_answer`).
2. Slots of a store are used only between two of its `begin`s
   (`test_a_store_begins_only_where_its_grouping_is_entered`).
3. `on_last_changes` of an operator is called only if no other changes of its groups can arrive
   (`test_oracle_operators_that_forget_early_say_the_same`).
4. Rows that a new watermark expires stay until the end of the version, because output that the
   watermark makes final may still join with them
   (`test_what_a_watermark_settles_meets_rows_that_it_expires`).
5. Groups that end in the version in which they arrive need no memory
   (`test_bounded_groups_that_pass_are_neither_opened_nor_written`).

Cost: a chunk of each grouping in memory, in addition to the stores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Mask
from icestream.core.errors import BudgetError
from icestream.core.times import MINUS_INFINITY, Micros
from icestream.operators.bad_rows import BadRows, mapped
from icestream.operators.dataflow.equal_events import EqualEvents
from icestream.operators.dataflow.join_step import JoinStores, Traces
from icestream.operators.dataflow.results import HeldRowBuffer, ResultBuffer
from icestream.operators.dataflow.sorted_changes import (
    INNER,
    apart,
    collected,
    first_and_last,
    gathered,
    nested,
    pieces,
    rows_of_group,
)
from icestream.operators.dataflow.spec import ComponentSpec
from icestream.operators.dataflow.steps import (
    Emit,
    JoinMany,
    Map,
    Merge,
    Receive,
    Regroup,
    Send,
    Sole,
    Stateful,
    Trace,
    regrouped,
    sent,
)
from icestream.operators.dataflow.stores import Stores
from icestream.operators.dataflow.transient_groups import TransientGroups, lasting
from icestream.operators.lifetimes.changes import LifetimeOperator, identities_of
from icestream.operators.lifetimes.edges import Edges
from icestream.operators.lifetimes.output_modes import NowOutput
from icestream.operators.lifetimes.rows_by_group import since
from icestream.operators.protocol import ChangeInputs, Emitted, PastVersion, Recoverable, Shard
from icestream.state.groups.spec import Groups

#: maximum number of rows that enter a grouping at once
CHUNK_ROWS = 65_536
#: number of rows that are worth a chunk
ENOUGH_ROWS = 16_384
#: how many changes of a chunk are sampled to estimate whether most groups are transient
SAMPLE = 64
#: each view in mode `changes` may buffer 1/HELD_BACK of the memory for changes
HELD_BACK = 4


@runtime_checkable
class Fusible(Protocol):
    """An operator that receives changes from others in the same task."""

    def take(self, edge: int, changes: pa.RecordBatch) -> Iterator[Emitted]:
        """Process changes before the watermark moves; more of the same groups may follow."""


class ComponentOperator:
    """Runs the steps of a component on the state of one shard."""

    def __init__(
        self,
        spec: ComponentSpec,
        shard: Shard,
        stores: Stores,
        now: Micros = MINUS_INFINITY,
    ) -> None:
        """Attach to the shard's state; `now` is the latest time of an event."""
        self._now = now
        self._spec = spec
        self._stores = stores
        self._header: dict[str, Any] = shard.arena.header
        self._header.setdefault("watermark", MINUS_INFINITY)
        self._inputs: ChangeInputs | None = None
        self._groups: dict[int, Groups] = {
            number: stores.groups(step.grouping, spec.places[number], len(step.operator.synopses))
            for number, step in enumerate(spec.steps)
            if isinstance(step, Stateful)
        }
        #: changes collected at the step that begins their grouping
        self._waiting: dict[int, list[pa.RecordBatch]] = {}
        #: the watermark of the version, and the steps that have received all their changes
        self._over = MINUS_INFINITY
        self._done: set[int] = set()
        #: whether the current chunk has all changes of its groups that one step receives, and
        #: steps with collected changes of groups some of whose changes were pushed before
        self._entire = False
        self._torn: set[int] = set()
        #: the routed bits of the last groups that changes were sent for inside others
        self._around = -1
        #: whether groups of the current chunk may bypass the store
        self._transient = False
        #: the room of a buffer, and those of views that need one
        self._held_back = stores.gathered_bytes // HELD_BACK
        self._buffer: dict[int, ResultBuffer | HeldRowBuffer] = {}
        for step in spec.steps:
            match step:
                case Emit(view=view) if spec.rows_of[view].mode == "changes":
                    self._buffer[view] = ResultBuffer(self._held_back)
                case Emit(view=view) if view in spec.by_key:
                    self._buffer[view] = HeldRowBuffer()
        self._equal = EqualEvents(spec.counted)
        self._traces = Traces(spec.steps, spec.partitions, spec.sample)
        self._dropped_before = self._dropped

    def on_batch(self, inputs: ChangeInputs) -> None:
        """Remember the inputs of the batch; they are read when the watermark is known."""
        self._inputs = inputs

    def take(self, edge: int, changes: pa.RecordBatch) -> Iterator[Emitted]:
        """Process changes from a component that is fused with this one; more may follow."""
        steps = enumerate(self._spec.steps)
        number = next(n for n, s in steps if isinstance(s, Receive) and s.edge == edge)
        before = self._header["watermark"]
        self._torn |= {number, *self._spec.behind[number]}
        yield from self._push_chunks(number, changes, before)

    def on_watermark(self, watermark: Micros) -> Iterator[Emitted]:
        """Push the changes of the batch through the steps, then the new watermark."""
        before = self._header["watermark"]
        if isinstance(self._stores, JoinStores):
            self._stores.spill()
        self._over = watermark
        self._done.clear()
        for number, edge in self._spec.received if self._inputs is not None else ():
            for changes in self._came(number, edge):
                yield from self._push_chunks(number, changes, before)
            yield from self._settle(before)
            self._done.add(number)
        self._entire = False
        for number, step in enumerate(self._spec.steps):
            if isinstance(step, Stateful):
                self._stores.begin(step.grouping, before)
                woken = self._woken(step.operator, self._groups[number], watermark)
                for made in _of_step(step.text, woken):
                    yield from self._pass_on(number, made, before)
                yield from self._settle(before)
                self._stores.rest()
            if isinstance(step, JoinMany) and isinstance(self._stores, JoinStores):
                self._traces.paused = True
                for made in self._stores.clean_up():
                    yield from self._pass_on(number, made, before)
                yield from self._settle(before)
                self._traces.paused = False
        for view, buffer in self._buffer.items():
            yield from self._rows(view, buffer.rest())
        self._header["watermark"] = watermark
        self._stores.end_version(watermark)

    @property
    def follows(self) -> bool:
        """Return whether groups are the only state: joins that defer have partitions."""
        return not isinstance(self._stores, JoinStores)

    def restore(self, history: Sequence[PastVersion]) -> None:
        self._stores.restore(history)
        if history:
            self._header["watermark"] = history[-1].watermark

    @property
    def took_snapshot(self) -> bool:
        return self._stores.took_snapshot

    @property
    def released(self) -> tuple[int, ...]:
        return self._stores.released

    @property
    def statistics(self) -> dict[str, Any]:
        return {
            **self._stores.statistics,
            **self._traces.statistics,
            "dropped": self._dropped - self._dropped_before,
        }

    @property
    def _dropped(self) -> int:
        operators = [step.operator for step in self._spec.steps if isinstance(step, Stateful)]
        return sum(each.dropped for each in operators if isinstance(each, Edges))

    def _changed(
        self,
        number: int,
        operator: LifetimeOperator,
        port: int,
        changes: pa.RecordBatch,
        watermark: Micros,
    ) -> Iterator[pa.RecordBatch]:
        """Return an operator's output for changes; it learns whether more can arrive."""
        if self._entire and self._is_last(number):
            return self._last_changes(number, operator, port, changes, watermark)
        return operator.on_changes(port, changes, self._groups[number], watermark)

    def _is_last(self, number: int) -> bool:
        """Return whether a step gets only the current chunk."""
        arrivals = self._spec.arrivals[number]
        if arrivals is None:
            return False
        return sum(ways for step, ways in arrivals.items() if step not in self._done) == 1

    def _last_changes(
        self,
        number: int,
        operator: LifetimeOperator,
        port: int,
        changes: pa.RecordBatch,
        watermark: Micros,
    ) -> Iterator[pa.RecordBatch]:
        """Yield an operator's output for all changes of their groups; some groups are transient."""
        over, stays = self._over, np.ones(changes.num_rows, dtype=np.bool_)
        if self._transient:
            stays = self._staying(self._spec.steps[number].grouping, changes, watermark)
        if not stays.all():
            transient = changes.filter(pa.array(~stays))
            groups = TransientGroups(transient, operator.synopses)
            yield from operator.on_last_changes(port, transient, groups, watermark, over)
            changes = changes.filter(pa.array(stays))
        if changes.num_rows:
            kept = self._groups[number]
            yield from operator.on_last_changes(port, changes, kept, watermark, over)

    def _staying(self, grouping: int, changes: pa.RecordBatch, watermark: Micros) -> Mask:
        """Return which changes belong to groups that have, or may get, state."""
        if self._over <= watermark:
            return np.ones(changes.num_rows, dtype=np.bool_)
        stays = lasting(changes, self._over)
        unsure = np.flatnonzero(~stays)
        if len(unsure):
            id_high, id_low = (each[unsure] for each in identities_of(changes))
            stays[unsure] = self._stores.knows(grouping, id_high, id_low)
        return stays

    def _may_pass(self, number: int, changes: pa.RecordBatch, watermark: Micros) -> bool:
        """Return whether groups that enter at a step leave no state when they end, and most end.

        Looking up a group costs about as much as opening it, so a few are sampled first.
        """
        steps, grouping = self._spec.passed[number], self._spec.steps[number].grouping
        if not steps or number in self._torn or not all(map(self._is_last, steps)):
            return False
        count = int(changes.num_rows)
        chosen = np.arange(0, count, max(1, count // SAMPLE))
        stays = self._staying(grouping, changes.take(pa.array(chosen)), watermark)
        return 2 * int(np.count_nonzero(stays)) < len(chosen)

    def _came(self, number: int, edge: int) -> Iterator[pa.RecordBatch]:
        """Yield the changes of an edge, as many at a time as fit into memory."""
        assert self._inputs is not None
        buffers = sum(isinstance(each, ResultBuffer) for each in self._buffer.values())
        room = self._stores.gathered_bytes - buffers * self._held_back
        if isinstance(self._stores, JoinStores):
            return collected(self._inputs, edge, room)
        spec = self._spec
        timed, inside = number in spec.timed, number in spec.entered
        return gathered(self._inputs, edge, room, timed=timed, inside=inside)

    def _woken(
        self, operator: LifetimeOperator, groups: Groups, watermark: Micros
    ) -> Iterator[pa.RecordBatch]:
        """Return the output of an operator at the end of the version."""
        if isinstance(operator, NowOutput):
            return operator.on_instant(groups, self._now)
        return operator.on_watermark(groups, watermark)

    def _rows(self, view: int, batches: Iterable[pa.RecordBatch]) -> Iterator[Emitted]:
        for changes in batches:
            if changes.num_rows:
                for rows in self._spec.rows_of[view](changes):
                    yield view, rows

    # -- pushing ---------------------------------------------------------------------------

    def _enter(self, number: int, changes: pa.RecordBatch, watermark: Micros) -> Iterator[Emitted]:
        """Collect changes at a step that begins a grouping; push them if there are too many."""
        self._waiting.setdefault(number, []).append(changes)
        if not self._entire:
            self._torn.add(number)
        if self._rows_waiting(number) >= CHUNK_ROWS:
            chunk = self._entire, self._transient
            self._torn |= {number, *self._spec.behind[number]}
            yield from self._push_waiting(number, watermark)
            self._entire, self._transient = chunk

    def _settle(self, watermark: Micros) -> Iterator[Emitted]:
        """Push the collected changes in the order of the graph, the most changes first.

        What operators want first comes before. If few changes join with many, as requests do with
        the data they ask for, the few then see the data as it is now.
        """
        while self._waiting:
            behind = {step for each in self._waiting for step in self._spec.behind[each]}
            first = [each for each in sorted(self._waiting) if each not in behind]
            ahead = [each for each in first if each in self._spec.ahead]
            yield from self._push_waiting(max(ahead or first, key=self._rows_waiting), watermark)
        self._torn.clear()

    def _settle_enough(self, watermark: Micros) -> Iterator[Emitted]:
        """Push the collected changes if they are worth a chunk."""
        if any(self._rows_waiting(number) >= ENOUGH_ROWS for number in self._waiting):
            yield from self._settle(watermark)

    def _rows_waiting(self, number: int) -> int:
        return sum(each.num_rows for each in self._waiting[number])

    def _push_waiting(self, number: int, watermark: Micros) -> Iterator[Emitted]:
        together = pa.concat_batches(self._waiting.pop(number))
        yield from self._push_chunks(number, together, watermark)

    def _push_chunks(
        self, number: int, changes: pa.RecordBatch, watermark: Micros
    ) -> Iterator[Emitted]:
        """Push changes that enter a grouping, a chunk at a time."""
        if isinstance(self._stores, JoinStores):
            # a join splits its input itself, in any order
            yield from self._pass_on(number, changes, watermark)
            return
        received = isinstance(self._spec.steps[number], Receive)
        inside = number in self._spec.entered
        number = self._spec.entered.get(number, number)
        step = self._spec.steps[number]
        if received and self._spec.forgets_past:
            changes = since(changes, self._now)
        if inside and changes.num_rows:
            # no more changes come for the groups around those that were pushed before
            first, last = first_and_last(changes)
            if first >> INNER != self._around:
                yield from self._settle_enough(watermark)
            self._around = last >> INNER
        most = self._stores.chunk_groups(step.grouping)
        rows = max(1, CHUNK_ROWS // 2) if received and self._spec.begins else CHUNK_ROWS
        transient = self._may_pass(number, changes, watermark)
        counted = partial(self._staying, step.grouping, watermark=watermark) if transient else None
        cut = partial(pieces, rows=rows, groups=most, counted=counted)
        #: rows so far of groups with more rows than a chunk has
        pushed: Counter[int] = Counter()
        for chunk, entire, is_end in nested(changes, rows, cut) if inside else apart(changes, cut):
            self._entire = entire and number not in self._torn
            self._transient = transient
            if not self._entire:
                self._torn |= self._spec.behind[number]
            self._stores.begin(step.grouping, watermark)
            try:
                yield from self._pass_on(number, chunk, watermark)
            except BudgetError as error:
                if not entire:
                    # the group will be read again when it has the rows of all its chunks
                    group, _ = first_and_last(chunk)
                    before = pushed[group] or chunk.num_rows
                    error.needed = error.needed * rows_of_group(changes, group) // before
                raise
            if not entire:
                pushed[first_and_last(chunk)[0]] += chunk.num_rows
            self._stores.rest()
            if received and is_end:
                yield from self._settle_enough(watermark)

    def _pass_on(self, number: int, made: pa.RecordBatch, watermark: Micros) -> Iterator[Emitted]:
        """Pass the output of a step to the next steps; rows that it refused leave at once."""
        if isinstance(made, BadRows):
            yield 0, made
            return
        if made.num_rows == 0:
            return
        for consumer, port in self._spec.consumers[number]:
            yield from self._push(consumer, port, made, watermark)

    def _push(
        self, number: int, port: int, changes: pa.RecordBatch, watermark: Micros
    ) -> Iterator[Emitted]:
        match step := self._spec.steps[number]:
            case Map():
                for made in mapped(step.text, changes, step.change):
                    if not isinstance(made, BadRows):
                        made = self._equal.counted(number, made)  # noqa: PLW2901
                    yield from self._pass_on(number, made, watermark)
            case Merge():
                yield from self._pass_on(number, changes, watermark)
            case Regroup():
                yield from self._enter(
                    number,
                    regrouped(changes, step.keys, inside=self._spec.inner_ids),
                    watermark,
                )
            case Stateful():
                changed = self._changed(number, step.operator, port, changes, watermark)
                for made in _of_step(step.text, changed):
                    yield from self._pass_on(number, made, watermark)
            case JoinMany():
                assert isinstance(self._stores, JoinStores)
                for made in self._stores.join.on_changes(port, changes):
                    yield from self._pass_on(number, made, watermark)
            case Trace():
                self._traces.note(number, changes)
                yield from self._pass_on(number, changes, watermark)
            case Send():
                inside = self._spec.inside.get(step.edge)
                yield -1 - step.edge, sent(changes, step.keys, step.payload, inside)
            case Emit():
                buffer = self._buffer.get(step.view)
                emitted = [changes] if buffer is None else buffer.take(changes)
                yield from self._rows(step.view, emitted)
            case Receive() | Sole():
                msg = "this step gets changes only from outside"
                raise AssertionError(msg)


def _of_step(text: str, made: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the output of a step; a BudgetError names the step that needs the memory."""
    try:
        yield from made
    except BudgetError as error:
        named = BudgetError(f"the step {text!r}: {error}")
        named.needed = error.needed
        raise named from error


class StepWithState(Recoverable, Protocol):
    """What such a step does."""

    def run(self, inputs: ChangeInputs | None, watermark: Micros) -> Iterator[pa.RecordBatch]:
        """Process the inputs of a batch, and a watermark; yield what is final."""


class SoleStepComponent(ComponentOperator):
    """Runs a step with its own state, and the steps after it.

    Frames over events, and the place where their results meet, store neither groups nor rows by
    group: such a step takes the place of a component's stores, and reads the input itself.
    """

    def __init__(self, spec: ComponentSpec, shard: Shard, state: StepWithState) -> None:
        super().__init__(spec, shard, cast("Stores", state))
        self._state = state

    def on_watermark(self, watermark: Micros) -> Iterator[Emitted]:
        number = self._spec.sole_number
        for made in self._state.run(self._inputs, watermark):
            yield from self._pass_on(number, made, watermark)
        for view, buffer in self._buffer.items():
            yield from self._rows(view, buffer.rest())

    @property
    def follows(self) -> bool:
        return False

    def restore(self, history: Sequence[PastVersion]) -> None:
        self._state.restore(history)
