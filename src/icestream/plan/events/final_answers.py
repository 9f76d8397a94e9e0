"""Which aggregates and joins by match may wait until their results are final.

Idea: in append mode a result becomes a row once nothing can revise it. If only maps of columns lie
between an aggregate and the rows, the aggregate itself may wait; any other consumer, an operator or
a view that shows revisions, needs its changes at once.

Invariant: an aggregate waits exactly if it is used only for rows in append mode
(`test_aggregates_wait_where_only_final_rows_are_made_of_them`).

A join by match has two plans: for views that show revisions, changes of pairs and of events without
a partner; for all others, one operator that emits events without a partner once that is certain.
"""

from __future__ import annotations

from collections.abc import Iterable

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
    United,
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
        waits = passes_on or isinstance(node, Framed | Final)
        waiting += [(each, waits) for each in before(node)]
    return [node for node in found.values() if (id(node), False) not in seen]


def matched_once(outputs: tuple[tuple[Node, str], ...]) -> tuple[tuple[Node, str], ...]:
    """Return views whose joins by match never retract a row, if all are in append mode."""
    if any(mode != "append" for _, mode in outputs):
        return outputs
    known: dict[int, Node] = {}

    def made(node: Node) -> Node:
        if id(node) not in known:
            known[id(node)] = once(node)
        return known[id(node)]

    def once(node: Node) -> Node:
        if isinstance(node, Matched):
            joined = rebuilt(node.once, made)
            if all(is_final(each, ()) for each in before(joined)):
                return joined
        return rebuilt(node, made)

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
