"""Windows on a grid the obvious way: a copy of each event for each window that it is in."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from icestream.core.times import Micros
from icestream.operators.lifetimes.changes import (
    DIFF,
    LE,
    changes_of,
    column_of,
    identities_of,
    payload_of,
)
from icestream.operators.lifetimes.window_copies import in_windows, window_columns, windows_of
from icestream.plan.windows.grid import Cumulative, Windows


@dataclass(frozen=True)
class WindowCopies:
    """Copies events into their windows."""

    windows: Windows | Cumulative
    time: pa.DataType
    #: how much later than meant events live
    delay: Micros = 0

    def columns(self, payload: pa.Schema) -> pa.Schema:
        return window_columns(self.windows, self.time, payload)

    def __call__(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        times = column_of(changes, LE) - self.delay
        event, start, end = windows_of(self.windows, times)
        payload = payload_of(changes).take(pa.array(event))
        copies = in_windows(payload, start, end, times[event], self.columns(payload.schema))
        ids = [each[event] for each in identities_of(changes)]
        end = end + self.delay
        return changes_of(copies, end - 1, end, column_of(changes, DIFF)[event], *ids)
