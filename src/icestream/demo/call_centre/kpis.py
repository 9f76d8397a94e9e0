"""The key figures of the call centres that the demo shows, and what figures can be of.

Idea: a key figure is a function of a field by a grouping key, over the last 24 hours. The paper has
the sum, count and average of 6 fields by 8 keys: 144 figures, which are 104 aggregates, because
COUNT ignores its field (`bench/windows/call_centre.py` computes them all).

Limits: no figure is null, because no field of the stream is.

References: Shared SlideM, section 5.2 and appendix A.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from icestream.demo.call_centre.distributions import KEYS, SERVICES, TIMES

FIELDS = tuple(TIMES)
GROUPINGS = tuple(KEYS)


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of the demo: what to compute, its column in results and its format."""

    function: str
    field: str
    column: str
    title: str
    show: Callable[[Any], str]


def show_count(value: Any) -> str:
    """Format a KPI that counts: `1,234,567`."""
    return f"{int(value):,}"


def show_seconds(value: Any) -> str:
    """Format a KPI of mean seconds: `41.3 s`, or `5:07 min` from two minutes on."""
    if value >= 120:
        minutes, seconds = divmod(round(value), 60)
        return f"{minutes:,}:{seconds:02d} min"
    return f"{value:.1f} s"


def show_hours(value: Any) -> str:
    """Format a KPI of total seconds in hours: `1,234 h`."""
    return f"{value / 3600:,.0f} h"


#: what the demo computes for every service and every window
DEMO: tuple[Figure, ...] = (
    Figure("count", "*", "calls", "calls", show_count),
    Figure("avg", "waitTime", "avg_wait", "avg wait", show_seconds),
    Figure("max", "waitTime", "max_wait", "longest wait", show_seconds),
    Figure("avg", "busyTime", "avg_busy", "avg busy", show_seconds),
    Figure("sum", "busyTime", "sum_busy", "total busy", show_hours),
    Figure("avg", "wrapUpTime", "avg_wrap_up", "avg wrap-up", show_seconds),
)


#: the grouping of all 144 figures: every key for itself
ALL = "all"
#: the figures of each key, counts once
WHOLE: tuple[Figure, ...] = (
    DEMO[0],
    *(
        Figure(function, field, f"{function}_{field}", f"{field}, {unit}", show)
        for field in FIELDS
        for function, unit, show in (
            ("avg", "avg s", lambda value: f"{value:.1f}"),
            ("sum", "sum h", lambda value: f"{value / 3600:,.0f}"),
        )
    ),
)


def shown_figures(grouping: str) -> tuple[Figure, ...]:
    """Return the KPIs of one key, or of all."""
    return WHOLE if grouping == ALL else DEMO


def busiest(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the row of KPIs with the most calls of each key, among rows that have one key each."""
    # the last row of a group that became empty counts no calls
    full = [row for row in rows if row["calls"]]
    by_key = {key: [row for row in full if row[key] is not None] for key in GROUPINGS}
    return {key: by_calls(own, 1)[0] for key, own in by_key.items() if own}


def group_name(grouping: str, value: int) -> str:
    """Return the name of a group of KPIs: the service, or the key and its number."""
    if grouping == "serviceId" and 1 <= value <= len(SERVICES):
        return SERVICES[value - 1].name
    return f"{grouping} {value}"


def by_calls(rows: Sequence[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """Return the groups of KPIs with the most calls, in descending order."""
    return sorted(rows, key=lambda row: row["calls"], reverse=True)[:most]
