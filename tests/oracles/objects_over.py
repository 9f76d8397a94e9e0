"""Object aggregates over frames of single events, the slow and obvious way.

Idea: the events of a group are sorted by time and arrival, the frame of each is the list of those
that its definition names, and the function gets that list.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.object_aggregates.functions import is_object
from icestream.plan.events.features import FeatureCall
from icestream.plan.nodes.queries import TIME
from icestream.plan.windows.frame import UNBOUNDED, Frame
from tests.oracles.answers import answer
from tests.oracles.object_aggregates import obvious_answer

Event = Mapping[str, Any]


def obvious_features(
    events: Sequence[Event], calls: Sequence[FeatureCall], types: Mapping[str, pa.DataType]
) -> list[dict[str, Any]]:
    """Return the features of events, given in the order of arrival with a time under `t`."""
    found: list[dict[str, Any]] = [{} for _ in events]
    for call in calls:
        groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
        for place in sorted(range(len(events)), key=lambda each: events[each]["t"]):
            groups[tuple(events[place][key] for key in call.keys)].append(place)
        aggregate = Aggregate.of(call.function, call.texts, call.name, call.parameters)
        for members in groups.values():
            for at, place in enumerate(members):
                inside = _inside(call.frame, [events[each] for each in members], at)
                timed = [{**each, TIME: each["t"]} for each in inside]
                if is_object(aggregate, types):
                    found[place][call.name] = obvious_answer(aggregate, timed)
                else:
                    found[place][call.name] = answer(aggregate, timed, types)
    return found


def _inside(frame: Frame, group: list[Event], at: int) -> list[Event]:
    now = group[at]["t"]
    last = at + 1
    if frame.peers:
        last = max(n for n, each in enumerate(group) if each["t"] == now) + 1
    chosen = group[:last]
    if frame.range is not None and frame.range < UNBOUNDED:
        earliest = now - frame.range + (not frame.peers)
        chosen = [each for each in chosen if each["t"] >= earliest]
    return chosen if frame.rows is None else chosen[-frame.rows :]
