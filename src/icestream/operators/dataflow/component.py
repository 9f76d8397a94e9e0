"""The grouped sub-queries of one shard, run over the changes of a batch.

Idea: changes are pushed through the graph of steps in the order of their groups, a chunk at a time:
what a step yields goes to the steps after it at once, so only chunks under way are in memory. Where
a grouping begins, small batches are collected to a chunk: operators work on many groups at once
or not at all. Each grouping has a store of its own; the cold state manager of the shard is
told what was touched and says between two chunks which groups leave memory.

Invariants:
1. The changes that leave add up to the answer over the changes that came, whatever the chunks
   (`test_oracle_a_graph_of_steps_adds_up_to_the_answer`).
2. Slots of a store are used only between two of its `begin`s
   (`test_a_store_begins_only_where_its_grouping_is_entered`).
3. An operator is told that no other changes of its groups come only if none do
   (`test_oracle_operators_that_forget_early_say_the_same`).
4. Rows that a new watermark expires stay until the version is over, because what it settles may
   still meet them further on (`test_what_a_watermark_settles_meets_rows_that_it_expires`).
5. Groups that are over in the version that brings them need no room
   (`test_bounded_groups_that_pass_are_neither_opened_nor_written`).

Cost: a chunk of each grouping in memory beside the stores.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ids, Mask
from icestream.core.times import MINUS_INFINITY, Micros
from icestream.operators.dataflow.join_step import JoinStores
from icestream.operators.dataflow.join_traces import Traces
from icestream.operators.dataflow.results import ResultBuffer
from icestream.operators.dataflow.sorted_changes import collected, gathered, pieces
from icestream.operators.dataflow.spec import ComponentSpec
from icestream.operators.dataflow.steps import (
    Emit,
    JoinMany,
    Map,
    Merge,
    Receive,
    Regroup,
    Send,
    Stateful,
    Trace,
    regrouped,
)
from icestream.operators.dataflow.transient_groups import TransientGroups, lasting
from icestream.operators.lifetimes.changes import LifetimeOperator, PromptOperator, identities_of
from icestream.operators.lifetimes.complete_mode import CompleteOutput
from icestream.operators.protocol import ChangeInputs, Emitted, PastVersion, Shard
from icestream.state.groups.spec import Groups

#: rows that enter a grouping at once, at most
CHUNK_ROWS = 65_536
#: rows that are worth a chunk
ENOUGH_ROWS = 16_384
#: changes of a chunk that are looked at to tell whether most groups pass
SAMPLE = 64
#: part of the room for changes in which each view that tells changes adds them up
HELD_BACK = 4


class Stores(Protocol):
    """The state of all groupings of a component in one shard."""

    def groups(self, grouping: int, first: int, count: int) -> Groups:
        """Return the synopses of one operator, numbered from 0."""
        ...

    @property
    def gathered_bytes(self) -> int:
        """Return the bytes of changes that may be put in the order of groups at once."""
        ...

    def begin(self, grouping: int, watermark: Micros) -> None:
        """Begin a chunk of a grouping."""
        ...

    def chunk_groups(self, grouping: int) -> int:
        """Return how many groups a chunk of a grouping may name."""
        ...

    def knows(self, grouping: int, hi: Ids, lo: Ids) -> Mask:
        """Tell of which groups of a grouping there may be something kept."""
        ...

    def rest(self) -> None:
        """Let cold groups leave, between two chunks of the batch."""
        ...

    def end_version(self, watermark: Micros) -> None:
        """Write what is new to the log."""
        ...

    def restore(self, history: Sequence[PastVersion]) -> None:
        """Come back to the end of a history."""
        ...

    @property
    def took_snapshot(self) -> bool:
        """Tell whether the version just written stands without those before it."""
        ...

    @property
    def released(self) -> tuple[int, ...]:
        """Return ordinals of segments that nothing needs any more."""
        ...

    @property
    def statistics(self) -> dict[str, Any]:
        """Return what the progress report tells."""
        ...


@runtime_checkable
class Fusible(Protocol):
    """An operator that others in the same task hand changes to."""

    def take(self, edge: int, changes: pa.RecordBatch) -> Iterator[Emitted]:
        """Push changes on, before the watermark moves; more of the same groups may follow."""
        ...


class ComponentOperator:
    """Runs the steps of a component on the state of one shard."""

    def __init__(self, spec: ComponentSpec, shard: Shard, stores: Stores, version: int = 0) -> None:
        """Attach to the shard's state, for a version."""
        self._version = version
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
        #: changes that wait at the step that begins their grouping
        self._waiting: dict[int, list[pa.RecordBatch]] = {}
        #: the watermark that the version reaches, and steps all of whose changes were received
        self._over = MINUS_INFINITY
        self._done: set[int] = set()
        #: whether the chunk under way has all changes of its groups that one step receives, and
        #: steps where groups wait of which some changes went on before
        self._entire = False
        self._torn: set[int] = set()
        #: whether groups of the chunk under way may pass the store
        self._passing = False
        self._telling = {
            step.view: ResultBuffer(stores.gathered_bytes // HELD_BACK)
            for step in spec.steps
            if isinstance(step, Emit) and spec.rows_of[step.view].mode == "update"
        }
        self._traces = Traces(spec.steps, spec.partitions, spec.sample)

    def on_batch(self, inputs: ChangeInputs) -> None:
        """Remember what the batch brought; it is read when the watermark is known."""
        self._inputs = inputs

    def take(self, edge: int, changes: pa.RecordBatch) -> Iterator[Emitted]:
        """Push changes on that a component fused with this one sends; more may follow."""
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
                for made in self._woken(step.operator, self._groups[number], watermark):
                    yield from self._pass_on(number, made, before)
                yield from self._settle(before)
                self._stores.rest()
            if isinstance(step, JoinMany) and isinstance(self._stores, JoinStores):
                for made in self._stores.clean_up():
                    yield from self._pass_on(number, made, before)
                yield from self._settle(before)
        for view, telling in self._telling.items():
            yield from self._rows(view, telling.rest())
        self._header["watermark"] = watermark
        self._stores.end_version(watermark)

    def restore(self, history: Sequence[PastVersion]) -> None:
        """Come back to the end of `history`."""
        self._stores.restore(history)
        if history:
            self._header["watermark"] = history[-1].watermark

    @property
    def took_snapshot(self) -> bool:
        """Tell whether the version just written stands without those before it."""
        return self._stores.took_snapshot

    @property
    def released(self) -> tuple[int, ...]:
        """Return ordinals of segments that nothing needs any more."""
        return self._stores.released

    @property
    def statistics(self) -> dict[str, Any]:
        """Return what the progress report tells of this shard."""
        return {**self._stores.statistics, **self._traces.statistics}

    def _changed(
        self,
        number: int,
        operator: LifetimeOperator,
        port: int,
        changes: pa.RecordBatch,
        watermark: Micros,
    ) -> Iterator[pa.RecordBatch]:
        """Return what an operator makes of changes; it is told if no others can come."""
        if self._entire and self._is_last(number):
            prompt = self._spec.prompt[number]
            return self._last_changes(number, prompt, port, changes, watermark)
        return operator.on_changes(port, changes, self._groups[number], watermark)

    def _is_last(self, number: int) -> bool:
        """Tell whether a step can only get what it gets in the chunk under way, and takes that."""
        arrivals = self._spec.arrivals[number]
        if arrivals is None or number not in self._spec.prompt:
            return False
        return sum(ways for step, ways in arrivals.items() if step not in self._done) == 1

    def _last_changes(
        self,
        number: int,
        operator: PromptOperator,
        port: int,
        changes: pa.RecordBatch,
        watermark: Micros,
    ) -> Iterator[pa.RecordBatch]:
        """Yield what an operator makes of all changes of their groups; some groups only pass."""
        over, stays = self._over, np.ones(changes.num_rows, dtype=np.bool_)
        if self._passing:
            stays = self._staying(self._spec.steps[number].grouping, changes, watermark)
        if not stays.all():
            passing = changes.filter(pa.array(~stays))
            groups = TransientGroups(passing, operator.synopses)
            yield from operator.on_last_changes(port, passing, groups, watermark, over)
            changes = changes.filter(pa.array(stays))
        if changes.num_rows:
            kept = self._groups[number]
            yield from operator.on_last_changes(port, changes, kept, watermark, over)

    def _staying(self, grouping: int, changes: pa.RecordBatch, watermark: Micros) -> Mask:
        """Tell which changes are of groups of which something is, or may be, kept."""
        if self._over <= watermark:
            return np.ones(changes.num_rows, dtype=np.bool_)
        stays = lasting(changes, self._over)
        unsure = np.flatnonzero(~stays)
        if len(unsure):
            hi, lo = (each[unsure] for each in identities_of(changes))
            stays[unsure] = self._stores.knows(grouping, hi, lo)
        return stays

    def _may_pass(self, number: int, changes: pa.RecordBatch, watermark: Micros) -> bool:
        """Tell whether groups that enter at a step keep nothing once they are over, and most are.

        Looking for each group costs about as much as opening it, so a few are looked for first.
        """
        steps, grouping = self._spec.passed[number], self._spec.steps[number].grouping
        if not steps or number in self._torn or not all(map(self._is_last, steps)):
            return False
        count = int(changes.num_rows)
        chosen = np.arange(0, count, max(1, count // SAMPLE))
        stays = self._staying(grouping, changes.take(pa.array(chosen)), watermark)
        return 2 * int(np.count_nonzero(stays)) < len(chosen)

    def _came(self, number: int, edge: int) -> Iterator[pa.RecordBatch]:
        """Yield the changes that an edge brought, as many at a time as there is room for."""
        assert self._inputs is not None
        room = self._stores.gathered_bytes
        room -= len(self._telling) * (room // HELD_BACK)
        if isinstance(self._stores, JoinStores):
            return collected(self._inputs, edge, room)
        return gathered(self._inputs, edge, room, timed=number in self._spec.timed)

    def _woken(
        self, operator: LifetimeOperator, groups: Groups, watermark: Micros
    ) -> Iterator[pa.RecordBatch]:
        """Return what an operator has to say at the end of the version."""
        if isinstance(operator, CompleteOutput):
            return operator.on_version(groups, watermark, self._version)
        return operator.on_watermark(groups, watermark)

    def _rows(self, view: int, batches: Iterable[pa.RecordBatch]) -> Iterator[Emitted]:
        """Return changes as rows of a view."""
        for changes in batches:
            if changes.num_rows:
                for rows in self._spec.rows_of[view](changes):
                    yield view, rows

    # -- pushing ---------------------------------------------------------------------------

    def _enter(self, number: int, changes: pa.RecordBatch, watermark: Micros) -> Iterator[Emitted]:
        """Collect changes at a step that begins a grouping; push them on if they are too many."""
        self._waiting.setdefault(number, []).append(changes)
        if not self._entire:
            self._torn.add(number)
        if self._rows_waiting(number) >= CHUNK_ROWS:
            chunk = self._entire, self._passing
            self._torn |= {number, *self._spec.behind[number]}
            yield from self._push_waiting(number, watermark)
            self._entire, self._passing = chunk

    def _settle(self, watermark: Micros) -> Iterator[Emitted]:
        """Push on what still waits, nothing before what leads to it, the most changes first.

        Few changes that meet many, as requests do what they ask for, meet them as they are now.
        """
        while self._waiting:
            behind = {step for each in self._waiting for step in self._spec.behind[each]}
            first = [each for each in sorted(self._waiting) if each not in behind]
            yield from self._push_waiting(max(first, key=self._rows_waiting), watermark)
        self._torn.clear()

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
            # a join cuts what comes by itself, in any order
            yield from self._pass_on(number, changes, watermark)
            return
        step = self._spec.steps[number]
        received = isinstance(step, Receive)
        most = self._stores.chunk_groups(step.grouping)
        rows = max(1, CHUNK_ROWS // 2) if received and self._spec.begins else CHUNK_ROWS
        passing = self._may_pass(number, changes, watermark)
        counted = partial(self._staying, step.grouping, watermark=watermark) if passing else None
        for chunk, entire in pieces(changes, rows, most, counted):
            self._entire = entire and number not in self._torn
            self._passing = passing
            if not self._entire:
                self._torn |= self._spec.behind[number]
            self._stores.begin(step.grouping, watermark)
            yield from self._pass_on(number, chunk, watermark)
            self._stores.rest()
            if received and any(self._rows_waiting(n) >= ENOUGH_ROWS for n in self._waiting):
                yield from self._settle(watermark)

    def _pass_on(self, number: int, made: pa.RecordBatch, watermark: Micros) -> Iterator[Emitted]:
        """Hand what a step made to the steps after it."""
        if made.num_rows == 0:
            return
        for consumer, port in self._spec.consumers[number]:
            yield from self._push(consumer, port, made, watermark)

    def _push(
        self, number: int, port: int, changes: pa.RecordBatch, watermark: Micros
    ) -> Iterator[Emitted]:
        match step := self._spec.steps[number]:
            case Map():
                yield from self._pass_on(number, step.change(changes), watermark)
            case Merge():
                yield from self._pass_on(number, changes, watermark)
            case Regroup():
                yield from self._enter(number, regrouped(changes, step.keys), watermark)
            case Stateful():
                for made in self._changed(number, step.operator, port, changes, watermark):
                    yield from self._pass_on(number, made, watermark)
            case JoinMany():
                assert isinstance(self._stores, JoinStores)
                for made in self._stores.join.on_changes(port, changes):
                    yield from self._pass_on(number, made, watermark)
            case Trace():
                self._traces.note(number, changes)
                yield from self._pass_on(number, changes, watermark)
            case Send():
                yield -1 - step.edge, regrouped(changes, step.keys)
            case Emit():
                telling = self._telling.get(step.view)
                told = [changes] if telling is None else telling.take(changes)
                yield from self._rows(step.view, told)
            case Receive():
                msg = "changes come to a Receive step from outside only"
                raise AssertionError(msg)
