"""Update streams: the newest value of each key, expensive steps, and the time they may take.

Idea: a plan says which columns tell keys apart, in which order waiting keys are served, what is
done to the newest value of a key, and how long a batch may last. Steps share one queue. A step may
also be done to every event, which is what an append stream is; both kinds go side by side.

Invariants:
1. Plans that compute something else describe themselves otherwise; schedule and time may change
   between two runs of a query (`test_every_part_of_an_update_plan_shows_in_its_description`).
2. No event comes too late for all; a key that goes back in time is told by its own updates
   (`test_an_update_that_is_older_than_what_was_taken_is_dropped_and_counted`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from icestream.core.clock import Clock, SystemClock
from icestream.core.errors import DefinitionError
from icestream.core.text import guess
from icestream.core.times import MINUS_INFINITY, Micros
from icestream.core.units import format_interval
from icestream.operators.latest.coalescing import ORIGIN
from icestream.operators.latest.pre_queue import PreQueueNode, described
from icestream.operators.latest.step import UpdateStep
from icestream.operators.latest.window_serving import WindowedBy
from icestream.plan.nodes.queries import KEY_GROUPS, SOURCE, TIME, Source

#: when only the newest of a key is processed: always, or by load
ALWAYS = "always"
LOAD = "load"
SCHEDULES = ("index", "linecutting", "inplace", "fifo")


@dataclass(frozen=True)
class Latest:
    """Update semantics: of the updates of a key the newest counts."""

    #: columns that tell keys apart; none where every event is an update of the one before
    keys: tuple[str, ...]
    schedule: str = "index"
    #: column that says what a key's staleness counts
    importance: str | None = None
    #: microseconds without news after which a key is forgotten
    forget: Micros | None = None
    #: `always` the newest only, or all events as long as the `load` allows that
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
            msg = "forgetAfter must be a positive interval: keys without news for so long leave"
            raise DefinitionError(msg)


@dataclass(frozen=True)
class Updates:
    """Steps over the newest values of keys, or over every event."""

    sources: tuple[Source, ...]
    #: columns of the events, under the user's names
    columns: pa.Schema
    time: pa.DataType
    steps: tuple[UpdateStep, ...]
    #: None where all steps are done to every event, in the batch that brings it
    latest: Latest | None
    #: how long the step may take in a batch; None for what the interval leaves
    budget: Micros | None = None
    #: time between two batches; None if batches follow each other without one
    interval: Micros | None = None
    #: trust in each source, 0 for most, where update streams are merged
    ranks: tuple[int, ...] | None = None
    #: what is done to the sources before their updates wait; nothing, or a union by trust, if None
    front: PreQueueNode | None = None
    #: windows that are updates
    windowed: WindowedBy | None = None
    late: str = "drop"
    key_groups: int = KEY_GROUPS
    #: who tells the time to the shards
    clock: Clock = field(default_factory=SystemClock, compare=False)

    @property
    def switches(self) -> bool:
        """Tell whether all events are processed as long as the load allows that."""
        return self.latest is not None and self.latest.under == LOAD

    @property
    def travels(self) -> pa.Schema:
        """Return the columns of the values that go to the shards."""
        if self.ranks is None and self.front is None:
            return self.columns
        return self.columns.append(pa.field(ORIGIN, pa.int32()))

    @property
    def waits(self) -> pa.Schema:
        """Return the columns of the values that wait."""
        return self.travels if self.front is None else self.front.stream.schema

    @property
    def views(self) -> tuple[UpdateStep, ...]:
        """Return a view for each step."""
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
    def jobs(self) -> int:
        """Return that one component does it all."""
        return 1

    @property
    def given_names(self) -> tuple[str, ...]:
        """Return the user's names of the columns."""
        return tuple(self.columns.names)

    @property
    def batch_schema(self) -> pa.Schema:
        """Return the columns of the batches that ingest reads."""
        named = [pa.field(column(place), each.type) for place, each in enumerate(self.columns)]
        return pa.schema([pa.field(TIME, self.time), pa.field(SOURCE, pa.int32()), *named])

    def results(self, view: UpdateStep) -> pa.Schema:
        """Return the columns of the rows."""
        return view.result

    def late_before(self, watermark: Micros) -> Micros:
        """Return an instant before all events."""
        return watermark

    def settled_by(self, latest: Micros) -> Micros:
        """Return the beginning of time: no time of events settles anything."""
        return MINUS_INFINITY

    def watermark(self, before: Micros, seen: tuple[Micros | None, ...]) -> Micros:
        """Return the watermark, which stays where it is."""
        return before

    def describe(self) -> dict[str, Any]:
        """Return the plan as JSON, for the checkpoint and for people."""
        return {
            "sources": [
                {"name": s.name, "slack": format_interval(s.slack), "nulls": s.nulls}
                for s in self.sources
            ],
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
        """Return what only some plans have."""
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
    """Return the name under which a column of the events travels to ingest."""
    return f"c{place}"
