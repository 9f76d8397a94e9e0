"""Steps of a component: pure data, connected to a graph by their numbers.

Idea: a component is a list of steps, each after its inputs. Steps without state process changes
batch by batch. A `Stateful` step has an operator over lifetimes and belongs to a *grouping*: all
steps whose changes carry the same identity, which are one sub-query with one store and one
classifier. A `Regroup` step begins a grouping inside another one. Changes enter at `Receive` and
leave at `Send`, to another component, or at `Emit`, to the results.

Invariant: a step depends only on earlier steps (`test_steps_come_after_their_inputs`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from icestream.operators.dataflow.sorted_changes import INNER_BITS
from icestream.operators.frames.event_frames import EVENT_FIELDS
from icestream.operators.lifetimes.changes import (
    HEAD,
    LE,
    RE,
    LifetimeOperator,
    changes_schema,
    identities_of,
    payload_of,
    with_nulls,
    with_payload,
)
from icestream.operators.multi_join.spec import MultiJoinSpec
from icestream.operators.multi_join.tracing import Lineage
from icestream.operators.protocol import Shard
from icestream.sql.expressions.compile import Predicate, Projection
from icestream.state.keys import identified


@dataclass(frozen=True)
class Receive:
    """Changes that arrive on an edge, of the component's own grouping."""

    edge: int
    payload: pa.Schema
    grouping: int = 0
    inputs: tuple[int, ...] = ()


@dataclass(frozen=True)
class Map:
    """A function of each batch: a filter, a projection, other lifetimes."""

    inputs: tuple[int]
    payload: pa.Schema
    grouping: int
    change: Callable[[pa.RecordBatch], pa.RecordBatch]
    #: description, for readers and for checkpoints
    text: str


@dataclass(frozen=True)
class Merge:
    """The changes of several steps."""

    inputs: tuple[int, ...]
    payload: pa.Schema
    grouping: int


@dataclass(frozen=True)
class Regroup:
    """Changes of groups inside groups: their identity is that of more columns."""

    inputs: tuple[int]
    payload: pa.Schema
    grouping: int
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Stateful:
    """An operator with state by group."""

    inputs: tuple[int, ...]
    payload: pa.Schema
    grouping: int
    operator: LifetimeOperator
    text: str


@dataclass(frozen=True)
class Send:
    """Changes for another component, by the identity of columns."""

    inputs: tuple[int]
    payload: pa.Schema
    grouping: int
    edge: int
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Emit:
    """Changes that are results."""

    inputs: tuple[int]
    payload: pa.Schema
    grouping: int
    view: int


@dataclass(frozen=True)
class JoinMany:
    """A join of as many streams as it has inputs, which may spill."""

    inputs: tuple[int, ...]
    payload: pa.Schema
    grouping: int
    spec: MultiJoinSpec


class SoleSpec(Protocol):
    """What a step that keeps its own state does: pure data."""

    @property
    def lifetimes(self) -> tuple[str, ...]:
        """Return the lifetime classes of its segments."""
        ...

    @property
    def least_quota(self) -> int:
        """Return the bytes that a shard needs."""
        ...

    @property
    def lends_buffers(self) -> bool:
        """Return whether shards that take turns lend each other their buffers."""
        ...

    def opened(self, shard: Shard) -> Any:
        """Return the step on the state of a shard."""


@dataclass(frozen=True)
class Sole:
    """A step that keeps its own state, the only one of its component."""

    inputs: tuple[int, ...]
    payload: pa.Schema
    grouping: int
    spec: SoleSpec
    text: str


@dataclass(frozen=True)
class Trace:
    """Changes that pass through unchanged; some are traced to the partitions of joins."""

    inputs: tuple[int]
    payload: pa.Schema
    grouping: int
    lineages: tuple[Lineage, ...]
    #: whether another join stores them; if not, they are results
    stored: bool


Step = Receive | Map | Merge | Regroup | Stateful | JoinMany | Sole | Trace | Send | Emit


@dataclass(frozen=True)
class Filtering:
    """Keep the changes whose payload meets a condition."""

    predicate: Predicate

    def __call__(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        return changes.filter(self.predicate.mask(payload_of(changes)))


@dataclass(frozen=True)
class Projecting:
    """Compute other columns."""

    projection: Projection

    def __call__(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        return with_payload(changes, self.projection.evaluate(payload_of(changes)))


@dataclass(frozen=True)
class Padding:
    """Adds columns of nulls: rows of an outer join without a partner must look like pairs."""

    columns: pa.Schema

    def __call__(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        return with_payload(changes, with_nulls(changes, self.columns))


def regrouped(
    changes: pa.RecordBatch,
    keys: tuple[str, ...],
    payload: pa.Schema | None = None,
    *,
    inside: bool = False,
) -> pa.RecordBatch:
    """Return the changes of a step that regroups, under the identity of the columns it groups by.

    With a `payload`, only its columns are kept. Identities of groups `inside` others begin with
    the bits of these that route them, so that a range of identities has whatever is nested in it.
    """
    id_high, id_low = identified(payload_of(changes), keys)
    if inside:
        outer, _ = identities_of(changes)
        id_high = outer & ~INNER_BITS | id_high & INNER_BITS
    identity = map(pa.array, (id_high, id_low))
    columns = [*changes.columns[: len(HEAD) - 2], *identity]
    if payload is None or len(payload) >= len(changes.schema) - len(HEAD):
        columns += changes.columns[len(HEAD) :]
        return pa.RecordBatch.from_arrays(columns, schema=changes.schema)
    columns += [changes.column(name) for name in payload.names]
    return pa.RecordBatch.from_arrays(columns, schema=changes_schema(payload))


def sent(
    changes: pa.RecordBatch,
    keys: tuple[str, ...],
    payload: pa.Schema,
    inside: tuple[str, ...] | None,
) -> pa.RecordBatch:
    """Return changes as a step sends them by columns, for groups inside of those if any."""
    changes = regrouped(changes, keys, payload)
    return changes if inside is None else regrouped(changes, inside, inside=True)


@dataclass(frozen=True)
class Identifying:
    """Add the identity of single events: the one they came with, or one of their content."""

    #: whether changes carry the identity of their event, not that of a group
    numbered: bool

    def __call__(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        """Return changes whose payload begins with the identity of the event."""
        payload = payload_of(changes)
        if self.numbered:
            high, low = identities_of(changes)
        else:
            lifetimes = changes.select([LE, RE])
            whole = pa.RecordBatch.from_arrays(
                [*lifetimes.columns, *payload.columns], names=[LE, RE, *payload.schema.names]
            )
            # two bits less, so that an order of them can be doubled and complemented
            parts = identified(whole, tuple(whole.schema.names))
            high, low = (each >> np.uint64(2) for each in parts)
        columns = [*(pa.array(p.view(np.int64)) for p in (high, low)), *payload.columns]
        schema = self.schema(payload.schema)
        return with_payload(changes, pa.RecordBatch.from_arrays(columns, schema=schema))

    @staticmethod
    def schema(payload: pa.Schema) -> pa.Schema:
        """Return the columns of events with their identity."""
        return pa.schema([*EVENT_FIELDS, *payload])


def unchanged(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows as they are: a step that only sends them again, or writes them."""
    return rows


def consumers(steps: tuple[Step, ...]) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Return, for each step, the steps that read its changes, with their ports."""
    found: list[list[tuple[int, int]]] = [[] for _ in steps]
    for number, step in enumerate(steps):
        for port, before in enumerate(step.inputs):
            if before >= number:
                msg = f"step {number} reads changes of step {before}, which does not come before it"
                raise AssertionError(msg)
            found[before].append((number, port))
    return tuple(map(tuple, found))
