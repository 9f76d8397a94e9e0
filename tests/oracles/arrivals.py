"""Feeds events to a slow and obvious version: one by one, a watermark after each batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import pyarrow as pa

from icestream.core.times import MINUS_INFINITY, Micros
from icestream.plan.nodes.queries import SOURCE, TIME, Plan
from icestream.runtime.local import Splits

Row = tuple[Any, ...]


class ArrivalOracle(ABC):
    """Takes batches of events, and returns the rows that become final."""

    def __init__(self, plan: Plan) -> None:
        """Start before the first batch."""
        self._plan = plan
        self._seen: list[Micros | None] = [None] * len(plan.sources)
        #: events with a time so far
        self._arrived = 0
        #: rows up to it are final and were returned
        self.watermark: Micros = MINUS_INFINITY
        #: events that came too late for everything
        self.late = 0

    def feed(self, splits: Splits) -> list[Row]:
        """Process one batch and return the rows that become final."""
        before = self.watermark
        for batch in (batch for split in splits for batch in split):
            # as numbers: Python's own times end with the year 9999
            whole = batch.column(TIME).cast(pa.int64())
            place = batch.schema.get_field_index(TIME)
            for event in batch.set_column(place, TIME, whole).to_pylist():
                time, source = event[TIME], event[SOURCE]
                if time is not None:
                    seen = self._seen[source]
                    self._seen[source] = time if seen is None else max(seen, time)
                    self._arrived += 1
                    self._take(time, event, before)
        return self._settle(self._reached(before))

    def flush(self) -> list[Row]:
        """Return the remaining rows."""
        latest = max((seen for seen in self._seen if seen is not None), default=None)
        return [] if latest is None else self._settle(max(self.watermark, self._end(latest)))

    def _reached(self, before: Micros) -> Micros:
        """Return the watermark after a batch."""
        return self._plan.watermark(before, tuple(self._seen))

    @abstractmethod
    def _take(self, time: Micros, event: dict[str, Any], before: Micros) -> None:
        """Take an event; `before` is the watermark before its batch."""

    @abstractmethod
    def _settle(self, watermark: Micros) -> list[Row]:
        """Return the rows that become final at a watermark."""

    @abstractmethod
    def _end(self, latest: Micros) -> Micros:
        """Return the watermark at which everything up to the latest event is final."""
