"""Which columns hold the values that a component is partitioned by.

Idea: a component is partitioned by some keys of its outermost scope. The columns that hold them are
followed through the nodes of the scope and behind it, with all columns that equal them. A scope
that groups by such columns, and maybe by more, needs no exchange: its groups lie inside those of
the component before.

Invariants:
1. Answers do not depend on which scopes share a component (`TestChained`).
"""

from __future__ import annotations

from collections.abc import Callable

from icestream.operators.dataflow.steps import Filtering, Padding, Projecting
from icestream.operators.lifetimes.alter_lifetimes import AlterLifetimes, ColumnLifetimes
from icestream.operators.lifetimes.answers import LifetimeAggregate
from icestream.operators.lifetimes.conditions_met import ConditionsMet
from icestream.operators.lifetimes.difference import StreamDifference
from icestream.operators.lifetimes.join import StreamJoin
from icestream.operators.lifetimes.match_join import MatchJoin
from icestream.operators.lifetimes.open_windows import OpenWindows
from icestream.operators.lifetimes.top import TopK
from icestream.plan.nodes.events import (
    Applied,
    Entered,
    Final,
    Left,
    Mapped,
    Node,
    Scope,
    United,
)

#: for each key of a component, the columns that equal it
KeyColumns = tuple[frozenset[str], ...]
#: returns the keys by which the component of an outermost scope is partitioned
PartitionKeys = Callable[[Scope], tuple[str, ...]]


def key_columns(node: Node, keys_of: PartitionKeys) -> KeyColumns | None:
    """Return the columns of a node that partition its component; None if one is not there."""
    found = _followed(node, keys_of)
    return found if found and all(found) else None


def _followed(node: Node, keys_of: PartitionKeys) -> KeyColumns | None:  # noqa: PLR0911
    match node:
        case Entered() if node.scope is not None and node.scope.outer is None:
            return tuple(equal_columns(key, node.before) for key in keys_of(node.scope))
        case Entered() | Left() | Final():
            return _followed(node.before, keys_of)
        case Mapped(change=Filtering() | AlterLifetimes() | ColumnLifetimes() | Padding()):
            return _followed(node.before, keys_of)
        case Mapped(change=Projecting() as change):
            found = _followed(node.before, keys_of)
            return found and tuple(_renamed(each, change) for each in found)
        case United() if node.scope is not None:
            return _common([_followed(each, keys_of) for each in node.parts])
        case Applied(operator=TopK() | StreamDifference() | OpenWindows()):
            return _followed(node.inputs[0], keys_of)
        case Applied(operator=LifetimeAggregate() | ConditionsMet() | MatchJoin()) if (
            node.scope is not None
        ):
            found, kept = _followed(node.inputs[0], keys_of), frozenset(node.scope.keys)
            return found and tuple(each & kept for each in found)
        case Applied(operator=StreamJoin()) if node.scope is not None:
            # keys of the right side are hidden: those of the left side equal them
            left, right = (_followed(each, keys_of) for each in node.inputs)
            shown = frozenset(node.payload.names)
            pairs = zip(left or (), right or (), strict=False)
            return tuple((one | other) & shown for one, other in pairs)
    return None


def equal_columns(column: str, node: Node) -> frozenset[str]:
    """Return the columns of a node that equal one of them."""
    match node:
        case Mapped(change=Filtering() | AlterLifetimes() | ColumnLifetimes()):
            return equal_columns(column, node.before)
        case Mapped(change=Projecting() as change):
            read = {item.name: item.reads for item in change.projection.items}[column]
            equal = frozenset[str]() if read is None else equal_columns(read, node.before)
            return _renamed(equal, change) | {column}
    return frozenset({column})


def _renamed(columns: frozenset[str], change: Projecting) -> frozenset[str]:
    return frozenset(item.name for item in change.projection.items if item.reads in columns)


def _common(parts: list[KeyColumns | None]) -> KeyColumns | None:
    """Return the columns that have the keys in all of some parts."""
    known = [each for each in parts if each is not None]
    if len(known) < len(parts):
        return None
    return tuple(frozenset.intersection(*each) for each in zip(*known, strict=True))
