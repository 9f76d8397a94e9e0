"""The joins of a plan before it is compiled: flattened if they share a key, rows made traceable.

Idea: a join of a join's results by the same key is one join of more streams, without state for
intermediate results. The rest is a tree. To attribute a row to partitions of joins, the row must
carry the key of every join before it: a projection that drops such a key keeps it under a hidden
name, which later joins pass on and results do not show.

Invariants:
1. Flattening changes no result (`test_oracle_flat_and_nested_joins_agree`).
2. A hidden column is in no result (`test_hidden_columns_are_not_in_results`).
3. A join has a higher number than those whose results it reads
   (`test_joins_are_numbered_leaves_first`).

Limits: a join whose results are used twice is not merged into another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from icestream.core.errors import DefinitionError
from icestream.operators.dataflow.steps import Filtering, Padding, Projecting
from icestream.operators.lifetimes.alter_lifetimes import AlterLifetimes
from icestream.operators.multi_join.tracing import Lineage
from icestream.plan.joins.multi_join import HIDDEN
from icestream.plan.joins.order import reordered
from icestream.plan.nodes.events import (
    Joined,
    Mapped,
    Node,
    United,
    before,
    rebuilt,
    upstream,
)
from icestream.plan.nodes.spilling import Spilling
from icestream.sql.expressions.compile import Projection

Lineages = tuple[Lineage, ...]


@dataclass
class JoinTree:
    """The nodes of some outputs, with numbered joins and traceable rows."""

    outputs: tuple[Node, ...]
    #: number of each join, by the id of its node
    numbers: dict[int, int] = field(default_factory=dict)
    #: keys of joins that the rows of a node carry, by its id
    lineages: dict[int, Lineages] = field(default_factory=dict)
    #: the spilling options of all joins
    spilling: Spilling | None = None
    #: nodes that are kept, so that their ids stay unique
    made: list[Node] = field(default_factory=list)

    def lineage(self, node: Node) -> Lineages:
        """Return the keys of joins that the rows of a node carry."""
        return self.lineages.get(id(node), ())


def join_tree(outputs: Sequence[Node]) -> JoinTree:
    """Return the tree of joins to compile instead of the nodes that users composed."""
    together = United(outputs[0].payload, parts=tuple(outputs))
    if not any(isinstance(node, Joined) for node in upstream(together)):
        return JoinTree(tuple(outputs))
    ordered = _ordered(together)
    assert isinstance(ordered, United)
    uses, flat = _uses(ordered), dict[int, Node]()
    return _traceable([_flattened(node, uses, flat) for node in ordered.parts])


def _uses(last: Node) -> Counter[int]:
    """Return how many nodes read the events of each, by id."""
    return Counter(id(each) for node in upstream(last) for each in before(node))


# -- joins in the order that keeps the least ------------------------------------------------


def _ordered(last: Node) -> Node:
    """Return a node over reordered joins."""
    uses = _uses(last)
    known: dict[int, Node] = {}

    def made(node: Node, needed: frozenset[str] | None = None) -> Node:
        if id(node) not in known:
            known[id(node)] = _in_order(node, needed if uses[id(node)] == 1 else None, uses, made)
        return known[id(node)]

    return made(last)


def _in_order(
    node: Node,
    needed: frozenset[str] | None,
    uses: Counter[int],
    made: Callable[..., Node],
) -> Node:
    """Return a node, given which of its columns are needed after it; None for all."""
    match node:
        case Joined():
            found = reordered(node, uses, needed, made)
            return rebuilt(node, made) if found is None else found
        case Mapped(change=Projecting() as change):
            read = frozenset(change.projection.columns)
            return rebuilt(node, lambda each: made(each, read))
        case Mapped(change=Filtering() as change) if needed is not None:
            source = made(node.before, needed | change.predicate.columns)
            return replace(node, before=source, payload=source.payload)
    return rebuilt(node, made)


# -- one join of many instead of joins of joins ---------------------------------------------


def _flattened(node: Node, uses: Counter[int], known: dict[int, Node]) -> Node:
    if id(node) not in known:
        made = rebuilt(node, lambda each: _flattened(each, uses, known))
        if isinstance(node, Joined) and isinstance(made, Joined):
            made = _merged(made, [uses[id(each)] == 1 for each in node.inputs])
        known[id(node)] = made
    return known[id(node)]


def _merged(outer: Joined, alone: Sequence[bool]) -> Joined:
    """Replace results of joins by the same key with the inputs of those joins."""
    inputs: list[Node] = []
    keys: list[tuple[str, ...]] = []
    conditions: list[str] = []
    #: origin of the columns of each input of the outer join
    origins: list[dict[str, tuple[int, str]]] = []
    for port, node in enumerate(outer.inputs):
        first = len(inputs)
        order = _same_key(node, outer, port) if alone[port] else None
        if order is None or not isinstance(node, Joined):
            inputs.append(node)
            keys.append(outer.keys[port])
            origins.append({name: (first, name) for name in node.payload.names})
            continue
        inputs += node.inputs
        keys += [tuple(names[place] for place in order) for names in node.keys]
        origins.append({shown: (first + each, name) for each, name, shown in node.columns})
        conditions += [node.where] if node.where else []
    conditions += [outer.where] if outer.where else []
    columns = tuple((*origins[port][name], shown) for port, name, shown in outer.columns)
    where = " AND ".join(f"({each})" for each in conditions) or None
    if len(inputs) == len(outer.inputs):
        return outer
    return replace(outer, inputs=tuple(inputs), keys=tuple(keys), columns=columns, where=where)


def _same_key(node: Node, outer: Joined, port: int) -> list[int] | None:
    """Return the positions of a join's key columns among those of the join before it, or None."""
    if not isinstance(node, Joined) or node.spilling != outer.spilling:
        return None
    places = {
        shown: node.keys[port].index(name)
        for port, name, shown in node.columns
        if name in node.keys[port]
    }
    order = [places.get(name, -1) for name in outer.keys[port]]
    return order if sorted(order) == list(range(len(node.keys[0]))) else None


# -- rows that can be traced ----------------------------------------------------------------


def _traceable(outputs: Sequence[Node]) -> JoinTree:
    tree = JoinTree(())
    known: dict[int, Node] = {}

    def made(node: Node) -> Node:
        if id(node) not in known:
            result, lineages = _carrying(node, made, tree)
            tree.made += [node, result]
            tree.lineages[id(result)] = lineages
            known[id(node)] = result
        return known[id(node)]

    tree.outputs = tuple(map(made, outputs))
    return tree


def _carrying(node: Node, made: Callable[[Node], Node], tree: JoinTree) -> tuple[Node, Lineages]:
    """Return a node whose rows carry the keys of joins before them, and their names."""
    match node:
        case Joined():
            return _carried_join(node, made, tree)
        case Mapped(change=Projecting() as change):
            source = made(node.before)
            wider, lineages = _wider(change.projection, source, tree.lineage(source))
            if source is node.before and wider is change.projection:
                return node, lineages
            return (
                replace(node, before=source, payload=wider.schema, change=Projecting(wider)),
                lineages,
            )
        case Mapped(change=Filtering() | AlterLifetimes()):
            source = made(node.before)
            if source is node.before:
                return node, tree.lineage(source)
            return replace(node, before=source, payload=source.payload), tree.lineage(source)
        case United(scope=None):
            return _carrying_union(node, tuple(map(made, node.parts)), tree)
    return rebuilt(node, lambda each: shown_only(made(each), each.payload)), ()


def _carrying_union(node: United, parts: tuple[Node, ...], tree: JoinTree) -> tuple[Node, Lineages]:
    """Return a union whose rows carry the keys of the joins of their part, and nulls for others."""
    hidden: dict[str, pa.Field] = {}
    lineages: dict[tuple[int, int], Lineage] = {}
    texts: list[list[str]] = []
    for part in parts:
        texts.append([_quoted(name) for name in node.payload.names])
        for number, lineage in enumerate(tree.lineage(part)):
            fields = [part.payload.field(name) for name in lineage.columns]
            shown = tuple(
                f"{HIDDEN}_union{lineage.join}_{number}_{place}_{each.type}"
                for place, each in enumerate(fields)
            )
            lineages[lineage.join, number] = Lineage(lineage.join, shown)
            for name, each in zip(shown, fields, strict=True):
                hidden[name] = each.with_name(name).with_nullable(True)
                texts[-1].append(f"{_quoted(each.name)} AS {_quoted(name)}")
    if not hidden:
        return (node if parts == node.parts else replace(node, parts=parts)), ()
    columns = pa.schema([*node.payload, *hidden.values()])
    padded = tuple(_padded(*each, columns) for each in zip(parts, texts, strict=True))
    return replace(node, parts=padded, payload=columns), tuple(lineages.values())


def _padded(node: Node, texts: Sequence[str], columns: pa.Schema) -> Node:
    """Return the chosen columns of a node, and nulls in those that it lacks."""
    chosen = Projection.bind(node.payload, texts)
    names = ("scope", "grows", "reach", "delay")
    fields: dict[str, Any] = {name: getattr(node, name) for name in names}
    projected = Mapped(
        chosen.schema, **fields, before=node, change=Projecting(chosen), text="keys of joins"
    )
    return Mapped(columns, **fields, before=projected, change=Padding(columns), text="pad keys")


def shown_only(node: Node, payload: pa.Schema) -> Node:
    """Drop the hidden columns of a node in a tree of joins."""
    if len(node.payload) == len(payload):
        return node
    chosen = _projection(node.payload, payload.names)
    return Mapped(
        chosen.schema,
        node.scope,
        node.grows,
        node.reach,
        node.delay,
        before=node,
        change=Projecting(chosen),
        text="drop hidden columns",
    )


def _carried_join(
    node: Joined, made: Callable[[Node], Node], tree: JoinTree
) -> tuple[Node, Lineages]:
    inputs = tuple(map(made, node.inputs))
    number = len(tree.numbers)
    columns = node.columns
    for port, name in _unshown(node, inputs, tree):
        hidden = name if name.startswith(HIDDEN) else f"{HIDDEN}_{name}"
        twice = any(shown == hidden for _, _, shown in columns)
        columns = (*columns, (port, name, f"{hidden}_{number}_{port}" if twice else hidden))
    payload = pa.schema(
        [inputs[port].payload.field(name).with_name(shown) for port, name, shown in columns]
    )
    result = replace(node, inputs=inputs, columns=columns, payload=payload)
    shown_as = _names_shown(result)
    own = Lineage(number, tuple(shown_as[0, name] for name in node.keys[0]))
    lineages = [own]
    for port, each in enumerate(inputs):
        lineages += [
            Lineage(old.join, tuple(shown_as[port, name] for name in old.columns))
            for old in tree.lineage(each)
        ]
    tree.numbers[id(result)] = number
    if tree.spilling not in (None, node.spilling):
        msg = (
            f"the joins of a query share one spilling rule, but these have {tree.spilling} and "
            f"{node.spilling}: give all of them the same strategy, threshold, amount and partitions"
        )
        raise DefinitionError(msg)
    tree.spilling = node.spilling
    return result, tuple(lineages)


def _unshown(node: Joined, inputs: Sequence[Node], tree: JoinTree) -> Iterator[tuple[int, str]]:
    """Yield the columns for tracing that a join would not show, with the numbers of its inputs."""
    shown = _names_shown(node)
    for port, each in enumerate(inputs):
        traced = {name: None for lineage in tree.lineage(each) for name in lineage.columns}
        for name in traced:
            if (port, name) not in shown:
                yield port, name


def _names_shown(node: Joined) -> dict[tuple[int, str], str]:
    """Return the name under which a join shows each column of its inputs, or one equal to it."""
    names = {(port, name): shown for port, name, shown in node.columns}
    for place in range(len(node.keys[0])):
        equal = [(port, keys[place]) for port, keys in enumerate(node.keys)]
        shown = next(names[each] for each in equal if each in names)
        for each in equal:
            names.setdefault(each, shown)
    return names


def _wider(projection: Projection, source: Node, lineages: Lineages) -> tuple[Projection, Lineages]:
    """Let a projection pass on the columns for tracing, hidden if necessary."""
    items, fields, found = list(projection.items), list(projection.schema), []
    for lineage in lineages:
        names = []
        for place, name in enumerate(lineage.columns):
            (plain,) = _projection(source.payload, [name]).items
            same = [item for item in items if replace(item, name=name) == plain]
            if not same:
                same = [replace(plain, name=f"{HIDDEN}{lineage.join}_{place}")]
                items += same
                fields.append(same[0].field)
            names.append(same[0].name)
        found.append(Lineage(lineage.join, tuple(names)))
    if len(items) == len(projection.items):
        return projection, tuple(found)
    return Projection(tuple(items), pa.schema(fields)), tuple(found)


def _projection(schema: pa.Schema, names: Sequence[str]) -> Projection:
    return Projection.bind(schema, list(map(_quoted, names)))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


__all__ = ["JoinTree", "join_tree", "shown_only"]
