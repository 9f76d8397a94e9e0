"""Which columns of its sources a query over events reads.

Idea: a projection of an ungrouped stream reads the columns that it names, and nothing after it sees
any other, so the others need not be read from the source. Conditions and lifetimes between source
and projection add the columns that they read. A stream is needed completely if it enters a group,
is a result or is changed in any other way without a projection before that.

Invariants:
1. A column that a map, an operator or a result reads is needed
   (`test_a_stream_without_a_projection_is_needed_as_a_whole`,
   `test_conditions_before_a_projection_count`).
2. At least one column of a source is needed, because its rows must be counted
   (`test_a_source_of_which_nothing_is_needed_keeps_a_column`).
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from icestream.operators.dataflow.steps import Filtering, Projecting
from icestream.operators.lifetimes.alter_lifetimes import AlterLifetimes
from icestream.plan.nodes.events import Applied, Derived, FromSource, Joined, Mapped, Node, United

#: columns of a node that are read; None for all
Needed = frozenset[str] | None


def needed_columns(*nodes: Node) -> dict[int, pa.Schema]:
    """Return the columns of each source, by its tag, that the events of some nodes depend on."""
    sources: dict[int, FromSource] = {}
    read: dict[int, set[str]] = {}
    seen: set[tuple[int, Needed]] = set()
    waiting: list[tuple[Node, Needed]] = [(node, None) for node in nodes]
    while waiting:
        current, needed = waiting.pop()
        if (id(current), needed) in seen:
            continue
        seen.add((id(current), needed))
        if isinstance(current, FromSource):
            sources[current.source] = current
            names = current.payload.names if needed is None else needed
            read.setdefault(current.source, set()).update(names)
        waiting += _before(current, needed)
    return {tag: _chosen(source.payload, read[tag]) for tag, source in sources.items()}


def _before(node: Node, needed: Needed) -> Iterator[tuple[Node, Needed]]:
    """Yield the inputs of a node, with the columns it needs of them."""
    match node:
        case Mapped(change=Projecting() as change):
            yield node.before, frozenset(change.projection.columns)
        case Mapped(change=Filtering() as change):
            yield node.before, None if needed is None else needed | change.predicate.columns
        case Mapped(change=AlterLifetimes()):
            yield node.before, needed
        case United():
            yield from ((part, needed) for part in node.parts)
        case Derived():
            yield node.before, None
        case Applied() | Joined():
            yield from ((part, None) for part in node.inputs)


def _chosen(schema: pa.Schema, names: set[str]) -> pa.Schema:
    """Return some fields in their order; the first one if there would be none."""
    return pa.schema([each for each in schema if each.name in names] or [schema.field(0)])
