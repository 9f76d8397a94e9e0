"""Features over frames, and events that meet them: the obvious versions.

Idea: every event is kept for ever. When it is final, each of its frames is found among all events
of its group, and its aggregates are computed from the list of their values.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from icestream.core.times import MINUS_INFINITY, Micros
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.dataflow.gather import GatherSpec
from icestream.operators.folding.columns import ARRIVAL, BATCH
from icestream.operators.frames.event_frames import EventFramesSpec
from icestream.operators.lifetimes.changes import LE, changes_of, identities_of
from icestream.operators.protocol import ChangeInputs, PastVersion
from icestream.plan.windows.frame import Frame

_ANSWERS: dict[str, Callable[[list[Any]], Any]] = {
    "sum": lambda values: sum(values) if values else None,
    "min": lambda values: min(values, default=None),
    "max": lambda values: max(values, default=None),
    "avg": lambda values: sum(values) / len(values) if values else None,
}


@dataclass(frozen=True)
class _Event:
    time: Micros
    event: tuple[int, int]
    group: tuple[int, int]
    values: dict[str, Any]

    @property
    def order(self) -> tuple[Micros, tuple[int, int]]:
        return self.time, self.event


class PlainStep:
    """What both have in common: no log, no memory."""

    took_snapshot = False
    gathered_bytes = 1 << 16
    released: tuple[int, ...] = ()

    def __init__(self) -> None:
        """Start before the first event."""
        self.statistics: dict[str, Any] = {"groups": 0, "partitions": 1}
        self._events: list[_Event] = []
        self._watermark = MINUS_INFINITY

    def restore(self, history: Sequence[PastVersion]) -> None:
        """Refuse: there is no log."""
        raise AssertionError(history)

    def _take(self, inputs: ChangeInputs, edges: Sequence[int]) -> None:
        for edge in edges:
            for changes in inputs.changes(edge, 0, 1 << 64):
                self._events += map(_event, _rows(changes), changes.to_pylist())

    def _final(self, watermark: Micros) -> list[_Event]:
        before, self._watermark = self._watermark, watermark
        final = [each for each in self._events if before <= each.time < watermark]
        return sorted(final, key=lambda each: each.order)


class PlainFrames(PlainStep):
    """The features of events."""

    def __init__(self, spec: EventFramesSpec) -> None:
        """Compute the features of a spec."""
        super().__init__()
        self._spec = spec
        #: final events of each group in their order
        self._groups: dict[tuple[int, int], list[_Event]] = defaultdict(list)

    def run(self, inputs: ChangeInputs, watermark: Micros) -> Iterator[pa.RecordBatch]:
        """Yield the features of the events that are final."""
        self._take(inputs, self._spec.edges)
        final = self._final(watermark)
        for each in final:
            self._groups[each.group].append(each)
        rows = [[*each.event, *self._answers(each)] for each in final]
        yield _changes(rows, [each.time for each in final], final, self._spec.result)

    def _answers(self, event: _Event) -> list[Any]:
        group, answers = self._groups[event.group], []
        for frame, aggregates in self._spec.frames:
            inside = _inside(frame, event, group)
            answers += [_answer(each, inside) for each in aggregates]
        return answers


class PlainGather(PlainStep):
    """Events with their features."""

    def __init__(self, spec: GatherSpec) -> None:
        """Bring together what a spec names."""
        super().__init__()
        self._spec = spec

    def run(self, inputs: ChangeInputs, watermark: Micros) -> Iterator[pa.RecordBatch]:
        """Yield the events that are final."""
        self._take(inputs, self._spec.edges)
        features: dict[tuple[int, int, int], list[dict[str, Any]]] = defaultdict(list)
        for edge in self._spec.feature_edges:
            for changes in inputs.changes(edge, 0, 1 << 64):
                for group, row in zip(_rows(changes), changes.to_pylist(), strict=True):
                    features[edge, *group].append(row)
        final = self._final(watermark)
        rows = []
        for each in final:
            found = dict(each.values)
            for edge in self._spec.feature_edges:
                found |= features[edge, *each.group].pop(0)
            rows.append([found[name] for name in self._spec.names])
        assert not any(features.values())
        yield _changes(rows, [each.time for each in final], final, self._spec.result)


def plain_step(spec: EventFramesSpec | GatherSpec) -> PlainFrames | PlainGather:
    """Return the obvious version of a step that keeps its own state."""
    return PlainFrames(spec) if isinstance(spec, EventFramesSpec) else PlainGather(spec)


def _inside(frame: Frame, event: _Event, group: list[_Event]) -> list[_Event]:
    here = bisect_right(group, event.order, key=lambda each: each.order)
    if frame.rows is not None:
        return group[max(0, here - frame.rows) : here]
    assert frame.range is not None
    first = event.time - frame.range
    if not frame.peers:
        return group[bisect_right(group, first, key=lambda each: each.time) : here]
    last = bisect_right(group, event.time, key=lambda each: each.time)
    return group[bisect_left(group, first, key=lambda each: each.time) : last]


def _answer(aggregate: Aggregate, events: list[_Event]) -> Any:
    if aggregate.column is None:
        return len(events)
    values = [each.values[aggregate.column] for each in events]
    if aggregate.function == "first":
        return values[0]
    return _ANSWERS[aggregate.function]([each for each in values if each is not None])


def _rows(changes: pa.RecordBatch) -> list[tuple[int, int]]:
    high, low = identities_of(changes)
    return list(zip(high.tolist(), low.tolist(), strict=True))


def _event(group: tuple[int, int], row: dict[str, Any]) -> _Event:
    return _Event(row[LE], (row[BATCH], row[ARRIVAL]), group, row)


def _changes(
    rows: list[list[Any]], times: list[Micros], events: list[_Event], schema: pa.Schema
) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [pa.array(each, field.type) for each, field in zip(columns, schema, strict=True)]
    payload = pa.RecordBatch.from_arrays(arrays, schema=schema)
    le, ones = np.array(times, dtype=np.int64), np.ones(len(times), dtype=np.int64)
    ids = np.array([each.event for each in events], dtype=np.int64).reshape(-1, 2).view(np.uint64)
    return changes_of(payload, le, le + 1, ones, ids[:, 0].copy(), ids[:, 1].copy())
