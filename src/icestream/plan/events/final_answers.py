"""Which aggregates, windows and joins by match may wait until their results are final.

Idea: in append mode a result becomes a row once nothing can revise it. If only maps of columns lie
between an aggregate and the rows, the aggregate itself may wait; any other consumer, an operator or
a view that shows revisions, needs its changes at once.

Invariant: an aggregate waits exactly if it is used only for rows in append mode
(`test_aggregates_wait_where_only_final_rows_are_made_of_them`).

A join by match has two plans: for views that show revisions, changes of pairs and of events without
a partner; for all others, one operator that emits events without a partner once that is certain.

Windows have two plans as well: aggregates over lifetimes or copies of events, for tables that show
open windows; panes wherever rows are read when they are final.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from icestream.operators.lifetimes.answers import LifetimeAggregate
from icestream.operators.lifetimes.join import StreamJoin
from icestream.plan.nodes.events import (
    Applied,
    Entered,
    Final,
    Framed,
    Left,
    Mapped,
    Matched,
    Node,
    Paned,
    United,
    WindowRows,
    before,
    rebuilt,
)


def emitted_once(outputs: Iterable[tuple[Node, str]]) -> list[Applied]:
    """Return the aggregates whose answers wait until final, given views and output modes."""
    found: dict[int, Applied] = {}
    seen: set[tuple[int, bool]] = set()
    waiting = [(node, mode == "append") for node, mode in outputs]
    while waiting:
        node, final = waiting.pop()
        if (id(node), final) in seen:
            continue
        seen.add((id(node), final))
        if isinstance(node, Applied) and isinstance(node.operator, LifetimeAggregate):
            found[id(node)] = node
        passes_on = final and isinstance(node, Mapped | Left | United)
        waits = passes_on or isinstance(node, Framed | Final | Paned)
        waiting += [(each, waits) for each in before(node)]
    return [node for node in found.values() if (id(node), False) not in seen]


def with_final_plans(outputs: tuple[tuple[Node, str], ...]) -> tuple[tuple[Node, str], ...]:
    """Return views in which windows and joins by match that are read when final make no others.

    Joins by match retract no row if all views are in append mode; windows are panes.
    """
    appends = all(mode == "append" for _, mode in outputs)
    known: dict[tuple[int, bool], Node] = {}

    def made(node: Node, *, final: bool = False) -> Node:
        final = final and isinstance(node, Mapped | United | WindowRows)
        if (id(node), final) not in known:
            known[id(node), final] = chosen(node, final=final)
        return known[id(node), final]

    def chosen(node: Node, *, final: bool) -> Node:
        if isinstance(node, WindowRows) and (final or appends):
            return made(node.panes)
        if isinstance(node, Matched) and appends:
            joined = rebuilt(node.once, made)
            if all(is_final(each, ()) for each in before(joined)):
                return joined
        passes = isinstance(node, Final) or (final and isinstance(node, Mapped | United))
        return rebuilt(node, partial(made, final=passes))

    return tuple((made(node), mode) for node, mode in outputs)


def is_final(node: Node, waiting: Iterable[Applied]) -> bool:
    """Return whether a node's events are final, never retracted, if some aggregates wait."""
    match node:
        case Mapped() | Entered() | Left():
            return is_final(node.before, waiting)
        case United():
            return all(is_final(part, waiting) for part in node.parts)
        case Applied(operator=StreamJoin()):
            return all(is_final(each, waiting) for each in node.inputs)
    return node.grows or any(node is each for each in waiting)
