"""Frames: windows that move with events, in the order of (time, arrival), as pure data.

Idea: a frame defines how far back a window reaches (`range` of time or `rows`), when it is computed
(`slide`) and which events it counts (`partition`). Without a slide there is a row for every event,
over the window that ends with it: in SQL, `RANGE/ROWS BETWEEN ... PRECEDING AND CURRENT ROW`.
`range` is half open, (t - range, t], and events of equal time are ordered by arrival.

With `peers`, as in SQL's RANGE, an event at t - range belongs to the window too, and every event
sees all others of its time and group; UNBOUNDED as the range reaches back to the first event.

    rows 3, partition "key"          events   a1 b1 a2 a3 b2 a4
    slide None                       rows     a:1 b:1 a:12 a:123 b:12 a:234
    slide RowsSlide(2)               rows             a:12           b:12 a:234

Invariant: every frame that can be built is valid (`test_frames_without_meaning_are_refused`).
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from icestream.core.errors import DefinitionError
from icestream.core.times import INFINITY, Micros
from icestream.core.units import format_interval

#: the key column that identifies grouping sets
GROUPING_ID = "grouping_id"

#: the range of a frame with peers that reaches back to the first event
UNBOUNDED: Micros = INFINITY
#: whose events a frame counts
PARTITIONS = ("key", "stream")


@dataclass(frozen=True, slots=True)
class RowsSlide:
    """Compute the window at every `rows`-th event."""

    rows: int

    def __post_init__(self) -> None:
        """Refuse a slide that never moves."""
        if self.rows <= 0:
            msg = f"a slide must be at least one row; got {self.rows}"
            raise DefinitionError(msg)


@dataclass(frozen=True)
class Frame:
    """A window that moves with events."""

    #: how far back the window reaches, in microseconds; None if it reaches back `rows`
    range: Micros | None = None
    #: maximum number of events of the window; None if all in `range`
    rows: int | None = None
    #: None: a row for every event; microseconds: rows at every multiple (with `rows` only)
    slide: Micros | RowsSlide | None = None
    #: `key`: each group counts its own events; `stream`: events of all groups count
    partition: str = "key"
    #: whether events of equal time see each other and the range includes both of its ends
    peers: bool = False

    def __post_init__(self) -> None:
        """Refuse invalid frames."""
        if self.range is None and self.rows is None:
            msg = "a frame reaches back a range of time or a number of rows; give one"
            raise DefinitionError(msg)
        in_time = isinstance(self.slide, int)
        if self.within_range and (in_time or self.partition != "key" or self.peers):
            msg = (
                "a frame of a number of rows within a range of time counts a group's own events, "
                "with rows at every event or every m-th: write partitionBy, and no slide in time"
            )
            raise DefinitionError(msg)
        if self.range is not None and (self.range < 0 or self.reach <= 0):
            shown = format_interval(self.range)
            msg = f"a frame must reach back a positive range or number of rows; got {shown}"
            raise DefinitionError(msg)
        if self.rows is not None and self.rows <= 0:
            msg = f"a frame must reach back a positive range or number of rows; got {self.rows}"
            raise DefinitionError(msg)
        if self.peers and (self.range is None or self.slide is not None or self.in_one_shard):
            msg = "only a range of a group's own events, with a row for every event, has peers"
            raise DefinitionError(msg)
        if self.partition not in PARTITIONS:
            msg = f"a frame counts events by 'key' or by 'stream'; got {self.partition!r}"
            raise DefinitionError(msg)
        if isinstance(self.slide, int):
            if self.range is not None:
                msg = "a range that slides in time is a window on a grid: use window(range, slide)"
                raise DefinitionError(msg)
            if self.slide <= 0:
                msg = f"a slide must be positive; got {self.slide} microseconds"
                raise DefinitionError(msg)

    @property
    def reach(self) -> int:
        """Return how far back the frame reaches, in microseconds or in rows."""
        if self.range is None:
            return self.rows or 0
        return self.range + self.peers if self.range < UNBOUNDED else self.range

    @property
    def within_range(self) -> bool:
        """Return whether the frame is a number of rows, of those within a range of time."""
        return self.range is not None and self.rows is not None

    @property
    def lives(self) -> Micros:
        """Return how long after its time an event may be in the frame; INFINITY if by rows."""
        return INFINITY if self.range is None else self.reach

    @property
    def in_one_shard(self) -> bool:
        """Return whether events of all groups are counted together, so that one shard sees all."""
        return self.partition == "stream" and (self.rows is not None or self.slide is not None)

    def late_before(self, watermark: Micros) -> Micros:
        """Return the instant before which events are late: their place in the order has passed."""
        return watermark

    def settled_by(self, latest: Micros) -> Micros:
        """Return the watermark at which everything up to an event at `latest` is emitted."""
        if isinstance(self.slide, int):
            return self.due(latest)
        return latest + 1

    def heading(self, time: pa.DataType) -> pa.Field:
        """Return the first column of the result rows: their instant."""
        return pa.field("time", time)

    def describe(self) -> dict[str, str]:
        """Return the frame for people and for checkpoints."""
        if self.range is None:
            reach = f"{self.rows} rows"
        else:
            reach = format_interval(self.range) if self.range < UNBOUNDED else "unbounded"
            reach += " with peers" if self.peers else ""
            reach = f"{self.rows} rows within {reach}" if self.rows is not None else reach
        slide = "every event"
        if isinstance(self.slide, int):
            slide = format_interval(self.slide)
        elif self.slide is not None:
            slide = f"{self.slide.rows} rows"
        return {"kind": "frame", "reach": reach, "slide": slide, "partition": self.partition}

    def due(self, time: Micros) -> Micros:
        """Return the first instant of a time slide that includes an event."""
        assert isinstance(self.slide, int)
        return (time // self.slide + 1) * self.slide
