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
3. Ten times the keys that fit change nothing (`test_bounded_a_tree_with_more_keys_than_fit`).

Cost: that of the operators; all updates are exchanged and logged, because a later node may need
any. State is in files, one for each part of the keys, of which one is in memory at a time: a batch
reads and writes the parts that it has keys of, once each. The others forget keys when they are read
(`test_bounded_a_tree_that_forgets_opens_the_parts_of_its_batch_once`).

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
from icestream.core.times import MINUS_INFINITY, Micros
from icestream.core.units import format_interval
from icestream.operators.latest.coalescing import ORIGIN, NewestUpdates, folded
from icestream.operators.latest.join import UpdateJoin
from icestream.operators.latest.rowwise import Stateless, UpdateFilter, UpdateMap
from icestream.operators.latest.saved_arrays import (
    SavedParts,
    State,
    bytes_in,
    common_ranges,
    parts_of,
    records_of,
)
from icestream.operators.latest.union import UpdateUnion
from icestream.operators.latest.update_stream import UpdateStream
from icestream.operators.protocol import Shard
from icestream.state.identities import EVERY_ID, IdRange

#: how far a row may be behind the newest one of its side of a join, unless the query says
LATENESS = 3_600_000_000
#: a part of the keys takes at most this fraction of a shard's memory, and no less than these bytes
PARTS = 16
LEAST_PART = 1 << 15
#: since when keys without rows are forgotten: in the header, and in each part when it was saved
_FORGOT = "front.forgot"


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
        self._front = front
        #: the output of the tree
        self.result = front.stream
        #: number of rows that arrived too late for a node, since it was opened
        self.late = 0
        self._parts = None if shard is None else SavedParts(shard.arena, "front")
        self._header: dict[str, Any] = {} if shard is None else shard.arena.header
        self._account = None if shard is None else shard.account
        self._most = LEAST_PART
        if shard is not None:
            self._most = max(LEAST_PART, shard.account.budget.total // PARTS)
        #: the part in memory, and the bytes that are reserved for it
        self._opened: tuple[IdRange, _Tree] | None = None
        self._reserved = 0

    @property
    def nodes(self) -> list[PreQueueNode]:
        """Return the nodes of the tree, each after its sources."""
        return [node for node, _, _ in _Tree(self._front).steps]

    @property
    def size(self) -> int:
        """Return the approximate size of the state in bytes."""
        return 0 if self._parts is None else self._parts.bytes

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Process rows of all inputs and return the output of the tree, in time order."""
        id_high, _ = self.result.identify(batch)
        made = [pa.RecordBatch.from_pylist([], self.result.schema)]
        for ids in self._saved_ranges():
            mine = ids.holds(id_high)
            if mine.any():
                tree = self._open(ids)
                late = tree.late
                made.append(tree.rows(batch if mine.all() else batch.filter(pa.array(mine))))
                self.late += tree.late - late
        found = pa.concat_batches(made)
        if len(made) <= 2:
            return found
        return found.take(pa.array(np.argsort(self.result.times(found), kind="stable")))

    def take(self, batch: pa.RecordBatch) -> NewestUpdates | None:
        """Process rows of all inputs and return the output of the tree, as updates of keys."""
        rows = self.rows(batch)
        if not rows.num_rows:
            return None
        times, ones = self.result.times(rows), np.ones(rows.num_rows, dtype=np.int64)
        return folded(NewestUpdates.of(*self.result.identify(rows), times, times, ones, rows))

    def forget(self, before: Micros) -> None:
        """Let nodes drop keys without rows since a time; parts in files, when they are opened."""
        self._header[_FORGOT] = before
        if self._opened is not None:
            self._opened[1].forget(before)

    def save(self) -> None:
        """Save the part in memory for later, in two parts if it is large."""
        if self._opened is not None and self._parts is not None and self._account is not None:
            (ids, tree), self._opened = self._opened, None
            self._store(ids, tree.state())
            self._account.release(self._reserved)
            self._reserved = 0

    def states(self) -> Iterator[list[State]]:
        """Yield the states of all nodes, a part of the keys at a time."""
        for ids in self._saved_ranges():
            yield [step.state() for _, step, _ in self._open(ids).steps]

    def records(self) -> Iterator[bytes]:
        """Yield the whole state as the payloads of records."""
        for ids in self._saved_ranges():
            yield from records_of(self._open(ids).state(), ids)

    def take_over(self, snapshots: Sequence[Sequence[bytes]], keeps: IdRange | None) -> None:
        """Restore the records of a snapshot, or of those of parents for the keys in a range."""
        parents = [part for payloads in snapshots for part in parts_of(payloads).items()]
        parts = common_ranges([ids for ids, _ in parents])
        if parts and self._parts is not None:
            self._parts.divide(parts)
        for ids in parts:
            tree = _Tree(self._front)
            states = [state for each, state in parents if each.meets(ids)]
            if keeps is not None:
                states = [tree.taken_over(states, ids.within(keeps))]
            (state,) = states
            tree.recall(state)
            self._store(ids, state)

    def _saved_ranges(self) -> list[IdRange]:
        """Save the part in memory, which may become two, and return the ranges of all parts."""
        self.save()
        return [EVERY_ID] if self._parts is None else self._parts.ranges

    @property
    def _forgot(self) -> Micros:
        """Return the time up to which keys without rows were forgotten last."""
        return int(self._header.get(_FORGOT, MINUS_INFINITY))

    def _open(self, ids: IdRange) -> _Tree:
        """Return the tree with the state of a part, which is saved when another one is opened."""
        if self._opened is None or self._opened[0] != ids:
            self.save()
            tree = _Tree(self._front)
            state = None if self._parts is None else self._parts.load(ids)
            if state is not None and self._account is not None:
                self._reserved = bytes_in(state)
                self._account.reserve(self._reserved)
                tree.recall(state)
                if self._forgot > state[_FORGOT][0]:
                    tree.forget(self._forgot)
            self._opened = ids, tree
        return self._opened[1]

    def _store(self, ids: IdRange, state: State) -> None:
        """Save the state of a part, or halves of it that are small enough."""
        assert self._parts is not None
        keys = max((len(each) for name, each in state.items() if name.endswith("known")), default=0)
        if bytes_in(state) <= self._most or keys <= 1 or not self.result.keys:
            self._parts.save(ids, {**state, _FORGOT: np.array([self._forgot])})
            return
        for half in self._parts.split(ids):
            self._store(half, _Tree(self._front).taken_over([state], half))


class _Tree:
    """The running nodes of a tree, with the state of some keys."""

    def __init__(self, front: PreQueueNode) -> None:
        #: nodes with the numbers of their sources, which precede them
        self.steps: list[tuple[PreQueueNode, PreQueueStep, list[int]]] = []
        self._add(front)

    def _add(self, front: PreQueueNode) -> int:
        sources = [self._add(each) for each in front.sources]
        self.steps.append((front, front.runner(), sources))
        return len(self.steps) - 1

    @property
    def late(self) -> int:
        return sum(arc.late for _, arc, _ in self.steps)

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        origins = np.asarray(batch.column(ORIGIN).to_numpy())
        made: list[pa.RecordBatch] = []
        for front, arc, sources in self.steps:
            inputs = [made[source] for source in sources]
            if isinstance(front, PreQueueInput):
                mine = batch.filter(pa.array(np.isin(origins, front.numbers)))
                inputs = [mine.select(front.stream.schema.names)]
            made.append(arc.on_batch(inputs))
        return made[-1]

    def state(self) -> State:
        return {
            f"{number}.{name}": array
            for number, (_, arc, _) in enumerate(self.steps)
            for name, array in arc.state().items()
        }

    def forget(self, before: Micros) -> None:
        for _, arc, _ in self.steps:
            arc.forget(before)

    def recall(self, state: State) -> None:
        for number, (_, arc, _) in enumerate(self.steps):
            arc.recall(_own(state, number))

    def taken_over(self, states: Sequence[State], keeps: IdRange) -> State:
        """Return the states of several parents, of the keys in a range, as one."""
        return {
            f"{number}.{name}": array
            for number, (_, arc, _) in enumerate(self.steps)
            for name, array in arc.taken_over(
                [_own(state, number) for state in states], keeps
            ).items()
        }


def _own(state: State, number: int) -> State:
    """Return the part of a tree's state that belongs to one node."""
    mark = f"{number}."
    return {
        name.removeprefix(mark): array for name, array in state.items() if name.startswith(mark)
    }
