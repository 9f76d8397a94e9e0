"""Which aggregates may wait until their results are final.

Idea: in append mode a result becomes a row once nothing can revise it. If only maps of columns lie
between an aggregate and the rows, the aggregate itself may wait; any other consumer, an operator or
a view that shows revisions, needs its changes at once.

Invariant: an aggregate waits exactly if it is used only for rows in append mode
(`test_aggregates_wait_where_only_final_rows_are_made_of_them`).
"""

from __future__ import annotations

from collections.abc import Iterable

from icestream.operators.lifetimes.answers import LifetimeAggregate
from icestream.plan.nodes.events import Applied, Final, Framed, Left, Mapped, Node, United, before


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


def is_final(node: Node, waiting: Iterable[Applied]) -> bool:
    """Return whether a node's events are final, never retracted, if some aggregates wait."""
    match node:
        case Mapped() | Left():
            return is_final(node.before, waiting)
        case United():
            return all(is_final(part, waiting) for part in node.parts)
    return node.grows or any(node is each for each in waiting)
