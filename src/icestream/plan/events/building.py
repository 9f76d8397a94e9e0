"""A dataflow under construction: steps of components, and edges between them.

Idea: what a node yields is at a *place*: a step of a component, or a source with maps. A map of
events that are still at their source runs there, before they are sent. Queries over events and jobs
divide their nodes into components by rules of their own, and add steps and edges here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pyarrow as pa

from icestream.operators.dataflow.steps import Map, Receive, Send, Step
from icestream.plan.events.dataflow import Edge

Change = Callable[[pa.RecordBatch], pa.RecordBatch]


@dataclass(frozen=True)
class EventPlace:
    """Where the events of a node come from: a step of a component, or a source with maps."""

    payload: pa.Schema
    component: int | None = None
    step: int = 0
    source: int = 0
    late: bool = False
    maps: tuple[Change, ...] = ()
    texts: tuple[str, ...] = ()
    #: whether its events are never retracted
    final: bool = True
    #: whether its changes carry the identity of their event
    numbered: bool = False
    #: columns that the ids of tuples are computed from; None if that is not known
    identity: tuple[str, ...] | None = None


class DataflowBuilding:
    """Components of steps, by number, and the edges between them."""

    def __init__(self) -> None:
        self.components: dict[int, list[Step]] = {}
        self.edges: list[Edge] = []

    def _add(self, component: int, step: Step) -> int:
        steps = self.components.setdefault(component, [])
        steps.append(step)
        return len(steps) - 1

    def _of(self, component: int, step: int) -> int:
        return self.components[component][step].grouping

    def _step_or_map(
        self, place: EventPlace, change: Change, payload: pa.Schema, text: str
    ) -> EventPlace:
        """Map the events of a place where they are: in a component, or before they are sent."""
        if place.component is None:
            maps, texts = (*place.maps, change), (*place.texts, text)
            return replace(place, payload=payload, maps=maps, texts=texts)
        grouping = self._of(place.component, place.step)
        step = Map((place.step,), payload, grouping, change, text)
        return replace(place, payload=payload, step=self._add(place.component, step))

    def _received(
        self,
        place: EventPlace,
        component: int,
        keys: tuple[str, ...],
        payload: pa.Schema | None = None,
        *,
        aligned: bool = False,
        by_arrival: bool = False,
    ) -> int:
        """Send the events of a place to a component; return the step that receives them.

        With a `payload`, only its columns are sent.
        """
        number, payload = len(self.edges), payload or place.payload
        source = place.source if place.component is None else None
        ends = source, place.component, component
        flags = aligned, place.late, by_arrival
        edge = Edge(*ends, keys, payload, place.maps, place.texts, *flags)
        self.edges.append(edge)
        if place.component is not None:
            grouping = self._of(place.component, place.step)
            self._add(place.component, Send((place.step,), payload, grouping, number, keys))
        return self._add(component, Receive(number, payload))
