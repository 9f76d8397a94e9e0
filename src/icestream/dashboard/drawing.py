"""A plan as boxes and arrows, from the description in the history of a query.

Idea: a description lists sources, components and results. Sources are the first column; components
follow by the number of components before them; results are the last column. The page draws the
boxes; this module determines their columns and connections.

Invariants:
1. Every arrow leads to the right, between existing boxes
   (`test_arrows_lead_to_the_right`).
2. A description of any other shape gives no drawing, and no error
   (`test_what_is_no_description_is_not_drawn`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

#: lines of a box, and characters of a line
_LINES = 8
_WIDTH = 64


def drawing(plan: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a plan drawn as boxes with columns, and arrows; None if it is not a plan."""
    try:
        return _dataflow(plan) if "components" in plan else _one_component(plan)
    except (AttributeError, KeyError, TypeError, ValueError, IndexError):
        return None


def _dataflow(plan: Mapping[str, Any]) -> dict[str, Any]:
    components: Sequence[Sequence[str]] = plan["components"]
    arrows = [
        {"from": str(e["from"]), "to": str(e["to"]), "text": "by " + ", ".join(e["by"])}
        for e in plan["edges"]
    ]
    depths = _depths(len(components), arrows)
    boxes = [_source(plan, number) for number in range(len(plan["sources"]))]
    for number, steps in enumerate(components):
        texts = [_step(text) for text in steps]
        shown = [text for text in texts if not text.startswith(("receive ", "send ", "emit "))]
        boxes.append(_box(f"component {number}", "component", 1 + depths[number], shown))
    last = 2 + max(depths, default=0)
    for number, view in enumerate(plan["views"]):
        boxes.append(_box(f"result {number}", "result", last, _result(view)))
        for component, steps in enumerate(components):
            if any(_step(text).split(" of ")[0] == f"emit view {number}" for text in steps):
                arrow = {"from": f"component {component}", "to": f"result {number}"}
                arrows.append({**arrow, "text": str(view["mode"])})
    return {"boxes": boxes, "arrows": arrows}


def _one_component(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Draw windows, or update streams: sources, one component, results."""
    sources = [_source(plan, number) for number in range(len(plan["sources"]))]
    boxes, arrows = list(sources), []
    views: Sequence[Mapping[str, Any]] = plan["views"]
    keys = [str(each) for each in plan.get("keys", ())]
    inputs = [f"reads {each}" for each in plan.get("inputs", ())]
    updates = [f"latest by {', '.join(v['latest by'])}" for v in views if v.get("latest by")]
    shared = [f"grouped by {', '.join(keys)}"] if keys else updates
    boxes.append(_box("component 0", "component", 1, [*shared, *inputs]))
    by = ", ".join(key.split(" ")[0] for key in keys)
    for box in sources:
        arrows.append({"from": box["id"], "to": "component 0", "text": f"by {by}" if by else ""})
    for number, view in enumerate(views):
        boxes.append(_box(f"result {number}", "result", 2, _result(view)))
        arrows.append({"from": "component 0", "to": f"result {number}", "text": ""})
    return {"boxes": boxes, "arrows": arrows}


def _depths(count: int, arrows: Sequence[Mapping[str, str]]) -> list[int]:
    """Return the largest number of components before each component."""
    numbers = {f"component {number}": number for number in range(count)}
    depths = [0] * count
    for arrow in sorted(arrows, key=lambda each: numbers[each["to"]]):
        if arrow["from"] in numbers:
            origin, target = numbers[arrow["from"]], numbers[arrow["to"]]
            if origin >= target:
                msg = "edges lead forward"
                raise ValueError(msg)
            depths[target] = max(depths[target], depths[origin] + 1)
    return depths


def _source(plan: Mapping[str, Any], number: int) -> dict[str, Any]:
    source = plan["sources"][number]
    lines = [str(source["name"]), f"slack {source['slack']}"]
    return _box(f"source {number}", "source", 0, lines)


def _result(view: Mapping[str, Any]) -> list[str]:
    lines = []
    for name, value in view.items():
        if isinstance(value, list):
            flat = [", ".join(map(str, v)) if isinstance(v, list) else str(v) for v in value]
            lines += [f"{name}: {', '.join(flat)}"] if len(flat) < 3 else [f"{name}:", *flat]
        elif value is not None:
            lines.append(f"{name}: {value}")
    return lines


def _step(text: str) -> str:
    return str(text).partition(": ")[2]


def _box(identity: str, kind: str, column: int, lines: Sequence[str]) -> dict[str, Any]:
    shown = [line if len(line) <= _WIDTH else line[: _WIDTH - 1] + "…" for line in lines]
    if len(shown) > _LINES:
        shown = [*shown[: _LINES - 1], f"and {len(shown) - _LINES + 1} more"]
    return {
        "id": identity,
        "kind": kind,
        "column": column,
        "lines": shown,
        "all": [str(line) for line in lines],
    }
