"""Queries over events with lifetimes, as users compose them, and the dataflow they become.

Idea: users compose a graph of nodes; a node inside a group belongs to a *scope*, which is one use
of `groupApply` (or of a join, which groups both sides by its keys). Compiling walks the graph once:
every outermost scope becomes a component, with an edge for each stream that enters it; a scope
inside another becomes a grouping of the same component. A join that may defer results is a separate
component. Maps of ungrouped streams run at their source, before the rows are sent.

Invariants:
1. A node that is used twice is computed once (`test_a_node_that_is_used_twice_is_one_step`).
2. Components are numbered so that edges lead forward (`test_edges_lead_forward`).
3. In append mode aggregates emit each result once, or hold it until it is final
   (`test_aggregates_wait_where_only_final_rows_are_made_of_them`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from icestream.core.errors import DefinitionError
from icestream.operators.dataflow.steps import (
    Emit,
    JoinMany,
    Map,
    Merge,
    Receive,
    Regroup,
    Send,
    Stateful,
    Step,
    Trace,
)
from icestream.operators.lifetimes.aggregate import LifetimeAggregate
from icestream.operators.lifetimes.append_mode import AppendOutput
from icestream.operators.lifetimes.changes import LifetimeOperator
from icestream.operators.lifetimes.complete_mode import CompleteOutput
from icestream.operators.multi_join.spec import MultiJoinSpec
from icestream.operators.multi_join.tracing import Lineage
from icestream.plan.events.dataflow import Dataflow, Edge, Output, in_order
from icestream.plan.events.final_answers import emitted_once, is_final
from icestream.plan.joins.multi_join import join_text
from icestream.plan.joins.tree import JoinTree, join_tree, shown_only
from icestream.plan.nodes.events import (
    Applied,
    Entered,
    FromSource,
    Joined,
    Left,
    Mapped,
    Node,
    Scope,
    United,
)
from icestream.plan.nodes.queries import KEY_GROUPS, Source
from icestream.sql.expressions.compile import Predicate


def compiled(
    outputs: tuple[tuple[Node, str], ...],
    numbers: Mapping[int, int],
    sources: tuple[Source, ...],
    columns: tuple[pa.Schema, ...],
    time: pa.DataType,
) -> Dataflow:
    """Return the dataflow that computes queries over events: nodes, each with its output mode.

    `numbers` maps the tags of sources to their numbers.
    """
    tree = join_tree([node for node, _ in outputs])
    modes = [mode for _, mode in outputs]
    building = _Building(numbers, tree, emitted_once(zip(tree.outputs, modes, strict=True)))
    for view, (node, (shown, mode)) in enumerate(zip(tree.outputs, outputs, strict=True)):
        building.emit(node, shown.payload, mode, view)
    components, edges = in_order(dict(enumerate(building.components)), building.edges)
    spilling = tree.spilling
    return Dataflow(
        sources=sources,
        columns=columns,
        components=components,
        edges=edges,
        views=tuple(Output(node.payload, mode, node.delay) for node, mode in outputs),
        time=time,
        reach=max(node.reach for node, _ in outputs),
        key_groups=KEY_GROUPS if spilling is None else spilling.key_groups,
        spilling=spilling,
    )


@dataclass(frozen=True)
class _Place:
    """Where the events of a node come from: a step of a component, or a source with maps."""

    payload: pa.Schema
    component: int | None = None
    step: int = 0
    source: int = 0
    late: bool = False
    maps: tuple[Callable[[pa.RecordBatch], pa.RecordBatch], ...] = ()
    texts: tuple[str, ...] = ()
    #: whether its events are never retracted
    final: bool = True


class _Building:
    """A dataflow under construction."""

    def __init__(
        self, numbers: Mapping[int, int], tree: JoinTree, emitted_once: Sequence[Applied]
    ) -> None:
        self._numbers = numbers
        self._tree = tree
        #: aggregates that emit only final results
        self._emitted_once = emitted_once
        self.components: list[list[Step]] = []
        self.edges: list[Edge] = []
        self._places: dict[int, tuple[_Place, ...]] = {}
        #: component of each outermost scope
        self._scopes: dict[int, int] = {}
        #: groupings of each component, and that of each scope inside another
        self._groupings: list[int] = []
        self._inner: dict[int, int] = {}
        #: nodes that were visited, kept so that their ids stay unique
        self._seen: list[object] = []

    def emit(self, node: Node, payload: pa.Schema, mode: str, view: int) -> None:
        """Make the events of a node, without hidden columns, the rows of a view."""
        self._traced(node, stored=False)
        if mode == "complete" and not _is_aggregate(node):
            msg = (
                "output mode 'complete' is for aggregates: the results of agg(...) of every group, "
                "with columns computed from them; use 'update' for changes, or 'append' for final "
                "events"
            )
            raise DefinitionError(msg)
        for place in self._ungrouped(shown_only(node, payload)):
            component, step = place.component, place.step
            if component is None:
                msg = (
                    "some of these events come straight from a source, where Spark itself can do "
                    "all the work: group them with groupApply(...), or join them"
                )
                raise DefinitionError(msg)
            if mode == "append" and not place.final:
                step = self._held(component, step, AppendOutput(payload), "settle")
            if mode == "complete":
                step = self._held(component, step, CompleteOutput(payload), "current")
            self._add(component, Emit((step,), payload, self._of(component, step), view))

    def _held(
        self, component: int, step: int, operator: AppendOutput | CompleteOutput, text: str
    ) -> int:
        """Hold the events of a step by all their columns."""
        payload = operator.result
        keys = tuple(payload.names)
        grouping = self._new_grouping(component)
        grouped = self._add(component, Regroup((step,), payload, grouping, keys))
        return self._add(component, Stateful((grouped,), payload, grouping, operator, text))

    # -- nodes -----------------------------------------------------------------------------

    def _ungrouped(self, node: Node) -> tuple[_Place, ...]:
        """Return where the events of a node outside all scopes come from."""
        known = self._places.get(id(node))
        if known is None:
            self._seen.append(node)
            known = self._places[id(node)] = self._place(node)
        return known

    def _place(self, node: Node) -> tuple[_Place, ...]:
        match node:
            case FromSource():
                texts = ("late events",) if node.late else ()
                number = self._numbers[node.source]
                return (_Place(node.payload, source=number, late=node.late, texts=texts),)
            case Mapped():
                return tuple(self._mapped(node, each) for each in self._ungrouped(node.before))
            case United():
                return tuple(each for part in node.parts for each in self._ungrouped(part))
            case Left():
                component = self._component_of(node.before)
                step, final = (
                    self._grouped(node.before, component),
                    is_final(node, self._emitted_once),
                )
                return (_Place(node.payload, component, step, final=final),)
            case Joined():
                return (self._joined(node),)
        msg = f"{type(node).__name__} is only allowed inside a group"
        raise AssertionError(msg)

    def _joined(self, node: Joined) -> _Place:
        """Create the component of a join."""
        component = self._new_component()
        steps = []
        for each, keys in zip(node.inputs, node.keys, strict=True):
            self._traced(each, stored=True)
            received = self._all_received(self._ungrouped(each), component, keys, each.payload)
            steps.append(received)
        spec = MultiJoinSpec(
            self._tree.numbers[id(node)],
            tuple(each.payload for each in node.inputs),
            node.columns,
            node.spilling.partitions,
            None if node.where is None else Predicate.bind(node.payload, node.where),
            join_text(node),
        )
        step = self._add(component, JoinMany(tuple(steps), node.payload, 0, spec))
        return _Place(node.payload, component, step)

    def _traced(self, node: Node, *, stored: bool) -> None:
        """Trace the rows of a node, where they leave, to the partitions they come from."""
        lineages = self._tree.lineage(node)
        places = self._ungrouped(node)
        if lineages:
            self._places[id(node)] = tuple(self._trace(each, lineages, stored) for each in places)

    def _trace(self, place: _Place, lineages: tuple[Lineage, ...], stored: bool) -> _Place:
        if place.component is None:
            return place
        step = Trace((place.step,), place.payload, 0, lineages, stored)
        return replace(place, step=self._add(place.component, step))

    def _mapped(self, node: Mapped, place: _Place) -> _Place:
        if place.component is None:
            maps, texts = (*place.maps, node.change), (*place.texts, node.text)
            return replace(place, payload=node.payload, maps=maps, texts=texts)
        grouping = self._of(place.component, place.step)
        step = Map((place.step,), node.payload, grouping, node.change, node.text)
        return replace(place, payload=node.payload, step=self._add(place.component, step))

    def _grouped(self, node: Node, component: int) -> int:
        """Return the step of a node inside a scope."""
        key = id(node)
        if key not in self._places:
            self._seen.append(node)
            step = self._step(node, component)
            self._places[key] = (_Place(node.payload, component, step),)
        return self._places[key][0].step

    def _step(self, node: Node, component: int) -> int:
        match node:
            case Entered():
                return self._entered(node, component)
            case Mapped():
                before = self._grouped(node.before, component)
                grouping = self._of(component, before)
                return self._add(
                    component, Map((before,), node.payload, grouping, node.change, node.text)
                )
            case United():
                steps, grouping = self._together(node.parts, component)
                return self._add(component, Merge(steps, node.payload, grouping))
            case Applied():
                steps, grouping = self._together(node.inputs, component)
                operator, text = self._operator(node)
                applied = Stateful(steps, node.payload, grouping, operator, text)
                return self._add(component, applied)
            case Left():
                assert node.scope is not None
                before = self._grouped(node.before, component)
                grouping = self._new_grouping(component)
                back = Regroup((before,), node.payload, grouping, node.scope.keys)
                return self._add(component, back)
        msg = f"{type(node).__name__} is only allowed outside all groups"
        raise AssertionError(msg)

    def _operator(self, node: Applied) -> tuple[LifetimeOperator, str]:
        """Return the operator of a node, which waits if it may, and its text."""
        operator = node.operator
        if isinstance(operator, LifetimeAggregate) and any(node is n for n in self._emitted_once):
            grows = all(each.grows for each in node.inputs)
            return operator.emitted_once(grows=grows), f"{node.text}, told once"
        if isinstance(operator, LifetimeAggregate) and operator.only_final is not None:
            msg = (
                f"{operator.only_final} over lifetimes is emitted once, when it is final: use "
                "output mode 'append', and only where(...), select(...) and union(...) after it"
            )
            raise DefinitionError(msg)
        return operator, node.text

    def _entered(self, node: Entered, component: int) -> int:
        scope = node.scope
        assert scope is not None
        if scope.outer is not None:
            before = self._grouped(node.before, component)
            grouping = self._grouping_of(scope, component)
            return self._add(component, Regroup((before,), node.payload, grouping, scope.keys))
        places = self._ungrouped(node.before)
        return self._all_received(places, component, scope.keys, node.payload)

    def _all_received(
        self,
        places: tuple[_Place, ...],
        component: int,
        keys: tuple[str, ...],
        payload: pa.Schema,
    ) -> int:
        """Send the events of some places to a component; return the step that has them all."""
        received = tuple(self._received(place, component, keys) for place in places)
        if len(received) == 1:
            return received[0]
        return self._add(component, Merge(received, payload, 0))

    def _received(self, place: _Place, component: int, keys: tuple[str, ...]) -> int:
        """Send the events of a place to a component; return the step that receives them."""
        number = len(self.edges)
        source = place.source if place.component is None else None
        self.edges.append(
            Edge(
                source,
                place.component,
                component,
                keys,
                place.payload,
                place.maps,
                place.texts,
                late=place.late,
            )
        )
        if place.component is not None:
            grouping = self._of(place.component, place.step)
            self._add(place.component, Send((place.step,), place.payload, grouping, number, keys))
        return self._add(component, Receive(number, place.payload))

    def _together(self, nodes: tuple[Node, ...], component: int) -> tuple[tuple[int, ...], int]:
        """Return the steps of nodes in one grouping, and that grouping."""
        steps = tuple(self._grouped(each, component) for each in nodes)
        groupings = {self._of(component, step) for step in steps}
        if len(groupings) == 1:
            return steps, groupings.pop()
        scope = nodes[0].scope
        assert scope is not None
        grouping = self._new_grouping(component)
        entered = tuple(
            self._add(component, Regroup((step,), node.payload, grouping, scope.keys))
            for step, node in zip(steps, nodes, strict=True)
        )
        return entered, grouping

    # -- components and groupings ----------------------------------------------------------

    def _component_of(self, node: Node) -> int:
        """Return the component of a node's outermost scope."""
        scope = node.scope
        assert scope is not None
        while scope.outer is not None:
            scope = scope.outer
        if id(scope) not in self._scopes:
            self._seen.append(scope)
            self._scopes[id(scope)] = self._new_component()
        return self._scopes[id(scope)]

    def _new_component(self) -> int:
        self.components.append([])
        self._groupings.append(1)
        return len(self.components) - 1

    def _grouping_of(self, scope: Scope, component: int) -> int:
        if id(scope) not in self._inner:
            self._seen.append(scope)
            self._inner[id(scope)] = self._new_grouping(component)
        return self._inner[id(scope)]

    def _new_grouping(self, component: int) -> int:
        self._groupings[component] += 1
        return self._groupings[component] - 1

    def _of(self, component: int, step: int) -> int:
        return self.components[component][step].grouping

    def _add(self, component: int, step: Step) -> int:
        self.components[component].append(step)
        return len(self.components[component]) - 1


def _is_aggregate(node: Node) -> bool:
    """Return whether events are results of aggregates, possibly with other columns."""
    match node:
        case Mapped() | Left():
            return _is_aggregate(node.before)
        case United():
            return all(map(_is_aggregate, node.parts))
        case Applied():
            return isinstance(node.operator, LifetimeAggregate)
    return False
