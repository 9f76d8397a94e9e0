"""Logical plans: pure data, equal when they compute the same.

Idea: a plan says what to compute and nothing of how. It describes itself as JSON, which is kept in
the checkpoint; a query that comes back with another plan is told what differs.

Invariants:
1. Plans that compute something else describe themselves otherwise, also where only the order of
   keys or inputs differs (`test_every_part_of_a_plan_shows_in_its_description`).
2. The watermark is in whole milliseconds if the slack is, and never goes back
   (`test_the_watermark_never_goes_back`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from icestream.core.errors import CheckpointError
from icestream.core.times import MINUS_INFINITY, Micros
from icestream.core.units import format_interval
from icestream.operators.aggregates import Aggregate
from icestream.operators.panes import Windows
from icestream.operators.window import WindowSpec

#: key groups of a checkpoint unless the user says otherwise
KEY_GROUPS = 256

#: names of the columns every batch begins with
TIME = "time"
SOURCE = "source"


@dataclass(frozen=True)
class Source:
    """One input stream."""

    name: str
    #: how far behind the latest event an event may come
    slack: Micros
    #: `error` or `drop`: what to do with events that have no time
    nulls: str = "error"


@dataclass(frozen=True)
class Plan:
    """A window aggregate over one or more sources."""

    sources: tuple[Source, ...]
    windows: Windows
    #: key columns as the user names them; ingest calls them k0, k1, ...
    keys: pa.Schema
    #: input columns of the aggregates, called x0, x1, ...
    inputs: pa.Schema
    #: what each input column is, as the user wrote it
    expressions: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]
    #: key columns of each grouping set, by position; None for one grouping by all of them
    grouping_sets: tuple[tuple[int, ...], ...] | None
    #: type of the time column, which the window's start and end have too
    time: pa.DataType
    #: `drop` or `keep`: what happens to events whose every window has closed
    late: str = "drop"
    key_groups: int = KEY_GROUPS

    @property
    def group_keys(self) -> pa.Schema:
        """Return the columns that tell groups apart: the keys, and which grouping set it is."""
        if self.grouping_sets is None:
            return self.keys
        return self.keys.append(pa.field("grouping_id", pa.int64(), nullable=False))

    @property
    def spec(self) -> WindowSpec:
        """Return what the window operator needs to know."""
        return WindowSpec(self.windows, self.aggregates, self.group_keys, self.inputs)

    @property
    def batch_schema(self) -> pa.Schema:
        """Return the columns of the batches that ingest reads."""
        keys = [pa.field(f"k{i}", key.type) for i, key in enumerate(self.keys)]
        return pa.schema(
            [pa.field(TIME, self.time), pa.field(SOURCE, pa.int32()), *keys, *self.inputs]
        )

    @property
    def results(self) -> pa.Schema:
        """Return the columns of the rows that the query emits."""
        window = pa.struct([pa.field("start", self.time), pa.field("end", self.time)])
        types = self.spec.types
        answers = [pa.field(a.alias, a.result_type(types)) for a in self.aggregates]
        return pa.schema([pa.field("window", window), *self.group_keys, *answers])

    def watermark(self, before: Micros, seen: tuple[Micros | None, ...]) -> Micros:
        """Return the watermark once the sources have reached `seen`; it never goes back.

        Whole milliseconds, as Spark keeps it. A source without events holds it.
        """
        reached = [
            MINUS_INFINITY if latest is None else latest // 1000 * 1000 - source.slack
            for latest, source in zip(seen, self.sources, strict=True)
        ]
        return max(before, min(reached))

    def describe(self) -> dict[str, Any]:
        """Return the plan as JSON, for the checkpoint and for people."""
        return {
            "sources": [
                {"name": s.name, "slack": format_interval(s.slack), "nulls": s.nulls}
                for s in self.sources
            ],
            "range": format_interval(self.windows.range),
            "slide": format_interval(self.windows.slide),
            "offset": format_interval(self.windows.offset),
            "time": str(self.time),
            "keys": [f"{key.name} {key.type}" for key in self.keys],
            "grouping sets": self.grouping_sets
            and [[self.keys.names[i] for i in chosen] for chosen in self.grouping_sets],
            "inputs": [
                f"{column.name}: {expression} {column.type}"
                for column, expression in zip(self.inputs, self.expressions, strict=True)
            ],
            "aggregates": [
                f"{each.function}({each.column or '*'}) as {each.alias}" for each in self.aggregates
            ],
            "late": self.late,
            "key groups": self.key_groups,
        }


def check_same_plan(root: str, kept: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Refuse a checkpoint of another plan, naming every difference."""
    differences = [
        f"{name}: the checkpoint has {kept.get(name)!r}, the query has {wanted.get(name)!r}"
        for name in {**kept, **wanted}
        if kept.get(name) != wanted.get(name)
    ]
    if differences:
        msg = (
            f"the checkpoint at {root} belongs to another query. "
            + "; ".join(differences)
            + ". Give this query a checkpoint location of its own, or change it back"
        )
        raise CheckpointError(msg)
