"""Where the nodes of a query are computed: components of scopes, and groupings in them.

Idea: each outermost scope of a query is a component, with an edge for each stream that enters it. A
scope whose keys include those that the component before it is partitioned by runs there and needs
no exchange: the columns that hold these keys, and all that equal them, are followed through the
nodes of the scope and behind it. A scope inside another is a grouping of the same component.

Invariants:
1. A node that is used twice is computed once (`test_a_node_that_is_used_twice_is_one_step`).
2. A scope in another is a grouping of its component
   (`test_a_scope_inside_another_is_a_grouping_of_the_same_component`).
3. Answers do not depend on which scopes share a component (`TestChained`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa

from icestream.operators.dataflow.steps import Filtering, Merge, Padding, Projecting
from icestream.operators.lifetimes.alter_lifetimes import AlterLifetimes, ColumnLifetimes
from icestream.operators.lifetimes.answers import LifetimeAggregate
from icestream.operators.lifetimes.conditions_met import ConditionsMet
from icestream.operators.lifetimes.difference import StreamDifference
from icestream.operators.lifetimes.join import StreamJoin
from icestream.operators.lifetimes.match_join import MatchJoin
from icestream.operators.lifetimes.open_windows import OpenWindows
from icestream.operators.lifetimes.top import TopK
from icestream.plan.events.building import DataflowBuilding, EventPlace
from icestream.plan.nodes.events import (
    Applied,
    Entered,
    Final,
    Left,
    Mapped,
    Node,
    Scope,
    United,
    upstream,
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


class Placement(DataflowBuilding):
    """Components and groupings of a query, found as its nodes are visited."""

    def __init__(self, outputs: Iterable[Node]) -> None:
        super().__init__()
        self._places: dict[int, tuple[EventPlace, ...]] = {}
        #: component of each outermost scope, the keys it is partitioned by, and what enters it
        self._scopes: dict[int, int] = {}
        self._keys: dict[int, tuple[str, ...]] = {}
        self._entering: dict[int, list[Entered]] = {}
        for output in outputs:
            for node in upstream(output):
                if isinstance(node, Entered):
                    self._entering.setdefault(id(node.scope), []).append(node)
        #: groupings of each component, and that of each scope inside another
        self._groupings: list[int] = []
        #: groupings whose groups are those that their component is partitioned by, and the scopes
        #: whose events are in one of them already
        self._outermost: set[tuple[int, int]] = set()
        self._direct: set[int] = set()
        self._inner: dict[int, int] = {}
        #: nodes that were visited, kept so that their ids stay unique
        self._seen: list[object] = []

    @abstractmethod
    def _place(self, node: Node) -> tuple[EventPlace, ...]:
        """Create what yields the events of a node outside all scopes."""

    def _ungrouped(self, node: Node) -> tuple[EventPlace, ...]:
        """Return where the events of a node outside all scopes come from."""
        known = self._places.get(id(node))
        if known is None:
            self._seen.append(node)
            known = self._places[id(node)] = self._place(node)
        return known

    def _component_of(self, node: Node) -> int:
        """Return the component of a node's outermost scope."""
        scope = node.scope
        assert scope is not None
        while scope.outer is not None:
            scope = scope.outer
        if id(scope) not in self._scopes:
            self._seen.append(scope)
            self._scopes[id(scope)] = self._chosen_component(scope)
        return self._scopes[id(scope)]

    def _chosen_component(self, scope: Scope) -> int:
        """Return the component of an outermost scope: one before it, if it needs no exchange."""
        entering = [each.before for each in self._entering[id(scope)]]
        for node in entering:
            keys, component = (
                self._keys_inside(scope.keys, node),
                self._ungrouped(node)[0].component,
            )
            if (
                keys is not None
                and component is not None
                and all(self._may_enter(each, component, keys) for each in entering)
            ):
                self._keys[id(scope)] = keys
                if keys == scope.keys and self._is_direct(entering, component):
                    self._direct.add(id(scope))
                return component
        self._keys[id(scope)] = scope.keys
        self._direct.add(id(scope))
        return self._new_component()

    def _is_direct(self, entering: Sequence[Node], component: int) -> bool:
        """Return whether events of a component have the groups that they enter already.

        Several inputs from there must be collected, so that operators get them in their order.
        """
        places = [place for each in entering for place in self._ungrouped(each)]
        here = [self._of(component, each.step) for each in places if each.component == component]
        known = (component, here[0]) in self._outermost
        return len(here) == 1 and known and (len(places) == 1 or here[0] == 0)

    def _may_enter(self, node: Node, component: int, keys: tuple[str, ...]) -> bool:
        """Return whether events of a node can be grouped in a component partitioned by keys."""
        for place in self._ungrouped(node):
            if place.component == component:
                if self._keys_inside(keys, node) != keys:
                    return False
            elif place.component is not None and self._leads(component, place.component):
                return False
        return True

    def _keys_inside(self, keys: tuple[str, ...], node: Node) -> tuple[str, ...] | None:
        """Return those of some keys that a node's component is partitioned by, if it is."""
        if len(self._ungrouped(node)) != 1:
            return None
        found = key_columns(node, lambda scope: self._keys[id(scope)])
        chosen = tuple(next((k for k in keys if k in each), "") for each in found or ())
        # events are not sent by one column twice, though two keys of the component equal it
        return chosen if chosen and all(chosen) and len({*chosen}) == len(chosen) else None

    def _leads(self, origin: int, target: int) -> bool:
        """Return whether events of a component reach another one."""
        after = {edge.target for edge in self.edges if edge.origin == origin}
        return target in after or any(self._leads(each, target) for each in after)

    def _new_component(self) -> int:
        self._groupings.append(1)
        self.components[len(self.components)] = []
        self._outermost.add((len(self.components) - 1, 0))
        return len(self.components) - 1

    def _grouping_of(self, scope: Scope, component: int) -> int:
        if id(scope) not in self._inner:
            self._seen.append(scope)
            self._inner[id(scope)] = self._new_grouping(component)
        return self._inner[id(scope)]

    def _new_grouping(self, component: int) -> int:
        self._groupings[component] += 1
        return self._groupings[component] - 1

    def _here(self, place: EventPlace, component: int, keys: tuple[str, ...]) -> int:
        """Return the step of a component with the events of a place, sent to it if need be."""
        return (
            place.step if place.component == component else self._received(place, component, keys)
        )

    def _all_received(
        self,
        places: tuple[EventPlace, ...],
        component: int,
        keys: tuple[str, ...],
        payload: pa.Schema,
    ) -> int:
        """Send the events of some places to a component; return the step that has them all."""
        received = tuple(self._here(place, component, keys) for place in places)
        if len(received) == 1:
            return received[0]
        return self._add(component, Merge(received, payload, 0))
