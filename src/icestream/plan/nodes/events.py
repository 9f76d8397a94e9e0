"""Queries over events with lifetimes, as a graph of nodes: pure data.

Idea: a node yields events. A node inside a group belongs to a *scope*, which is one use of
`groupApply`; all others are outside. `plan.events.queries` turns such a graph into a dataflow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pyarrow as pa

from icestream.core.times import Micros
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.lifetimes.changes import LifetimeOperator
from icestream.plan.nodes.spilling import Spilling
from icestream.plan.windows.frame import Frame
from icestream.plan.windows.grid import Cumulative, Windows
from icestream.plan.windows.session import Session


@dataclass(frozen=True, eq=False)
class Scope:
    """One use of a grouping: the columns that identify its groups, including outer scopes."""

    keys: tuple[str, ...]
    outer: Scope | None = None


@dataclass(frozen=True, eq=False)
class Node:
    """A source of events."""

    payload: pa.Schema
    scope: Scope | None = None
    #: whether events are only added, never retracted
    grows: bool = True
    #: how long after its last event it may still emit something
    reach: Micros = 0
    #: how much later than meant its events live, because joins had to wait for partners
    delay: Micros = 0
    #: whether lifetimes only say when rows are final: in a table they hold from the first on
    stays: bool = field(default=False, kw_only=True)


@dataclass(frozen=True, eq=False)
class FromSource(Node):
    """The events of a source, identified by a tag; or those that came too late."""

    source: int = 0
    late: bool = False


@dataclass(frozen=True, eq=False)
class Derived(Node):
    """What is made of the events of one node."""

    before: Node = field(kw_only=True)


@dataclass(frozen=True, eq=False)
class Mapped(Derived):
    """A function of single batches: a filter, a projection, other lifetimes."""

    change: Callable[[pa.RecordBatch], pa.RecordBatch] = field(kw_only=True)
    text: str = field(kw_only=True)


@dataclass(frozen=True, eq=False)
class United(Node):
    """The events of several nodes."""

    parts: tuple[Node, ...] = field(kw_only=True)


@dataclass(frozen=True, eq=False)
class Entered(Derived):
    """Events that enter a scope."""


@dataclass(frozen=True, eq=False)
class Applied(Node):
    """An operator with state per group."""

    inputs: tuple[Node, ...] = field(kw_only=True)
    operator: LifetimeOperator = field(kw_only=True)
    text: str = field(kw_only=True)


@dataclass(frozen=True, eq=False)
class Matched(United):
    """Rows of a join by match, which an operator can also make without retracting any."""

    once: Applied = field(kw_only=True)


@dataclass(frozen=True, eq=False)
class Left(Derived):
    """Events that leave a scope."""


@dataclass(frozen=True, eq=False)
class Paned(Derived):
    """Rows of windows by their own operators over final events, at the last instant of each."""

    windows: Windows | Cumulative | Session = field(kw_only=True)
    #: columns that identify groups, with the names of those that rows show
    keys: tuple[str, ...] = field(kw_only=True)
    shown: tuple[str, ...] = field(kw_only=True)
    aggregates: tuple[Aggregate, ...] = field(kw_only=True)
    time: pa.DataType = field(kw_only=True)


@dataclass(frozen=True, eq=False)
class WindowRows(Left):
    """Rows of windows while they are open; `panes` are the same where only final ones are read."""

    panes: Node = field(kw_only=True)


@dataclass(frozen=True, eq=False)
class Final(Derived):
    """Rows of windows as others read them: each once, when it is final, at its last instant."""


@dataclass(frozen=True, eq=False)
class Joined(Node):
    """The combinations of one event of each input with equal keys and overlapping lifetimes."""

    inputs: tuple[Node, ...] = field(kw_only=True)
    #: join columns of each input
    keys: tuple[tuple[str, ...], ...] = field(kw_only=True)
    #: columns of the combinations: number of the input, name there, name here
    columns: tuple[tuple[int, str, str], ...] = field(kw_only=True)
    #: further condition on combinations, in SQL over their columns
    where: str | None = field(kw_only=True, default=None)
    spilling: Spilling = field(kw_only=True)


@dataclass(frozen=True)
class Feature:
    """What an event learns from a frame of events with equal keys, in the order of time."""

    keys: tuple[str, ...]
    frame: Frame
    #: an aggregate of columns that are named by their SQL text
    aggregate: Aggregate


@dataclass(frozen=True, eq=False)
class Framed(Derived):
    """Events with columns over frames that end with them, or rows at the slides of one frame."""

    features: tuple[Feature, ...] = field(kw_only=True)
    #: names of further columns, and their SQL text over the event and the aliases of its features
    columns: tuple[tuple[str, str], ...] = field(kw_only=True)
    #: the time of rows at slides, which come before their keys and answers; None for events
    time: pa.Field | None = field(default=None, kw_only=True)


def upstream(node: Node) -> Iterator[Node]:
    """Yield a node over events and all nodes that it depends on, each once."""
    seen: set[int] = set()
    waiting = [node]
    while waiting:
        current = waiting.pop()
        if id(current) not in seen:
            seen.add(id(current))
            yield current
            waiting += before(current)


def only_grows(node: Node) -> bool:
    """Return whether no event of a node is ever retracted, whichever nodes lie before it now."""
    if isinstance(node, Final | Framed | Paned):
        return True
    return node.grows and all(map(only_grows, before(node)))


def late_events(node: Node) -> Node | None:
    """Return what a node would yield for the late events of its sources; None if nothing."""
    match node:
        case FromSource():
            return replace(node, late=True)
        case Mapped() | Entered():
            late = late_events(node.before)
            return None if late is None else replace(node, before=late)
        case United():
            parts = [late for part in node.parts if (late := late_events(part)) is not None]
            return replace(node, parts=tuple(parts)) if parts else None
    return None


def before(node: Node) -> tuple[Node, ...]:
    """Return the inputs of a node over events."""
    match node:
        case Derived():
            return (node.before,)
        case United():
            return node.parts
        case Applied() | Joined():
            return node.inputs
    return ()


def rebuilt(node: Node, make: Callable[[Node], Node]) -> Node:
    """Return a node over events with transformed inputs."""
    match node:
        case Derived():
            made = make(node.before)
            return node if made is node.before else replace(node, before=made)
        case United():
            parts = tuple(map(make, node.parts))
            return node if parts == node.parts else replace(node, parts=parts)
        case Applied() | Joined():
            inputs = tuple(map(make, node.inputs))
            return node if inputs == node.inputs else replace(node, inputs=inputs)
    return node
