"""Aggregates of a join by its keys, computed from both of its sides.

Idea: where an aggregate groups the pairs of a join by the columns that the join compares, and every
field of it reads columns of one side, its answers follow from the events of both sides
(`operators/lifetimes/lift`). So the join disappears: its inputs enter the groups of the
aggregate, each with the columns that answers need of it, and nothing makes pairs. Conditions and
projections between join and aggregate go to the sides whose columns they read.

Invariants:
1. Answers are those of the join followed by the aggregate (`TestAggregatesOfPairs`).
2. Pairs that anything else reads are made, and read (`test_pairs_that_others_read_are_made`).

This pays off by how many pairs an event has: with one it costs a little less, with many the pairs
are what a join costs. Where answers are shown at once, events that end would change them even when
they have no partner, so it is done for final answers, and for events that never end.

Limits: no condition may read both sides; keys have no floats, of which equal ones may differ in
their bits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from icestream.operators.aggregates.aggregate import input_name
from icestream.operators.dataflow.steps import Filtering, Padding, Projecting
from icestream.operators.lifetimes.aggregate import lifetime_aggregate
from icestream.operators.lifetimes.answers import LifetimeAggregate
from icestream.operators.lifetimes.join import StreamJoin
from icestream.operators.lifetimes.lift import OF_LEFT
from icestream.plan.events.current_rows import never_ends
from icestream.plan.events.final_answers import emitted_once
from icestream.plan.events.placement import equal_columns
from icestream.plan.nodes.events import (
    Applied,
    Entered,
    Left,
    Mapped,
    Node,
    Scope,
    United,
    before,
    rebuilt,
    upstream,
)
from icestream.sql.expressions.compile import Bound, Projection
from icestream.sql.expressions.tree import quoted

Change = Callable[[pa.RecordBatch], pa.RecordBatch]
Outputs = tuple[tuple[Node, str], ...]


def without_pairs(outputs: Outputs) -> Outputs:
    """Return views in which aggregates of a join by its keys read both sides of the join."""
    once = {id(node) for node in emitted_once(outputs)}
    uses = _uses(node for node, _ in outputs)
    known: dict[int, Node] = {}

    def made(node: Node) -> Node:
        if id(node) not in known:
            known[id(node)] = rebuilt(_of_sides(node, uses, final=id(node) in once) or node, made)
        return known[id(node)]

    return tuple((made(node), mode) for node, mode in outputs)


def _uses(outputs: Iterable[Node]) -> Counter[int]:
    """Return how many nodes and views read each node."""
    views = tuple(outputs)
    nodes = {id(each): each for view in views for each in upstream(view)}
    read = (id(each) for node in nodes.values() for each in before(node))
    return Counter(map(id, views)) + Counter(read)


def _of_sides(node: Node, uses: Counter[int], *, final: bool) -> Applied | None:
    """Return an aggregate that reads both sides of a join; None if that gives no such answers."""
    if not isinstance(node, Applied) or not isinstance(node.operator, LifetimeAggregate):
        return None
    answers, scope = node.operator.answers, node.scope
    if scope is None or scope.outer is not None or answers.left is not None:
        return None
    found = None if answers.objects.results else _sides(node, uses)
    read = dict.fromkeys(name for each in answers.aggregates for name in each.columns)
    if found is None or answers.lifting.needs_order or {*read} & {*scope.keys}:
        return None
    left, right = found
    if not final and not (answers.inverts and all(never_ends(each.node) for each in found)):
        return None
    mine = [name for name in read if name in left.columns.names]
    theirs = [name for name in read if name not in mine]
    sides = {input_name(name) for name in mine}, {input_name(name) for name in theirs}
    fields = answers.lifting.fold.layout.fields
    if not {*theirs} <= {*right.columns.names} or not all(
        any({*each.columns} <= side for side in sides) for each in fields
    ):
        return None
    left = left.showing(scope.keys, mine, marked=True)
    right = right.showing(scope.keys, theirs)
    keys = [left.columns.field(key) for key in scope.keys]
    others = [*left.columns, *right.columns]
    padded = {each.name: each.with_nullable(True) for each in others if each not in keys}
    payload = pa.schema([*keys, *(padded[name] for name in (*mine, *theirs, OF_LEFT))])
    operator = lifetime_aggregate(payload, answers.aggregates, answers.keys.names, left=mine)
    parts = tuple(each.entering(payload, scope) for each in (left, right))
    grows = all(each.grows for each in parts)
    united = United(payload, scope, grows, node.reach, node.delay, parts=parts)
    return replace(node, inputs=(united,), operator=operator, text=f"{node.text}, of pairs")


@dataclass(frozen=True)
class _Side:
    """One side of a join, with the columns of pairs that it has."""

    node: Node
    #: where it has the values that are compared, by the name of the column in groups of pairs
    keys: Mapping[str, str]

    @classmethod
    def of(cls, node: Node, keys: Sequence[str]) -> _Side:
        """Return a side whose columns are compared by `keys`, which it keeps beside the others."""
        kept = {key: f"__compared {number}" for number, key in enumerate(keys)}
        texts = [f"{quoted(key)} AS {quoted(name)}" for key, name in kept.items()]
        items = Projection.bind(node.payload, [*map(quoted, node.payload.names), *texts]).items
        return cls(node, kept)._projected(items)

    @property
    def columns(self) -> pa.Schema:
        return self.node.payload

    def filtered(self, change: Mapped) -> _Side:
        return replace(self, node=self._mapped(change.change, self.columns, change.text))

    def projected(self, items: Iterable[Bound], *, constants: bool = False) -> _Side:
        """Return the side with those of some results that only read columns it has."""
        there = {*self.columns.names}
        chosen = [each for each in items if each.columns <= there]
        chosen = [each for each in chosen if each.columns or constants]
        kept = Projection.bind(self.columns, list(map(quoted, self.keys.values()))).items
        return self._projected([*chosen, *kept])

    def showing(self, keys: Sequence[str], names: Sequence[str], *, marked: bool = False) -> _Side:
        """Return the side with what is compared and some columns, and the mark of the left side."""
        texts = [f"{quoted(self.keys[key])} AS {quoted(key)}" for key in keys]
        texts += [*map(quoted, names), *([f"TRUE AS {quoted(OF_LEFT)}"] if marked else [])]
        return self._projected(Projection.bind(self.columns, texts).items)

    def _projected(self, items: Sequence[Bound]) -> _Side:
        projection = Projection(tuple(items), pa.schema([each.field for each in items]))
        text = f"side with {', '.join(projection.schema.names)}"
        node = self._mapped(Projecting(projection), projection.schema, text)
        return replace(self, node=node)

    def entering(self, payload: pa.Schema, scope: Scope) -> Entered:
        """Return the side in a scope, with nulls for columns of the other one."""
        node = self._mapped(Padding(payload), payload, "nulls for the other side")
        return Entered(payload, scope, node.grows, node.reach, node.delay, before=node)

    def _mapped(self, change: Change, payload: pa.Schema, text: str) -> Mapped:
        node = self.node
        return Mapped(
            payload, None, node.grows, node.reach, node.delay, before=node, change=change, text=text
        )


def _sides(node: Applied, uses: Counter[int]) -> tuple[_Side, _Side] | None:
    """Return the sides of the join whose pairs only an aggregate by its keys reads."""
    changes, current = list[Mapped](), node.inputs[0]
    while uses[id(current)] == 1 and isinstance(current, Mapped | Entered | Left):
        changes += [current] if isinstance(current, Mapped) else []
        current = current.before
    if uses[id(current)] > 1 or not isinstance(current, Applied):
        return None
    join, scope = current.operator, current.scope
    entered = [each.before for each in current.inputs if isinstance(each, Entered)]
    if not isinstance(join, StreamJoin) or scope is None or scope.outer is not None:
        return None
    if join.residual is not None or len(entered) < 2 or join.renames(scope.keys):
        return None
    left, right = (_Side.of(each, scope.keys) for each in entered)
    # columns of pairs that equal what is compared
    equal = {
        name: key for key in scope.keys for each in entered for name in equal_columns(key, each)
    }
    for each in reversed(changes):
        match each.change:
            case Projecting(projection=projection):
                left = left.projected(projection.items, constants=True)
                right = right.projected(projection.items)
                reads = {item.name: item.reads for item in projection.items}
                equal = {name: equal[read] for name, read in reads.items() if read in equal}
            case Filtering(predicate=predicate) if predicate.columns <= {*left.columns.names}:
                left = left.filtered(each)
            case Filtering(predicate=predicate) if predicate.columns <= {*right.columns.names}:
                right = right.filtered(each)
            case _:
                return None
    assert node.scope is not None
    compared = [equal.get(key) for key in node.scope.keys]
    types = [[each.payload.field(key).type for key in scope.keys] for each in entered]
    if sorted(map(str, compared)) != sorted(scope.keys) or types[0] != types[1]:
        return None
    if not all(map(_is_exact, types[0])):
        return None
    names = dict(zip(node.scope.keys, compared, strict=True))
    left, right = (
        replace(each, keys={name: each.keys[str(key)] for name, key in names.items()})
        for each in (left, right)
    )
    return left, right


def _is_exact(kind: pa.DataType) -> bool:
    """Return whether equal values of a type have equal bits."""
    if pa.types.is_nested(kind):
        return all(_is_exact(kind.field(place).type) for place in range(kind.num_fields))
    return not pa.types.is_floating(kind)
