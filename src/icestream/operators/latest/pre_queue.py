"""Operators on update streams before the queue: a tree of filters, maps, unions and joins.

Idea: rows of all inputs arrive in one stream, each with the number of its input; columns of other
inputs are null. Every node of the tree passes on all updates, in time order. Only the queue behind
the tree reduces them to the newest of a key, and only windows behind it decide which to skip. So
each node is exact whatever follows, and trees can be combined at will.

Invariants:
1. The row served in the end is the newest row that the tree produces for each key, also over
   restarts at any batch (`test_oracle_the_newest_match_of_every_key_is_served`,
   `test_oracle_trees_before_the_queue_beside_the_plain_answer`).
2. Rows that a tree produces for a key never go back in time (the same tests).

Cost: that of the operators; all updates are exchanged and logged, because a later node may need
any.

Limits: all streams of a tree have the same key.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from icestream.core.errors import DefinitionError
from icestream.core.times import Micros
from icestream.core.units import format_interval
from icestream.operators.latest.coalescing import ORIGIN, NewestUpdates, folded
from icestream.operators.latest.join import UpdateJoin
from icestream.operators.latest.rowwise import Stateless, UpdateFilter, UpdateMap
from icestream.operators.latest.saved_arrays import SavedArrays, State
from icestream.operators.latest.union import UpdateUnion
from icestream.operators.latest.update_stream import UpdateStream
from icestream.operators.protocol import Shard
from icestream.state.identities import IdRange

#: how far a row may be behind the newest one of its side of a join, unless the query says
LATENESS = 3_600_000_000


class _Sorted(Stateless):
    """The rows of an input, sorted by time."""

    def __init__(self, stream: UpdateStream) -> None:
        self.result = stream

    def on_batch(self, inputs: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        order = np.argsort(self.result.times(inputs[0]), kind="stable")
        return inputs[0].take(pa.array(order))


#: a running node
PreQueueStep = _Sorted | UpdateFilter | UpdateMap | UpdateUnion | UpdateJoin


@dataclass(frozen=True)
class PreQueueInput:
    """The rows of some inputs."""

    numbers: tuple[int, ...]
    stream: UpdateStream
    sources: tuple[PreQueueNode, ...] = ()

    def describe(self) -> dict[str, Any]:
        columns = [f"{each.name} {each.type}" for each in self.stream.schema]
        return {"inputs": list(self.numbers), "time": self.stream.time, "columns": columns}

    def runner(self) -> PreQueueStep:
        return _Sorted(self.stream)


class _Computed(ABC):
    """A node whose stream is that of its operator."""

    @property
    def stream(self) -> UpdateStream:
        return self.runner().result

    @abstractmethod
    def runner(self) -> PreQueueStep: ...


@dataclass(frozen=True)
class PreQueueFilter(_Computed):
    """The rows of a stream that meet a condition."""

    over: PreQueueNode
    condition: str
    zone: str = "UTC"

    @property
    def sources(self) -> tuple[PreQueueNode, ...]:
        return (self.over,)

    def describe(self) -> dict[str, Any]:
        return {"where": self.condition}

    def runner(self) -> PreQueueStep:
        return UpdateFilter(self.over.stream, self.condition, zone=self.zone)


@dataclass(frozen=True)
class PreQueueMap(_Computed):
    """A stream with other columns; key and time do not change."""

    over: PreQueueNode
    columns: tuple[str, ...]
    zone: str = "UTC"

    @property
    def sources(self) -> tuple[PreQueueNode, ...]:
        return (self.over,)

    def describe(self) -> dict[str, Any]:
        return {"select": list(self.columns)}

    def runner(self) -> PreQueueStep:
        return UpdateMap(self.over.stream, self.columns, zone=self.zone)


@dataclass(frozen=True)
class PreQueueUnion(_Computed):
    """The union of streams; no key ever goes back in time."""

    sources: tuple[PreQueueNode, ...]
    #: numbers of the streams, the most trusted first
    truth: tuple[int, ...]

    def describe(self) -> dict[str, Any]:
        return {"union": list(self.truth)}

    def runner(self) -> PreQueueStep:
        return UpdateUnion([each.stream for each in self.sources], self.truth)


@dataclass(frozen=True)
class PreQueueJoin(_Computed):
    """The join of two update streams on their key."""

    left: PreQueueNode
    right: PreQueueNode
    within: Micros
    condition: str | None = None
    zone: str = "UTC"
    #: how far a row may be behind the newest one of its side and find all matches
    lateness: Micros = LATENESS

    @property
    def sources(self) -> tuple[PreQueueNode, ...]:
        return self.left, self.right

    def describe(self) -> dict[str, Any]:
        return {
            "join": format_interval(self.within),
            "condition": self.condition,
            "lateness": format_interval(self.lateness),
        }

    def runner(self) -> PreQueueStep:
        return UpdateJoin(
            self.left.stream,
            self.right.stream,
            within=self.within,
            lateness=self.lateness,
            condition=self.condition,
            zone=self.zone,
        )


#: one node of a tree, with its sources
PreQueueNode = PreQueueInput | PreQueueFilter | PreQueueMap | PreQueueUnion | PreQueueJoin


def inputs_of(front: PreQueueNode) -> Iterator[PreQueueInput]:
    """Yield the inputs of a tree of operators before the queue, from left to right."""
    if isinstance(front, PreQueueInput):
        yield front
    for source in front.sources:
        yield from inputs_of(source)


def numbers_of(front: PreQueueNode) -> tuple[int, ...]:
    """Return the numbers of the inputs of a tree of operators before the queue."""
    return tuple(number for each in inputs_of(front) for number in each.numbers)


def ranks_of(front: PreQueueNode | None) -> tuple[int, ...] | None:
    """Return the trust rank of each input (0 is most) of a union operator before the queue."""
    if not isinstance(front, PreQueueUnion) or not all(
        isinstance(arc, PreQueueInput) for arc in front.sources
    ):
        return None
    ranks = {
        number: rank
        for rank, place in enumerate(front.truth)
        for number in numbers_of(front.sources[place])
    }
    return tuple(ranks[number] for number in sorted(ranks))


def columns_of(front: PreQueueNode) -> pa.Schema:
    """Return the columns in transit of a tree of operators before the queue: of all its inputs."""
    found: dict[str, pa.Field] = {}
    for each in inputs_of(front):
        for column in each.stream.schema:
            known = found.setdefault(column.name, column)
            if known.type != column.type:
                msg = (
                    f"column {column.name!r} is {known.type} in one stream and {column.type} in "
                    "another: rename it in one of them"
                )
                raise DefinitionError(msg)
    return pa.schema([pa.field(each.name, each.type) for each in found.values()])


def described(front: PreQueueNode) -> dict[str, Any]:
    """Return a tree of operators before the queue as JSON."""
    sources = [described(each) for each in front.sources]
    return {**front.describe(), **({"of": sources} if sources else {})}


class PreQueueOperator:
    """A running tree, in one shard."""

    def __init__(self, front: PreQueueNode, shard: Shard | None = None) -> None:
        """Continue with the state in the shard's arena; without a shard start empty."""
        #: nodes with the numbers of their sources, which precede them
        self._steps: list[tuple[PreQueueNode, PreQueueStep, list[int]]] = []
        self._add(front)
        #: the output of the tree
        self.result = front.stream
        self._kept = None if shard is None else SavedArrays(shard.arena, shard.account, "front")
        known = None if self._kept is None else self._kept.load()
        if known is not None:
            self.recall(known)

    def _add(self, front: PreQueueNode) -> int:
        sources = [self._add(each) for each in front.sources]
        self._steps.append((front, front.runner(), sources))
        return len(self._steps) - 1

    @property
    def late(self) -> int:
        """Return how many rows arrived too late for a node."""
        return sum(arc.late for _, arc, _ in self._steps)

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Process rows of all inputs and return the output of the tree, in time order."""
        origins = np.asarray(batch.column(ORIGIN).to_numpy())
        made: list[pa.RecordBatch] = []
        for front, arc, sources in self._steps:
            inputs = [made[source] for source in sources]
            if isinstance(front, PreQueueInput):
                mine = batch.filter(pa.array(np.isin(origins, front.numbers)))
                inputs = [mine.select(front.stream.schema.names)]
            made.append(arc.on_batch(inputs))
        return made[-1]

    def take(self, batch: pa.RecordBatch) -> NewestUpdates | None:
        """Process rows of all inputs and return the output of the tree, as updates of keys."""
        rows = self.rows(batch)
        if not rows.num_rows:
            return None
        times, ones = self.result.times(rows), np.ones(rows.num_rows, dtype=np.int64)
        return folded(NewestUpdates.of(*self.result.identify(rows), times, times, ones, rows))

    def save(self) -> None:
        """Save the state for the next version."""
        if self._kept is not None:
            self._kept.save(self.state())

    def state(self) -> State:
        return {
            f"{number}.{name}": array
            for number, (_, arc, _) in enumerate(self._steps)
            for name, array in arc.state().items()
        }

    def states(self) -> list[tuple[PreQueueNode, State]]:
        """Return every node with its state, for inspection."""
        return [(front, arc.state()) for front, arc, _ in self._steps]

    def forget(self, before: Micros) -> None:
        """Let nodes drop keys without rows since a time."""
        for _, arc, _ in self._steps:
            arc.forget(before)

    def recall(self, state: State) -> None:
        for number, (_, arc, _) in enumerate(self._steps):
            arc.recall(_own(state, number))

    def take_over(self, states: Sequence[State], keeps: IdRange | None) -> None:
        """Restore the state of a snapshot, or of those of parents for the keys in a range."""
        if keeps is None:
            (state,) = states
            self.recall(state)
            return
        for number, (_, arc, _) in enumerate(self._steps):
            arc.recall(arc.taken_over([_own(state, number) for state in states], keeps))


def _own(state: State, number: int) -> State:
    """Return the part of a tree's state that belongs to one node."""
    mark = f"{number}."
    return {
        name.removeprefix(mark): array for name, array in state.items() if name.startswith(mark)
    }
