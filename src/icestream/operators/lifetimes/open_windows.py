"""Rows of windows on a grid while they are open: events live in them and are not copied.

Idea: an event lives from the slide before the end of its first window to the end of its last one.
So what is alive at the last instant of a window is what the window contains, and an aggregate over
these lifetimes knows all windows of a group at once: events of one pane have one lifetime and are
added up, and each chunk changes the answer over a few stretches of time. A stretch has a row for
each window whose last instant is in it.

    range 3 slides    window      [. . .)                   a pane lives    |-----)
                                    [. . .)                 and is in the windows that end
                                      [. . .)               after each slide of its lifetime
    pane of an event              |-|

Invariants:
1. Rows are those of aggregates over copies of events in their windows, whatever the order of
   events, batches and restarts (`test_oracle_windows_are_in_the_table_while_they_are_open`).
2. Only windows whose row differs are emitted (`test_a_window_that_stays_the_same_is_not_emitted`).
3. Windows that the watermark has reached are left alone
   (`test_oracle_a_late_event_fires_its_window_again_until_the_slack_is_over`).
4. An event costs the same, however many windows it is in, beside the rows that come out
   (`test_bounded_an_event_is_stored_once_however_many_windows_it_is_in`).

Cost: that of the aggregate for each event; O(1) for each row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints
from icestream.core.times import Micros
from icestream.operators.folding.columns import window_column
from icestream.operators.lifetimes.changes import (
    BEGAN,
    DIFF,
    LE,
    RE,
    PromptOperator,
    changes_of,
    column_of,
    identities,
    identities_of,
    payload_of,
    with_column,
)
from icestream.operators.lifetimes.counted_intervals import CountedIntervals
from icestream.operators.lifetimes.window_copies import WINDOW
from icestream.plan.windows.grid import Cumulative, Windows
from icestream.state.groups.spec import Groups
from icestream.state.identities import numbered

#: maximum number of rows that are made at once
_ROWS_AT_ONCE = 65_536


@dataclass(frozen=True)
class InWindows:
    """Lets events at instants live in their windows, and adds when they began."""

    #: the windows, of the times at which events live
    windows: Windows | Cumulative

    def columns(self, payload: pa.Schema) -> pa.Schema:
        return pa.schema([*payload, pa.field(BEGAN, pa.int64(), nullable=False)])

    def __call__(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        times = column_of(changes, LE)
        windows = self.windows
        if isinstance(windows, Cumulative):
            begins = times - (times - windows.offset) % windows.slide
            ends = times - (times - windows.offset) % windows.size + windows.size
        else:
            first = times - windows.range
            begins = first - (first - windows.offset) % windows.slide + windows.range
            ends = times - (times - windows.offset) % windows.slide + windows.range
        living = with_column(with_column(changes, LE, begins), RE, ends)
        return living.append_column(BEGAN, changes.column(LE))


class OpenWindows(PromptOperator):
    """Rows of windows, from the answers of their groups over the lifetimes of events."""

    forgets = True

    def __init__(
        self,
        shown: pa.Schema,
        windows: Windows | Cumulative,
        time: pa.DataType,
        keys: Sequence[str],
        delay: Micros = 0,
    ) -> None:
        """Show columns of answers over events that live later by `delay`, as `windows` do."""
        self._windows, self._delay = windows, delay
        self.result = pa.schema([windows.heading(time).with_name(WINDOW), *shown])
        #: edges of a window that no other has
        self.own_edges = ("end",) if isinstance(windows, Cumulative) else ("start", "end")
        #: columns that identify rows
        self.keys = (WINDOW, *keys)
        self.synopses = ()
        self._is_current = False

    def current(self) -> OpenWindows:
        """Return the same for events that stay, without rows that others of their key replace."""
        made = copy(self)
        made._is_current = True
        return made

    def on_last_changes(
        self, _port: int, changes: pa.RecordBatch, _groups: Groups, watermark: Micros, _over: Micros
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of windows whose answer differs, retracted ones first."""
        kinds, heads = numbered(*identities(payload_of(changes)))
        le, re, diff = (column_of(changes, name) for name in (LE, RE, DIFF))
        differs = CountedIntervals(0 * kinds, kinds, le, re, diff).levelled().since(watermark)
        if self._is_current:
            differs = differs.where(differs.count > 0)
        differs = differs.at(np.argsort(differs.count > 0, kind="stable"))
        first, count = self._ends(differs)
        bounds = np.append(0, np.cumsum(count))
        for begin in range(0, int(bounds[-1]), _ROWS_AT_ONCE):
            row = np.arange(begin, min(begin + _ROWS_AT_ONCE, int(bounds[-1])))
            at = np.searchsorted(bounds, row, side="right") - 1
            ends = first[at] + (row - bounds[at]) * self._windows.slide
            answers = changes.take(pa.array(heads[differs.kind[at]]))
            yield self._rows(answers, ends, differs.count[at])

    def _ends(self, stretches: CountedIntervals) -> tuple[Ints, Ints]:
        """Return the end of the first window of each stretch, and how many windows it has."""
        windows = self._windows
        phase = windows.offset + (windows.range if isinstance(windows, Windows) else 0)
        first = stretches.le + 1 + (phase - stretches.le - 1) % windows.slide
        return first, np.maximum(0, (stretches.re - first) // windows.slide + 1)

    def _rows(self, answers: pa.RecordBatch, ends: Ints, count: Ints) -> pa.RecordBatch:
        windows = self._windows
        if isinstance(windows, Cumulative):
            starts = ends - 1 - (ends - 1 - windows.offset) % windows.size
        else:
            starts = ends - windows.range
        window = window_column(self.result[0].type, starts - self._delay, ends - self._delay)
        columns = [window, *answers.select(self.result.names[1:]).columns]
        rows = pa.RecordBatch.from_arrays(columns, schema=self.result)
        return changes_of(rows, ends - 1, ends, count, *identities_of(answers))
