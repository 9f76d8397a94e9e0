"""Session windows the slow, obvious way: a list of sessions per group, merged event by event.

Idea: an event is a session of its own, `[time, time + gap)`; the gap may be its own, and without a
positive one it is in no session. It is dropped if the watermark before
its batch has reached that end; else it is merged with every open session of its group that it
touches, at either end. Sessions whose end the watermark has reached are reduced and removed.
These are Spark's rules for `session_window` in append mode, one rule per line.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from icestream.core.times import MINUS_INFINITY, Micros
from icestream.plan.nodes.queries import Plan
from icestream.plan.windows.session import Session
from tests.oracles.answers import answer
from tests.oracles.arrivals import ArrivalOracle, Row
from tests.oracles.grid import plain


@dataclass
class _Open:
    start: Micros
    end: Micros
    #: with the number of its arrival
    events: list[tuple[int, dict[str, Any]]]


class ObviousSessions(ArrivalOracle):
    """The rows that a query over sessions must emit, batch by batch."""

    def __init__(self, plan: Plan) -> None:
        """Start before the first batch."""
        super().__init__(plan)
        (self._view,) = plan.views
        assert isinstance(self._view.windows, Session)
        self._windows = self._view.windows
        self._latest_end: Micros = MINUS_INFINITY
        self._open: dict[Row, list[_Open]] = {}

    def _end(self, latest: Micros) -> Micros:
        gap = self._windows.gap
        return max(self._latest_end, latest) if gap is None else latest + gap

    def _own_end(self, time: Micros, event: dict[str, Any]) -> Micros:
        if self._windows.gap is not None:
            return time + self._windows.gap
        until = event[str(self._windows.until)]
        if until is None:
            return time
        since: dt.timedelta = until.replace(tzinfo=None) - dt.datetime(1970, 1, 1)
        return since // dt.timedelta(microseconds=1)

    def _take(self, time: Micros, event: dict[str, Any], before: Micros) -> None:
        end = self._own_end(time, event)
        if end <= max(time, before):
            self.late += max(time, end) <= before
            return
        self._latest_end = max(self._latest_end, end)
        for key in self._keys(event):
            joined = _Open(time, end, [(self._arrived, event)])
            apart = []
            for other in self._open.get(key, []):
                if other.start <= joined.end and joined.start <= other.end:
                    joined.start = min(joined.start, other.start)
                    joined.end = max(joined.end, other.end)
                    joined.events += other.events
                else:
                    apart.append(other)
            self._open[key] = [*apart, joined]

    def _keys(self, event: dict[str, Any]) -> Iterator[Row]:
        for grouping in self._view.groupings:
            key = [plain(event[f"k{i}"]) if i in grouping else None for i in self._view.keys]
            ids = [self._view.grouping_id(grouping)] if self._view.tells_grouping else []
            yield (*key, *ids)

    def _settle(self, watermark: Micros) -> list[Row]:
        self.watermark = watermark
        rows = []
        for key, sessions in self._open.items():
            for closed in [each for each in sessions if each.end <= watermark]:
                sessions.remove(closed)
                rows.append(self._row(key, closed))
        return rows

    def _row(self, key: Row, closed: _Open) -> Row:
        events = [event for _, event in sorted(closed.events, key=lambda each: each[0])]
        answers = [answer(each, events, self._plan.types) for each in self._view.aggregates]
        return (closed.start, closed.end, *key, *answers)
