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
3. Rows that a new watermark expires stay until the version is over, because what it settles may
   still meet them further on (`test_what_a_watermark_settles_meets_rows_that_it_expires`).

Cost: a chunk of each grouping in memory beside the stores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import pyarrow as pa

from icestream.core.times import MINUS_INFINITY, Micros
from icestream.operators.dataflow.gathering import gathered
from icestream.operators.dataflow.joining import JOINED, JoinStores
from icestream.operators.dataflow.steps import (
    Emit,
    JoinMany,
    Map,
    Merge,
    Receive,
    Regroup,
    Send,
    Stateful,
    Step,
    Trace,
    consumers,
    pieces,
    regrouped,
)
from icestream.operators.dataflow.traces import Traces
from icestream.operators.multi_join.spec import MultiJoinSpec
from icestream.operators.protocol import ChangeInputs, Emitted, PastVersion, Shard
from icestream.state.synopses.options import lifetimes
from icestream.state.synopses.spec import Groups, Synopsis
from icestream.state.versions import BASE

#: rows that enter a grouping at once, at most
CHUNK_ROWS = 65_536
#: rows that are worth a chunk
ENOUGH_ROWS = 16_384


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


@dataclass(frozen=True)
class ComponentSpec:
    """The steps of a component."""

    steps: tuple[Step, ...]
    #: what becomes a result row of the changes of each view
    rows_of: tuple[Callable[[pa.RecordBatch], pa.RecordBatch], ...]
    #: partitions of joins, and the part of the rows that is traced to them
    partitions: int = 1
    sample: float = 1.0

    @property
    def lifetimes(self) -> tuple[str, ...]:
        """Return the lifetime classes of a shard's segments."""
        kept = lifetimes(len(self.groupings)) if self.join is None else (JOINED,)
        return (*kept, BASE)

    @cached_property
    def join(self) -> MultiJoinSpec | None:
        """Return the join that may defer results, if this is its component."""
        return next((step.spec for step in self.steps if isinstance(step, JoinMany)), None)

    @cached_property
    def groupings(self) -> tuple[tuple[Synopsis, ...], ...]:
        """Return the synopses of each grouping."""
        count = 1 + max(step.grouping for step in self.steps)
        synopses: list[list[Synopsis]] = [[] for _ in range(count)]
        for step in self.steps:
            if isinstance(step, Stateful):
                synopses[step.grouping] += step.operator.synopses
        return tuple(map(tuple, synopses))

    @cached_property
    def places(self) -> tuple[int, ...]:
        """Return for each step the number of its first synopsis in its grouping's store."""
        used = [0] * len(self.groupings)
        places = []
        for step in self.steps:
            places.append(used[step.grouping])
            if isinstance(step, Stateful):
                used[step.grouping] += len(step.operator.synopses)
        return tuple(places)

    @cached_property
    def consumers(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Return who takes the changes of each step."""
        return consumers(self.steps)


class ComponentOperator:
    """Runs the steps of a component on the state of one shard."""

    def __init__(self, spec: ComponentSpec, shard: Shard, stores: Stores) -> None:
        """Attach to the shard's state."""
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
        self._traces = Traces(spec.steps, spec.partitions, spec.sample)

    def on_batch(self, inputs: ChangeInputs) -> None:
        """Remember what the batch brought; it is read when the watermark is known."""
        self._inputs = inputs

    def on_watermark(self, watermark: Micros) -> Iterator[Emitted]:
        """Push the changes of the batch through the steps, then the new watermark."""
        before = self._header["watermark"]
        if isinstance(self._stores, JoinStores):
            self._stores.spill()
        for number, step in enumerate(self._spec.steps):
            if isinstance(step, Receive) and self._inputs is not None:
                room = self._stores.gathered_bytes
                for changes in gathered(self._inputs, step.edge, room):
                    yield from self._push_chunks(number, changes, before)
        yield from self._settle(before)
        for number, step in enumerate(self._spec.steps):
            if isinstance(step, Stateful):
                self._stores.begin(step.grouping, before)
                for made in step.operator.on_watermark(self._groups[number], watermark):
                    yield from self._pass_on(number, made, before)
                yield from self._settle(before)
                self._stores.rest()
            if isinstance(step, JoinMany) and isinstance(self._stores, JoinStores):
                for made in self._stores.clean_up():
                    yield from self._pass_on(number, made, before)
                yield from self._settle(before)
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

    # -- pushing ---------------------------------------------------------------------------

    def _enter(self, number: int, changes: pa.RecordBatch, watermark: Micros) -> Iterator[Emitted]:
        """Collect changes at a step that begins a grouping; push them on once they are enough."""
        waiting = self._waiting.setdefault(number, [])
        waiting.append(changes)
        if sum(each.num_rows for each in waiting) >= ENOUGH_ROWS:
            yield from self._push_waiting(number, watermark)

    def _settle(self, watermark: Micros) -> Iterator[Emitted]:
        """Push on what still waits, groupings that are entered first before those inside them."""
        while self._waiting:
            yield from self._push_waiting(min(self._waiting), watermark)

    def _push_waiting(self, number: int, watermark: Micros) -> Iterator[Emitted]:
        together = pa.concat_batches(self._waiting.pop(number))
        yield from self._push_chunks(number, together, watermark)

    def _push_chunks(
        self, number: int, changes: pa.RecordBatch, watermark: Micros
    ) -> Iterator[Emitted]:
        """Push changes that enter a grouping, a chunk at a time."""
        step = self._spec.steps[number]
        most = self._stores.chunk_groups(step.grouping)
        for chunk in pieces(changes, CHUNK_ROWS, most):
            self._stores.begin(step.grouping, watermark)
            yield from self._pass_on(number, chunk, watermark)
            self._stores.rest()

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
                groups = self._groups[number]
                for made in step.operator.on_changes(port, changes, groups, watermark):
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
                yield step.view, self._spec.rows_of[step.view](changes)
            case Receive():
                msg = "changes come to a Receive step from outside only"
                raise AssertionError(msg)
