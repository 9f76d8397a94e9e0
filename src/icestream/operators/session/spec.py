"""What a session window is, and what is computed over it.

Idea: a session is `[first event, last event + gap)`. An event belongs to it if it comes at its end
at the latest, so a pause of exactly the gap does not part two sessions, as in Spark's
`session_window`.

Invariants:
1. An event is late exactly when the watermark has reached its time plus the gap
   (`test_an_event_is_late_when_the_watermark_reached_its_own_end`).
2. Aggregates whose state is an object are refused where the query is defined
   (`test_an_aggregate_with_an_object_is_refused`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icestream.core.errors import DefinitionError
from icestream.core.times import MINUS_INFINITY, Micros
from icestream.core.units import format_interval
from icestream.operators.aggregates import Aggregate
from icestream.operators.fields import ENTRY_FIELDS, Layout

#: places of the words before the fields of a session
HI = 0
LO = 1
START = 2
END = 3
SESSION_FIELDS = 4


@dataclass(frozen=True)
class Session:
    """Session windows with a gap in microseconds."""

    gap: Micros

    def __post_init__(self) -> None:
        """Refuse a gap that would make sessions without extent."""
        if self.gap <= 0:
            msg = f"a session's gap must be positive; got {format_interval(self.gap)}"
            raise DefinitionError(msg)

    def describe(self) -> dict[str, str]:
        """Return the windows for people and for checkpoints."""
        return {"kind": "session", "gap": format_interval(self.gap)}

    def late_before(self, watermark: Micros) -> Micros:
        """Return the instant before which an event's own session has ended at the watermark."""
        return MINUS_INFINITY if watermark == MINUS_INFINITY else watermark - self.gap + 1

    def settled_by(self, latest: Micros) -> Micros:
        """Return the end of the session of an event at `latest`, if none comes after it."""
        return latest + self.gap

    def heading(self, time: pa.DataType) -> pa.Field:
        """Return the first column of the result rows, given the type of the time column."""
        bounds = [pa.field("start", time), pa.field("end", time)]
        return pa.field("session_window", pa.struct(bounds))


@dataclass(frozen=True)
class SessionSpec:
    """What a session aggregate computes, with the types of its inputs."""

    session: Session
    aggregates: tuple[Aggregate, ...]
    keys: pa.Schema
    inputs: pa.Schema

    def __post_init__(self) -> None:
        """Refuse aggregates that sessions cannot keep."""
        for aggregate in self.aggregates:
            if aggregate.is_object:
                msg = (
                    f"{aggregate.function} (behind {aggregate.alias!r}) is not available over "
                    "sessions: use it over window(...), or an aggregate of fixed size such as "
                    "count, sum, avg, min, max, variances, first and last"
                )
                raise DefinitionError(msg)

    @property
    def types(self) -> dict[str, pa.DataType]:
        """Return the type of each input column."""
        return {field.name: field.type for field in self.inputs}

    @cached_property
    def layout(self) -> Layout:
        """Return the fields all aggregates need together."""
        return Layout.of(
            field for aggregate in self.aggregates for field in aggregate.fields(self.types)
        )

    @property
    def width(self) -> int:
        """Return the words of a session: hi, lo, start, end, then the fields."""
        return SESSION_FIELDS + self.layout.field_words

    @cached_property
    def places(self) -> npt.NDArray[np.int64]:
        """Return the first word of each field in a session."""
        return self.layout.places + (SESSION_FIELDS - ENTRY_FIELDS)

    @cached_property
    def identity(self) -> npt.NDArray[np.int64]:
        """Return a session into which nothing was folded."""
        fields = self.layout.entry_identity[ENTRY_FIELDS:]
        return np.concatenate([np.zeros(SESSION_FIELDS, dtype=np.int64), fields])
