"""Update streams: the newest value of each key, expensive steps, and the time they may take.

Idea: a plan defines the key columns, the order in which waiting keys are served, the steps that
process the newest value of a key, and how long a batch may last. Steps share one queue. A step may
also process every event, as in an append stream; both kinds run side by side.

Invariants:
1. Plans that compute something else have other descriptions; schedule and time may change
   between two runs of a query (`test_every_part_of_an_update_plan_shows_in_its_description`).
2. No event is late for all keys; the key's own updates decide whether one goes back in time
   (`test_an_update_that_is_older_than_what_was_taken_is_dropped_and_counted`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from icestream.core.clock import Clock, SystemClock
from icestream.core.errors import DefinitionError
from icestream.core.text_errors import guess
from icestream.core.times import MINUS_INFINITY, Micros
from icestream.core.units import format_interval
from icestream.operators.latest.coalescing import ORIGIN
from icestream.operators.latest.pre_queue import PreQueueNode, described
from icestream.operators.latest.step import UpdateStep
from icestream.operators.latest.window_serving import WindowedBy
from icestream.plan.nodes.queries import KEY_GROUPS, SOURCE, TIME, AnyPlan, Source

#: when only the newest update of a key is processed: always, or under load
ALWAYS = "always"
LOAD = "load"
SCHEDULES = ("inplace", "fifo", "linecutting")


@dataclass(frozen=True)
class Latest:
    """Update semantics: only the newest update of a key counts."""

    #: key columns; none if every event updates the previous one
    keys: tuple[str, ...]
    schedule: str = "inplace"
    #: microseconds without an update after which a key is forgotten
    forget: Micros | None = None
    #: `always` only the newest update; `load` all events while the load allows it
    under: str = ALWAYS

    def __post_init__(self) -> None:
        """Refuse a schedule that does not exist."""
        if self.schedule not in SCHEDULES:
            msg = (
                f"there is no schedule {self.schedule!r}; choose one of {', '.join(SCHEDULES)}"
                f"{guess(self.schedule, SCHEDULES)}"
            )
            raise DefinitionError(msg)
        if self.under not in (ALWAYS, LOAD):
            msg = f"under must be {ALWAYS!r} or {LOAD!r}; got {self.under!r}"
            raise DefinitionError(msg)
        if self.forget is not None and self.forget <= 0:
            msg = "forgetAfter must be a positive interval, after which idle keys are forgotten"
            raise DefinitionError(msg)


@dataclass(frozen=True)
class Updates(AnyPlan):
    """Steps over the newest values of keys, or over every event."""

    sources: tuple[Source, ...]
    #: columns of the events, under the user's names
    columns: pa.Schema
    time: pa.DataType
    steps: tuple[UpdateStep, ...]
    #: None if all steps process every event, in its own batch
    latest: Latest | None
    #: how long the steps may take in a batch; None for what the interval leaves
    budget: Micros | None = None
    #: time between two batches; None if batches follow each other at once
    interval: Micros | None = None
    #: rank of each source in a union, 0 for the most trusted
    ranks: tuple[int, ...] | None = None
    #: operators in front of the queue; None for none, or for a union by trust
    front: PreQueueNode | None = None
    #: windows whose newest is the update of a key
    windowed: WindowedBy | None = None
    late: str = "drop"
    key_groups: int = KEY_GROUPS
    clock: Clock = field(default_factory=SystemClock, compare=False)
    paced = True

    @property
    def switches(self) -> bool:
        """Return whether all events are processed while the load allows it."""
        return self.latest is not None and self.latest.under == LOAD

    @property
    def travels(self) -> pa.Schema:
        """Return the columns of the values that are sent to the shards."""
        if self.ranks is None and self.front is None:
            return self.columns
        return self.columns.append(pa.field(ORIGIN, pa.int32()))

    @property
    def waits(self) -> pa.Schema:
        return self.travels if self.front is None else self.front.stream.schema

    @property
    def views(self) -> tuple[UpdateStep, ...]:
        return self.steps

    @property
    def newest(self) -> dict[int, UpdateStep]:
        """Return the steps over newest values, by number of the view."""
        return {view: step for view, step in enumerate(self.steps) if not step.every}

    @property
    def every(self) -> dict[int, UpdateStep]:
        """Return the steps over every event, by number of the view."""
        return {view: step for view, step in enumerate(self.steps) if step.every}

    @property
    def earliest(self) -> Micros:
        """Return the least time of an event: windows of keys begin after 1970-01-01.

        Times behind a join are those of its rows, of which few events are part.
        """
        return super().earliest if self.windowed is None or self.front is not None else 1

    @property
    def has_queue(self) -> bool:
        return self.latest is not None

    @property
    def held_key(self) -> tuple[str, ...] | None:
        return None if self.latest is None else self.latest.keys or None

    @property
    def batch_schema(self) -> pa.Schema:
        """Return the columns of the batches that ingest reads."""
        named = [pa.field(column(place), each.type) for place, each in enumerate(self.columns)]
        return pa.schema([pa.field(TIME, self.time), pa.field(SOURCE, pa.int32()), *named])

    def results(self, view: Any) -> pa.Schema:
        """Return the columns of the rows of a view, a step."""
        columns: pa.Schema = view.result
        return columns

    def late_before(self, watermark: Micros) -> Micros:
        """Return an instant before all events: none is late."""
        return watermark

    def settled_by(self, latest: Micros) -> Micros:
        """Return the earliest instant: event times settle nothing."""
        return MINUS_INFINITY

    def watermark(self, before: Micros, seen: tuple[Micros | None, ...]) -> Micros:
        """Return the watermark, which never moves."""
        return before

    def describe(self) -> dict[str, Any]:
        """Return the plan as JSON, for the checkpoint and for people."""
        return {
            "sources": self._described_sources(),
            "columns": [f"{each.name} {each.type}" for each in self.columns],
            "time": str(self.time),
            "views": [
                {
                    "latest by": None
                    if self.latest is None or step.every
                    else list(self.latest.keys),
                    "step": step.text,
                }
                for step in self.steps
            ],
            "key groups": self.key_groups,
            **self._more(),
        }

    def _more(self) -> dict[str, Any]:
        """Return fields that only some plans have."""
        found: dict[str, Any] = {}
        if self.ranks is not None:
            found["union"] = list(self.ranks)
        if self.front is not None:
            found["arcs"] = described(self.front)
        if self.windowed is not None:
            spec = self.windowed.windows
            found["windows"] = {
                "size": format_interval(spec.size),
                "slide": format_interval(spec.slide),
                "semantics": spec.semantics,
                "by": list(self.windowed.by),
                "aggregates": [str(each) for each in self.windowed.aggregates],
                "having": list(self.windowed.having),
            }
        return found


def column(place: int) -> str:
    """Return the name, in ingest, of a column of an update stream."""
    return f"c{place}"
