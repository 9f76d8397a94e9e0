"""Logical plans: pure data, equal if they compute the same.

Idea: a plan defines what to compute, not how: the events of some sources, and one or more *views*
of them, each a kind of window with groupings and aggregates. Views share the events, their columns
and whatever state they can. A plan describes itself as JSON, which the checkpoint stores; a query
that restarts with another plan goes on if it can (`plan.evolution`).

Invariants:
1. Plans that compute something else have other descriptions, even if only the order of keys or
   inputs differs (`test_every_part_of_a_plan_shows_in_its_description`).
2. The watermark is in whole milliseconds if the slack is, and never goes back
   (`test_the_watermark_never_goes_back`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import pyarrow as pa

from icestream.core.clock import Clock, SystemClock
from icestream.core.errors import DefinitionError
from icestream.core.times import MINUS_INFINITY, Micros
from icestream.core.units import format_interval
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.object_aggregates.functions import needs_objects, result_type
from icestream.plan.windows.frame import GROUPING_ID, Frame
from icestream.plan.windows.grid import Cumulative, Windows
from icestream.plan.windows.session import Session

#: default number of key groups of a checkpoint
KEY_GROUPS = 4096

#: names of the first columns of every batch
TIME = "time"
SOURCE = "source"


#: how a view divides the stream into windows
WindowKind = Windows | Cumulative | Frame | Session


@dataclass(frozen=True)
class Source:
    """One input stream."""

    name: str
    #: how far an event may lag behind the latest one
    slack: Micros
    #: `error` or `drop`: what happens to events without a time
    nulls: str = "error"
    #: time without events after which it no longer holds back the watermark; None for never
    idle: Micros | None = None


class AnyPlan:
    """What windows, dataflows and update steps have in common, unless they differ."""

    sources: tuple[Source, ...]
    key_groups: int
    #: clock of the shards
    clock: Clock = SystemClock()
    #: whether versions adapt to the time that batches take
    paced = False
    #: whether measured rates decide which components run together
    measured = False
    #: whether nobody asks for instants before the latest event
    forgets_past: bool = False
    #: how long after the last event something may still be emitted
    reach: Micros = 0

    @property
    def jobs(self) -> int:
        """Return the number of components."""
        return 1

    def check_fusion(self, together: Any, shards: int) -> None:
        """Refuse to run components in one task unless these are operators of a job that may be."""
        msg = "fuse is for jobs (ice.job); for other queries the plan fixes what runs together"
        raise DefinitionError(msg)

    def least_quota(self, operator: int, grouping: int) -> int:
        """Return the bytes of a shard in which each operator and each grouping need so many."""
        return operator

    @property
    def fixed_shards(self) -> str:
        """Return why the number of shards of a checkpoint cannot change; nothing if it can."""
        return ""

    @property
    def has_queue(self) -> bool:
        """Return whether keys may wait from batch to batch."""
        return False

    @property
    def held_key(self) -> tuple[str, ...] | None:
        """Return the columns that identify rows in mode `now`; None without such rows."""
        return None

    @property
    def own_ends(self) -> tuple[str, ...]:
        """Return the inputs with the ends of sessions whose gaps are each event's own."""
        return ()

    def watermark(self, before: Micros, seen: tuple[Micros | None, ...]) -> Micros:
        """Return the watermark once the sources have reached `seen`; it never goes back.

        It has whole milliseconds, as in Spark. A source without events holds it back.
        """
        reached = [
            MINUS_INFINITY if latest is None else latest // 1000 * 1000 - source.slack
            for latest, source in zip(seen, self.sources, strict=True)
        ]
        return max(before, min(reached))

    def as_stored(self, stored: Mapping[str, Any]) -> Self:
        """Return the plan with the key groups that a checkpoint has."""
        plan: Any = self
        changed: Self = replace(plan, key_groups=stored.get("key groups", self.key_groups))
        return changed

    def _described_sources(self) -> list[dict[str, str]]:
        return [
            {"name": each.name, "slack": format_interval(each.slack), "nulls": each.nulls}
            for each in self.sources
        ]


@dataclass(frozen=True)
class View:
    """One query over the events of a plan."""

    windows: WindowKind
    aggregates: tuple[Aggregate, ...]
    #: key columns of each grouping, by position among the plan's keys
    groupings: tuple[tuple[int, ...], ...]
    #: key columns that the rows show, by position
    keys: tuple[int, ...]
    #: whether rows contain their grouping id
    tells_grouping: bool = False
    #: `append`: all rows of a closing window; `changes`: rows of groups that changed
    mode: str = "append"

    def grouping_id(self, grouping: tuple[int, ...]) -> int:
        """Return the number of a grouping in the rows, as Spark's `grouping_id()`."""
        return grouping_id(grouping, self.keys)


@dataclass(frozen=True)
class Plan(AnyPlan):
    """Views of the events of one or more sources."""

    sources: tuple[Source, ...]
    #: key columns of all views as the user names them; ingest calls them k0, k1, ...
    keys: pa.Schema
    #: input columns of the aggregates, called x0, x1, ...
    inputs: pa.Schema
    #: the expression of each input column, as the user wrote it
    expressions: tuple[str, ...]
    views: tuple[View, ...]
    #: type of the time column, and of the window's start and end
    time: pa.DataType
    #: `drop` or `keep`: what happens to events whose windows have all closed
    late: str = "drop"
    key_groups: int = KEY_GROUPS
    #: `panes` or `tuples`: what the log stores for windows on a grid; `auto` to choose by size
    store: str = "auto"

    @classmethod
    def of(
        cls,
        *,
        windows: WindowKind,
        keys: pa.Schema,
        aggregates: tuple[Aggregate, ...],
        grouping_sets: tuple[tuple[int, ...], ...] | None = None,
        mode: str = "append",
        **shared: Any,
    ) -> Plan:
        """Return a plan with one view, which groups by all keys or by sets of them."""
        places = tuple(range(len(keys)))
        view = View(
            windows, aggregates, grouping_sets or (places,), places, grouping_sets is not None, mode
        )
        return cls(keys=keys, views=(view,), **shared)

    @cached_property
    def groupings(self) -> tuple[tuple[int, ...], ...]:
        """Return the groupings of all views, each once."""
        return tuple(dict.fromkeys(each for view in self.views for each in view.groupings))

    @cached_property
    def one_grouping(self) -> bool:
        """Return whether every view groups by all keys and none shows its grouping."""
        shows_grouping = any(view.tells_grouping for view in self.views)
        return not shows_grouping and self.groupings == (tuple(range(len(self.keys))),)

    def grouping_id(self, grouping: tuple[int, ...]) -> int:
        """Return the number that distinguishes the groups of a grouping from those of others."""
        return grouping_id(grouping, tuple(range(len(self.keys))))

    def on_panes(self, view: View) -> bool:
        """Return whether a view is on a grid, and its aggregates have a fixed size."""
        on_grid = isinstance(view.windows, Windows | Cumulative)
        return on_grid and not any(needs_objects(each, self.types) for each in view.aggregates)

    def least_quota(self, operator: int, grouping: int) -> int:
        kinds = {
            None
            if self.on_panes(view)
            else (view.windows, view.keys, view.groupings, view.tells_grouping)
            for view in self.views
        }
        return len(kinds) * operator

    @property
    def group_keys(self) -> pa.Schema:
        """Return the columns that identify groups: the keys, and the grouping."""
        if self.one_grouping:
            return self.keys
        return self.keys.append(pa.field(GROUPING_ID, pa.int64(), nullable=False))

    @property
    def types(self) -> dict[str, pa.DataType]:
        return {field.name: field.type for field in self.inputs}

    @property
    def batch_schema(self) -> pa.Schema:
        """Return the columns of the batches that ingest reads."""
        keys = [pa.field(f"k{i}", key.type) for i, key in enumerate(self.keys)]
        return pa.schema(
            [pa.field(TIME, self.time), pa.field(SOURCE, pa.int32()), *keys, *self.inputs]
        )

    def results(self, view: Any) -> pa.Schema:
        """Return the columns of the rows that a view emits."""
        keys = [self.keys.field(place) for place in view.keys]
        if view.tells_grouping:
            keys.append(pa.field(GROUPING_ID, pa.int64(), nullable=False))
        answers = [pa.field(each.alias, result_type(each, self.types)) for each in view.aggregates]
        return pa.schema([view.windows.heading(self.time), *keys, *answers])

    def late_before(self, watermark: Micros) -> Micros:
        """Return the instant before which no event is in an open window of any view."""
        return min(view.windows.late_before(watermark) for view in self.views)

    @cached_property
    def own_ends(self) -> tuple[str, ...]:
        windows = (view.windows for view in self.views)
        found = (each.until for each in windows if isinstance(each, Session))
        return tuple(dict.fromkeys(name for name in found if name is not None))

    def settled_by(self, latest: Micros) -> Micros:
        """Return the watermark that settles all windows of an event in all views."""
        return max(view.windows.settled_by(latest) for view in self.views)

    def describe(self) -> dict[str, Any]:
        """Return the plan as JSON, for the checkpoint and for people.

        It omits what may change: what the log stores, and the output mode of a plan with one view.
        """
        return {
            "sources": self._described_sources(),
            "time": str(self.time),
            "keys": [f"{key.name} {key.type}" for key in self.keys],
            "inputs": [
                f"{column.name}: {expression} {column.type}"
                for column, expression in zip(self.inputs, self.expressions, strict=True)
            ],
            "views": [
                {
                    **view.windows.describe(),
                    "groupings": [
                        [self.keys.names[place] for place in each] for each in view.groupings
                    ],
                    "shows": [self.keys.names[place] for place in view.keys]
                    + [GROUPING_ID] * view.tells_grouping,
                    "aggregates": [f"{each.text} as {each.alias}" for each in view.aggregates],
                    **({"mode": view.mode} if len(self.views) > 1 else {}),
                }
                for view in self.views
            ],
            "late": self.late,
            "key groups": self.key_groups,
        }


def grouping_id(grouping: tuple[int, ...], keys: tuple[int, ...]) -> int:
    """Return a bit, first key highest, for each key of a query that is not in a grouping."""
    last = len(keys) - 1
    return sum(1 << (last - i) for i, key in enumerate(keys) if key not in grouping)


def mode_of(view: Mapping[str, Any]) -> str | None:
    """Return the output mode of a described view, if it has one.

    In earlier releases, mode `changes` was called update, and nothing by that name had a key.
    """
    mode: str | None = view.get("mode")
    return "changes" if mode == "update" and "key" not in view else mode
