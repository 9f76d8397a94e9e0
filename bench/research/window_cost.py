"""Estimates of window plans as papers print them: an account per aggregate, and windows of rows.

Idea: `icestream.plan.grid.cost` counts one row per group with all its fields. The formulas were
first printed with entries and states for each of N aggregates apart; `estimate_separate` is that
account. `estimate_rows` compares both plans for windows that hold a number of rows.

    panes    N * (g * (s' + panes * entry) + G * s)      panes = range / pane
    tuples   events * tuple + N * G * s                  events = rate * range

Invariants:
1. The account per aggregate of a query set is the printed one
   (`test_the_account_per_aggregate_of_a_query_set_is_the_printed_one`).
2. Windows of rows and windows of time that hold as many events take as much
   (`test_time_and_rows_agree_where_a_window_holds_as_many_events`).

References: Mendes, Bizarro, Marques (2013), formulas 2.1 and 2.2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from icestream.core.errors import DefinitionError
from icestream.plan.grid.cost import (
    SECOND,
    Plan,
    PlanComparison,
    WindowShape,
    WindowStatistics,
    compare,
)
from icestream.plan.grid.space_formulas import SpaceEstimate, space_of_panes, space_of_tuples
from icestream.plan.windows.grid import Grid, Windows


@dataclass(frozen=True)
class SeparateAggregates:
    """What aggregates take that keep entries and states of their own."""

    #: combinations of function, column and grouping
    aggregates: int
    #: ways in which the stream is grouped
    groupings: int = 1
    #: bytes of a running state, and of the state of the pane that is being filled
    state_bytes: float = 16
    open_bytes: float = 16
    #: bytes of the entry that a pane leaves behind, key included
    entry_bytes: float = 20


def estimate_separate(
    windows: Sequence[Windows], statistics: WindowStatistics, separate: SeparateAggregates
) -> dict[Plan, SpaceEstimate]:
    """Return what both plans take for time windows, with entries for each aggregate apart."""
    ranges = {each.range for each in windows}
    pane = Grid.of(windows).pane
    groups = sum(statistics.keys.rows(each) for each in ranges) / separate.groupings
    return {
        "panes": space_of_panes(
            aggregates=separate.aggregates,
            entries=statistics.keys.rows(pane) / separate.groupings,
            panes=max(ranges) / pane,
            groups=groups,
            open_bytes=separate.open_bytes,
            entry_bytes=separate.entry_bytes,
            state_bytes=separate.state_bytes,
        ),
        "tuples": space_of_tuples(
            aggregates=separate.aggregates,
            events=statistics.rate / SECOND * max(ranges),
            tuple_bytes=statistics.tuple_bytes,
            groups=groups,
            state_bytes=separate.state_bytes,
        ),
    }


@dataclass(frozen=True)
class RowWindows:
    """Windows of the last `range` rows, every `slide` rows."""

    range: int
    slide: int

    def __post_init__(self) -> None:
        """Refuse windows that hold nothing or never move."""
        if self.range <= 0 or self.slide <= 0:
            msg = f"a window of rows needs a range and a slide of at least one row; got {self}"
            raise DefinitionError(msg)


def estimate_rows(windows: Sequence[RowWindows], statistics: WindowStatistics) -> PlanComparison:
    """Compare both plans for one or more windows of rows; `statistics.keys` counts by rows."""
    kinds = list(dict.fromkeys(windows))
    pane = math.gcd(*(each.range for each in kinds), *(each.slide for each in kinds))
    sliding = sum(each.slide < each.range for each in kinds)
    return compare(WindowShape([each.range for each in kinds], sliding, pane, 1.0), statistics)
