"""Plans as text: what is computed, over which events, and at what cost.

Idea: the text contains the description that the checkpoint stores, and what only the operators
know: panes per window, bytes per entry and group. If the stream was measured, it adds the size of
both storage plans and which windows are composed of others; for a running query, the estimated and
the actual size of the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from icestream.core.units import format_bytes, format_interval
from icestream.plan.grid import cost, lower
from icestream.plan.grid.parts import PlanPart, parts_of
from icestream.plan.nodes.queries import Plan
from icestream.plan.windows.grid import Cumulative, Windows


def explained(plan: Plan, statistics: cost.WindowStatistics | None = None) -> str:
    """Explain a plan as text for people."""
    described = plan.describe()
    views = described.pop("views")
    facts: dict[str, object] = dict(described)
    for number, view in enumerate(views):
        name = "query" if len(views) == 1 else f"query {number}"
        facts |= {
            name: ", ".join(
                f"{key} {value}" for key, value in view.items() if key not in _NOT_WINDOW
            ),
            "groups by" if number == 0 else f"{name} groups by": view["groupings"],
            "computes" if number == 0 else f"{name} computes": ", ".join(view["aggregates"]),
        }
    for part in parts_of(plan):
        if part.folded:
            facts["store"] = plan.store
            facts |= _panes(part.plan)
        else:
            name = "on the log" if len(views) == 1 else f"on the log for {_queries(part)}"
            once = f", once for {part.windows} windows" if part.windows > 1 else ""
            facts[name] = _KEPT.get(views[part.views[0][0]]["kind"], _STATES) + once
    lines = [f"{name:>16}  {value}" for name, value in facts.items()]
    folded = lower.on_panes(plan)
    if statistics is not None and folded is not None:
        windows = [view.windows for view in lower.window_spec(folded).views]
        forced = None if plan.store == lower.AUTO else plan.store
        lines += ["", cost.estimate(windows, statistics).table(forced)]
        composed = lower.composition(folded, statistics.keys)
        if composed is not None and plan.store != lower.TUPLES:
            lines += [
                "",
                "windows composed of windows, if the log stores panes:",
                composed.explain(),
            ]
    return "\n".join(lines)


def estimate_and_log(progress: Mapping[str, Any]) -> str | None:
    """Explain the estimated and the actual size of the log, as text.

    `progress` is the part `icestream` of a version's progress. None if nothing was estimated: the
    plan has no windows on a grid, the user chose the storage plan, or there were no events yet.
    """
    estimated = progress.get("estimatedLogBytes")
    if estimated is None:
        return None
    ratio = progress.get("logToEstimate")
    so_far = "the longest window is not full yet"
    if ratio is not None:
        so_far = f"{ratio:.2f} times the estimate"
    return (
        f"log of {progress['store']}: estimated {format_bytes(estimated)}, logged "
        f"{format_bytes(progress['logBytes'])} ({so_far})"
    )


#: what an operator that receives events stores
_KEPT = {
    "frame": "events, in the order of time",
    "session": "stretches of events without a pause",
}
_STATES = "states of groups, by panes and pairs of panes"
_NOT_WINDOW = ("groupings", "shows", "aggregates", "mode")


def _queries(part: PlanPart) -> str:
    """Return the numbers of the queries that a part computes, as text."""
    numbers = [str(number) for number, _ in part.views]
    return f"quer{'y' if len(numbers) == 1 else 'ies'} {', '.join(numbers)}"


def _panes(plan: Plan) -> dict[str, str]:
    spec = lower.window_spec(plan)
    layout, pane = spec.layout, spec.grid.pane
    width = max(each.typical.group_width for each in spec.layouts)
    windows: dict[Windows | Cumulative, None] = {view.windows: None for view in spec.views}
    per_window = ", ".join(
        f"{each.range // pane} per window and {each.slide // pane} per slide" for each in windows
    )
    return {
        "panes": f"of {format_interval(pane)}: {per_window}",
        "entries": f"{8 * layout.typical.entry_width} bytes per group and pane, on the log",
        "rows": f"{8 * width} bytes and the key per group, in memory",
    }
