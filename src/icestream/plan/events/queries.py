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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from icestream.core.errors import DefinitionError
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.dataflow.gather import GatherSpec
from icestream.operators.dataflow.results import HOLDING
from icestream.operators.dataflow.steps import (
    Emit,
    Filtering,
    Identifying,
    JoinMany,
    Map,
    Merge,
    Projecting,
    Receive,
    Regroup,
    Sole,
    Stateful,
    Step,
    Trace,
)
from icestream.operators.frames.event_frames import EVENT_FIELDS, EventFramesSpec
from icestream.operators.frames.object_frames import ObjectFrames, Slide
from icestream.operators.lifetimes.aggregate import of_growing, only_final
from icestream.operators.lifetimes.answers import LifetimeAggregate
from icestream.operators.lifetimes.changes import (
    DIFF,
    RE,
    LifetimeOperator,
    changes_of,
    column_of,
    identities_of,
    payload_of,
)
from icestream.operators.lifetimes.conditions_met import ConditionsMet
from icestream.operators.lifetimes.open_windows import OpenWindows
from icestream.operators.lifetimes.output_modes import AppendOutput, NowOutput, UpdateOutput
from icestream.operators.lifetimes.top import TopK
from icestream.operators.multi_join.spec import MultiJoinSpec
from icestream.operators.multi_join.tracing import Lineage
from icestream.operators.object_aggregates.functions import needs_objects
from icestream.plan.events.aggregates_of_pairs import without_pairs
from icestream.plan.events.building import EventPlace
from icestream.plan.events.current_rows import (
    as_table,
    forgets_past,
    group_key,
    holds_by_group,
    is_comparable,
    late_windows,
    of_windows,
    row_key,
    stays,
)
from icestream.plan.events.dataflow import Dataflow, Output, in_order
from icestream.plan.events.features import feature_columns
from icestream.plan.events.final_answers import emitted_once, is_final, with_final_plans
from icestream.plan.events.pane_windows import PaneWindows
from icestream.plan.events.placement import Placement
from icestream.plan.events.update_rows import update_key, update_rows, without_maps
from icestream.plan.joins.multi_join import join_text
from icestream.plan.joins.tree import JoinTree, join_tree, shown_only
from icestream.plan.nodes.events import (
    Applied,
    Entered,
    Feature,
    Final,
    Framed,
    FromSource,
    Joined,
    Left,
    Mapped,
    Node,
    Paned,
    United,
    only_grows,
)
from icestream.plan.nodes.queries import KEY_GROUPS, Source
from icestream.plan.windows.frame import Frame
from icestream.sql.expressions.compile import Predicate, Projection, text_in_zone
from icestream.sql.expressions.tree import quoted


def compiled(
    outputs: tuple[tuple[Node, str], ...],
    numbers: Mapping[int, int],
    sources: tuple[Source, ...],
    columns: tuple[pa.Schema, ...],
    time: pa.DataType,
    *,
    zone: str = "UTC",
) -> Dataflow:
    """Return the dataflow that computes queries over events: nodes, each with its output mode.

    `numbers` maps the tags of sources to their numbers; expressions read times in a zone.
    """
    asked = [mode for _, mode in outputs]
    # how rows are made: those of mode `update` that are never replaced as in `append`
    written = tuple(_as_written(node, mode) for node, mode in outputs)
    outputs = without_pairs(with_final_plans(written))
    tree = join_tree([node for node, _ in outputs])
    modes = [mode for _, mode in outputs]
    forgets = all(mode in HOLDING and forgets_past(node) for node, mode in outputs)
    once = emitted_once(zip(tree.outputs, modes, strict=True))
    building = _Building(numbers, tree, once, forgets_past=forgets, zone=zone)
    for view, (node, (shown, mode)) in enumerate(zip(tree.outputs, outputs, strict=True)):
        building.emit(node, shown.payload, mode, view)
    components, edges = in_order(building.components, building.edges)
    spilling = tree.spilling
    return Dataflow(
        sources=sources,
        columns=columns,
        components=components,
        edges=edges,
        views=tuple(
            Output(
                node.payload,
                mode,
                row_key(node) if made == "now" else update_key(node) if made == "update" else (),
                _is_bare(node),
                node.delay,
            )
            for (node, made), mode in zip(outputs, asked, strict=True)
        ),
        time=time,
        reach=max(node.reach for node, _ in outputs),
        key_groups=KEY_GROUPS if spilling is None else spilling.key_groups,
        spilling=spilling,
        forgets_past=forgets,
        windows=late_windows(node for node, _ in outputs),
    )


def _as_written(node: Node, mode: str) -> tuple[Node, str]:
    """Return the node whose rows an output mode has, and how they are made."""
    if mode == "update":
        return update_rows(node)
    return (as_table(node) if mode == "now" else node), mode


class _Building(Placement):
    """The dataflow of queries over events, under construction."""

    def __init__(
        self,
        numbers: Mapping[int, int],
        tree: JoinTree,
        emitted_once: Sequence[Applied],
        *,
        forgets_past: bool,
        zone: str,
    ) -> None:
        super().__init__(tree.outputs)
        self._zone = zone
        #: whether nobody asks for instants before the latest event
        self._forgets_past = forgets_past
        self._numbers = numbers
        self._tree = tree
        #: aggregates that emit only final results
        self._emitted_once = emitted_once

    def emit(self, node: Node, payload: pa.Schema, mode: str, view: int) -> None:
        """Make the events of a node, without hidden columns, the rows of a view."""
        self._traced(node, stored=False)
        if mode in HOLDING:
            written = NowOutput if mode == "now" else UpdateOutput
            self._emit_by_key(shown_only(node, payload), payload, view, written)
            return
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
            self._add(component, Emit((step,), payload, self._of(component, step), view))

    def _emit_by_key(
        self, node: Node, payload: pa.Schema, view: int, written: type[NowOutput]
    ) -> None:
        """Make the rows of a node that hold the rows of a view, by key."""
        maps = list[Mapped]()
        if written is UpdateOutput:
            # no row is withdrawn, so what shows them may follow, and need not show their key
            last, node = node, without_maps(node)
            while last is not node:
                assert isinstance(last, Mapped)
                maps.insert(0, last)
                last = last.before
        places = self._ungrouped(node)
        if self._emits_by_key(node, places):
            (place,) = places
        else:
            place = self._held_by_key(node, places, written)
        for each in maps:
            place = self._step_or_map(place, each.change, each.payload, each.text)
        component, step = place.component, place.step
        assert component is not None
        self._add(component, Emit((step,), payload, self._of(component, step), view))

    def _held_by_key(
        self, node: Node, places: tuple[EventPlace, ...], written: type[NowOutput]
    ) -> EventPlace:
        """Return the rows of a node, from the places where they are, by their key."""
        keys, payload = row_key(node), node.payload
        output = written(payload, stays=stays(node), windows=of_windows(node), delay=node.delay)
        text = f"{output.name} by {', '.join(keys)}"
        component = places[0].component
        if component is not None and self._keys_inside(keys, node) is not None:
            step = self._held(component, places[0].step, output, text, keys)
        else:
            component = self._new_component()
            received = self._all_received(places, component, keys, payload)
            step = self._add(component, Stateful((received,), payload, 0, output, text))
        return EventPlace(payload, component, step)

    def _emits_by_key(self, node: Node, places: tuple[EventPlace, ...]) -> bool:
        """Let a top-k or windows emit the rows of keys that change, as they hold, if they can.

        They are the only ones, their events come from a source, and all their rows are shown.
        """
        component = places[0].component
        if len(self._tree.outputs) > 1 or component is None:
            return False
        number, steps = places[0].step, self.components[component]
        while isinstance(step := steps[number], Map) and isinstance(step.change, Projecting):
            (number,) = step.inputs
        match step:
            case Stateful(operator=OpenWindows() as windows) if group_key(node) is not None:
                current: LifetimeOperator = windows.current()
                (before,) = steps[step.inputs[0]].inputs
            case Stateful(operator=TopK(grows=True) as top) if holds_by_group(node):
                current, (before,) = top.current(), step.inputs
            case _:
                return False
        while isinstance(steps[before], Map):
            (before,) = steps[before].inputs
        received = steps[before]
        if not isinstance(received, Receive) or self.edges[received.edge].origin is not None:
            return False
        steps[number] = replace(step, operator=current, text=f"{step.text}, now")
        return True

    def _held(
        self,
        component: int,
        step: int,
        operator: AppendOutput | NowOutput,
        text: str,
        keys: tuple[str, ...] | None = None,
    ) -> int:
        """Hold the events of a step by some of their columns, or by all that can be keys."""
        payload = operator.result
        if keys is None:
            keys = tuple(each.name for each in payload if is_comparable(each.type))
        grouping = self._new_grouping(component)
        grouped = self._add(component, Regroup((step,), payload, grouping, keys))
        return self._add(component, Stateful((grouped,), payload, grouping, operator, text))

    # -- nodes -----------------------------------------------------------------------------

    def _place(self, node: Node) -> tuple[EventPlace, ...]:
        match node:
            case FromSource():
                texts = ("late events",) if node.late else ()
                number = self._numbers[node.source]
                source = EventPlace(node.payload, source=number, late=node.late, texts=texts)
                return (replace(source, numbered=True),)
            case Mapped():
                places = self._ungrouped(node.before)
                mapped = node.change, node.payload, node.text
                return tuple(self._step_or_map(each, *mapped) for each in places)
            case United():
                return tuple(each for part in node.parts for each in self._ungrouped(part))
            case Left():
                component = self._component_of(node.before)
                step = self._grouped(node.before, component)
                final = is_final(node, self._emitted_once)
                return (EventPlace(node.payload, component, step, final=final),)
            case Joined():
                return (self._joined(node),)
            case Framed():
                return (self._framed(node),)
            case Paned():
                return (self._paned(node),)
            case Final():
                places = self._ungrouped(node.before)
                return tuple(self._final(each, node.before) for each in places)
        msg = f"{type(node).__name__} is only allowed inside a group"
        raise AssertionError(msg)

    def _final(self, place: EventPlace, node: Node) -> EventPlace:
        """Return the final events of a place, those that had to wait at their last instant."""
        if not place.final:
            assert place.component is not None
            step = self._held(place.component, place.step, AppendOutput(place.payload), "settle")
            place = replace(place, step=step, final=True)
        if node.grows:
            return place
        return self._step_or_map(place, at_their_end, place.payload, "instants of their end")

    def _joined(self, node: Joined) -> EventPlace:
        component = self._new_component()
        steps = []
        for each, keys in zip(node.inputs, node.keys, strict=True):
            self._traced(each, stored=True)
            received = self._all_received(self._ungrouped(each), component, keys, each.payload)
            steps.append(received)
        where, text = None, join_text(node)
        if node.where is not None:
            where = Predicate.bind(node.payload, node.where, zone=self._zone)
            text = text_in_zone(text, where.bound)
        spec = MultiJoinSpec(
            self._tree.numbers[id(node)],
            tuple(each.payload for each in node.inputs),
            node.columns,
            node.spilling.partitions,
            where,
            text,
        )
        step = self._add(component, JoinMany(tuple(steps), node.payload, 0, spec))
        return EventPlace(node.payload, component, step)

    def _framed(self, node: Framed) -> EventPlace:
        """Create the components of features, and the one in which events meet them."""
        places = [self._identified(each, node.before) for each in self._ungrouped(node.before)]
        if node.time is not None:
            return replace(self._features(node.features, places, node.time), numbered=True)
        sets: dict[tuple[Any, ...], list[Feature]] = {}
        for feature in node.features:
            kind = "objects" if _is_object(feature, node.before.payload) else feature.frame.peers
            sets.setdefault((feature.keys, kind), []).append(feature)
        found = [self._features(chosen, places) for chosen in sets.values()]
        component, event = self._new_component(), tuple(each.name for each in EVENT_FIELDS)
        first = len(self.edges)
        received = [self._received(place, component, event) for place in places]
        middle = len(self.edges)
        features = tuple(pa.schema(list(each.payload)[len(event) :]) for each in found)
        received += [
            self._received(each, component, event, columns)
            for each, columns in zip(found, features, strict=True)
        ]
        spec = GatherSpec(
            node.before.payload,
            features,
            (*node.before.payload.names, *(each.aggregate.alias for each in node.features)),
            tuple(range(first, middle)),
            tuple(range(middle, len(self.edges))),
        )
        step = self._add(
            component, Sole(tuple(received), spec.result, 0, spec, "events with their features")
        )
        columns = feature_columns(spec.result, node.columns, zone=self._zone)
        text = ", ".join(f"{text} AS {name}" for name, text in node.columns)
        text = text_in_zone(f"with {text}", *columns.items)
        step = self._add(component, Map((step,), node.payload, 0, Projecting(columns), text))
        return EventPlace(node.payload, component, step, numbered=True)

    def _features(
        self,
        features: Sequence[Feature],
        places: Sequence[EventPlace],
        time: pa.Field | None = None,
    ) -> EventPlace:
        """Create the component of frames by the same keys; of one with a slide, given a `time`."""
        component, keys = self._new_component(), features[0].keys
        used = dict.fromkeys(text for each in features for text in each.aggregate.columns)
        inputs = {text: f"__x{place}" for place, text in enumerate(used)}
        event = [each.name for each in EVENT_FIELDS]
        texts = [*event, *map(quoted, keys), *(f"({t}) AS {name}" for t, name in inputs.items())]
        first = len(self.edges)
        received = []
        is_object = time is not None or _is_object(features[0], places[0].payload)
        for place in places:
            projection = Projection.bind(place.payload, texts, zone=self._zone)
            # groups of rows have their keys, so that people can read them
            hidden = () if is_object else keys
            narrow = pa.schema([each for each in projection.schema if each.name not in hidden])
            shown = text_in_zone(f"select {', '.join(texts)}", *projection.items)
            chosen = self._step_or_map(place, Projecting(projection), projection.schema, shown)
            by_arrival = not is_object
            received.append(self._received(chosen, component, keys, narrow, by_arrival=by_arrival))
        frames: dict[Frame, list[Aggregate]] = {}
        for each in features:
            old = each.aggregate
            renamed = [inputs[column] for column in old.columns]
            aggregate = Aggregate.of(old.function, renamed, old.alias, old.parameters)
            frames.setdefault(each.frame, []).append(aggregate)
        columns = pa.schema(list(narrow)[len(event) :])
        shown = "; ".join(
            f"{', '.join(a.text for a in aggregates)} over {frame.describe()['reach']}"
            for frame, aggregates in frames.items()
        )
        step: Step
        if is_object:
            slide, moves = None, features[0].frame.slide
            if time is not None and moves is not None:
                slide = Slide(moves, keys, time)
                shown += f" at every {features[0].frame.describe()['slide']}"
            operator = ObjectFrames(list(frames.items()), columns, slide)
            whole = self._add(component, Merge(tuple(received), narrow, 0))
            step = Stateful((whole,), operator.result, 0, operator, shown)
        else:
            every = tuple((frame, tuple(aggregates)) for frame, aggregates in frames.items())
            spec = EventFramesSpec(every, columns, tuple(range(first, len(self.edges))))
            step = Sole(tuple(received), spec.result, 0, spec, shown)
        return EventPlace(step.payload, component, self._add(component, step))

    def _paned(self, node: Paned) -> EventPlace:
        """Create the component of windows on a grid."""
        component, first = self._new_component(), len(self.edges)
        spec = PaneWindows.of(node)
        received = []
        for place in self._ungrouped(node.before):
            chosen = (self._identified if spec.needs_order else self._final)(place, node.before)
            sent = self._received(chosen, component, node.keys, spec.received, by_arrival=True)
            received.append(sent)
        spec = replace(spec, edges=tuple(range(first, len(self.edges))))
        step = Sole(tuple(received), node.payload, 0, spec, spec.text)
        return EventPlace(node.payload, component, self._add(component, step))

    def _identified(self, place: EventPlace, node: Node) -> EventPlace:
        """Return the final events of a place with their identities."""
        place = self._final(place, node)
        identifying = Identifying(numbered=place.numbered)
        text = "by arrival" if place.numbered else "by content"
        return self._step_or_map(place, identifying, identifying.schema(place.payload), text)

    def _traced(self, node: Node, *, stored: bool) -> None:
        """Trace the rows of a node, where they leave, to the partitions they come from."""
        lineages = self._tree.lineage(node)
        if lineages:
            places = self._ungrouped(node)
            self._places[id(node)] = tuple(self._trace(each, lineages, stored) for each in places)

    def _trace(self, place: EventPlace, lineages: tuple[Lineage, ...], stored: bool) -> EventPlace:
        if place.component is None:
            return place
        step = Trace((place.step,), place.payload, 0, lineages, stored)
        return replace(place, step=self._add(place.component, step))

    def _grouped(self, node: Node, component: int) -> int:
        """Return the step of a node inside a scope."""
        key = id(node)
        if key not in self._places:
            self._seen.append(node)
            step = self._step(node, component)
            self._places[key] = (EventPlace(node.payload, component, step),)
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
                steps, grouping = self._together(tuple(_parts(node)), component)
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
                if node.scope.outer is None and self._keys[id(node.scope)] == node.scope.keys:
                    self._outermost.add((component, grouping))
                back = Regroup((before,), node.payload, grouping, node.scope.keys)
                return self._add(component, back)
        msg = f"{type(node).__name__} is only allowed outside all groups"
        raise AssertionError(msg)

    def _operator(self, node: Applied) -> tuple[LifetimeOperator, str]:
        """Return the operator of a node, which waits if it may, and its text."""
        operator = node.operator
        if isinstance(operator, LifetimeAggregate) and any(node is n for n in self._emitted_once):
            grows = all(each.grows for each in node.inputs)
            return only_final(operator, grows=grows), f"{node.text}, told once"
        if self._forgets_past and isinstance(operator, ConditionsMet):
            found = operator.current()
            return (operator, node.text) if found is None else (found, f"{node.text}, now")
        if isinstance(operator, LifetimeAggregate | TopK) and all(map(only_grows, node.inputs)):
            growing: LifetimeOperator
            growing = operator.growing() if isinstance(operator, TopK) else of_growing(operator)
            return growing, node.text if growing is operator else f"{node.text}, of what stays"
        if isinstance(operator, LifetimeAggregate) and not all(each.grows for each in node.inputs):
            operator.check_retractions()
        return operator, node.text

    def _entered(self, node: Entered, component: int) -> int:
        scope = node.scope
        assert scope is not None
        if scope.outer is not None:
            before = self._grouped(node.before, component)
            grouping = self._grouping_of(scope, component)
            return self._add(component, Regroup((before,), node.payload, grouping, scope.keys))
        places, keys = self._ungrouped(node.before), self._keys[id(scope)]
        entered = self._all_received(places, component, keys, node.payload)
        if id(scope) in self._direct:
            return entered
        grouping = self._grouping_of(scope, component)
        return self._add(component, Regroup((entered,), node.payload, grouping, scope.keys))

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


def _parts(node: Node) -> Iterator[Node]:
    """Yield the nodes that a union has, also of unions in it."""
    for each in node.parts if isinstance(node, United) else ():
        yield from _parts(each) if isinstance(each, United) else (each,)


def at_their_end(changes: pa.RecordBatch) -> pa.RecordBatch:
    """Return final events of a query as events at their last instant."""
    ends = column_of(changes, RE)
    diff = column_of(changes, DIFF)
    return changes_of(payload_of(changes), ends - 1, ends, diff, *identities_of(changes))


def _is_bare(node: Node) -> bool:
    """Return whether rows have a time among their columns, so that none is added."""
    if isinstance(node, Mapped):
        return isinstance(node.change, Filtering | Projecting) and _is_bare(node.before)
    return isinstance(node, Framed) or (isinstance(node, Final) and stays(node.before))


def _is_object(feature: Feature, payload: pa.Schema) -> bool:
    """Return whether a feature needs states that are objects."""
    texts = feature.aggregate.columns
    types = {text: Projection.bind(payload, [f"({text}) AS x"]).schema[0].type for text in texts}
    return feature.frame.within_range or needs_objects(feature.aggregate, types)
