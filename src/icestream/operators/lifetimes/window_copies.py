"""Events as members of their windows: one change for each window that an event is in.

Idea: a change of a window concerns its last instant only, so whatever the order of events, a window
has one answer, and it is final when the watermark reaches the end of the window. The event's own
time goes into a column, for functions that depend on it.

Invariant: an event is in the windows that contain its time
(`test_oracle_windows_are_in_the_table_while_they_are_open`).

Cost: O(windows of an event) for each change.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints
from icestream.operators.lifetimes.changes import (
    BEGAN,
    DIFF,
    LE,
    changes_of,
    column_of,
    identities_of,
    payload_of,
)
from icestream.plan.windows.grid import Cumulative, Windows

#: column with start and end of the window
WINDOW = "window"


@dataclass(frozen=True)
class WindowCopies:
    """Copies events into their windows."""

    windows: Windows | Cumulative
    time: pa.DataType

    def columns(self, payload: pa.Schema) -> pa.Schema:
        """Return the columns of the copies."""
        window = self.windows.heading(self.time)
        return pa.schema([window, *payload, pa.field(BEGAN, pa.int64(), nullable=False)])

    def __call__(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        """Return a change for each event and window."""
        times = column_of(changes, LE)
        event, start, end = self._windows_of(times)
        payload = payload_of(changes).take(pa.array(event))
        columns = self.columns(payload.schema)
        window = pa.StructArray.from_arrays(
            [pa.array(each).cast(self.time) for each in (start, end)],
            fields=list(columns[0].type),
        )
        copies = pa.RecordBatch.from_arrays(
            [window, *payload.columns, pa.array(times[event])], schema=columns
        )
        ids = [each[event] for each in identities_of(changes)]
        return changes_of(copies, end - 1, end, column_of(changes, DIFF)[event], *ids)

    def _windows_of(self, times: Ints) -> tuple[Ints, Ints, Ints]:
        """Return the event, the start and the end of each copy."""
        windows = self.windows
        if isinstance(windows, Cumulative):
            base = (times - windows.offset) // windows.size * windows.size + windows.offset
            first = (times - base) // windows.step + 1
            counts = windows.size // windows.step - first + 1
            event = np.repeat(np.arange(len(times)), counts)
            number = np.arange(len(event)) - np.repeat(np.cumsum(counts) - counts, counts)
            return event, base[event], base[event] + (first[event] + number) * windows.step
        last = (times - windows.offset) // windows.slide * windows.slide + windows.offset
        counts = (last + windows.range - times - 1) // windows.slide + 1
        event = np.repeat(np.arange(len(times)), counts)
        number = np.arange(len(event)) - np.repeat(np.cumsum(counts) - counts, counts)
        start = last[event] - number * windows.slide
        return event, start, start + windows.range
