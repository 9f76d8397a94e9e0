"""Jobs as text and as a drawing: components, their operators, and the exchanges between them.

Idea: operators are in columns by the number of operators before them; a component is a frame around
its operators, an exchange is a thick line with the attributes it partitions by.

Invariant: every operator and every exchange of the dataflow is drawn once
(`test_drawings_have_every_operator_and_exchange`).
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from icestream.plan.jobs.planning import JobPlan
from icestream.plan.nodes.jobs import ComputeNode, ConsolidateNode, JobNode, MapNode, TupleSource

_WIDE, _HIGH, _GAP, _ROW = 190, 54, 70, 84
_EDGE = 24


def explained_job(plan: JobPlan) -> str:
    """Return a job as text."""
    lines = []
    for number, members in enumerate(plan.components):
        lines.append(_heading(plan, number))
        lines += [f"  {_described(plan.operators[each])}" for each in members]
        lines += [f"  <= {each}" for each in _entering(plan, number)]
        lines.append("")
    outputs = ", ".join(node.name for node in plan.outputs)
    return "\n".join([*lines, f"results: {outputs}"])


def drawn_job(plan: JobPlan) -> str:
    """Return a job as an SVG drawing."""
    places = _places(plan)
    width = max(x for x, _ in places.values()) + _WIDE + _EDGE
    height = max(y for _, y in places.values()) + _HIGH + 2 * _EDGE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    parts += [_frame(plan, number, places) for number in range(len(plan.components))]
    for node in plan.operators:
        parts += [_line(plan, before, node, places) for before in node.inputs]
    parts += [_box(node, *places[id(node)]) for node in _all_nodes(plan)]
    return "\n".join([*parts, "</svg>"])


def _heading(plan: JobPlan, number: int) -> str:
    members = plan.components[number]
    if not plan.has_tasks(number):
        return f"on the way, {number}: where the tuples come from"
    attributes = ", ".join(plan.attributes(number, members[0])) or "nothing: one shard"
    state = "stateful" if plan.job.stateful(members) else "stateless"
    moves = "flexible" if plan.job.flexible(members) else "rigid"
    return f"component {number}, partitioned by {attributes}; {state}, {moves}"


def _described(node: JobNode) -> str:
    match node:
        case MapNode():
            return f"map {node.name}"
        case ComputeNode():
            spans = "for ever" if node.spans is None else str(node.spans)
            eager = ", answers each tuple" if node.fold.eager else ""
            return f"compute {node.name} by {_key(node)}, {spans}{eager}"
        case ConsolidateNode():
            ways = "".join(f"\n      {each}" for each in node.tilings)
            return f"consolidate {node.name} by {_key(node)}; {node.because}{ways}"
    return node.name


def _key(node: JobNode) -> str:
    return ", ".join(node.key) or "all"


def _entering(plan: JobPlan, number: int) -> Iterator[str]:
    """Yield the exchanges in front of a component."""
    if not plan.has_tasks(number):
        return
    seen = set()
    for each in plan.components[number]:
        node = plan.operators[each]
        for before in node.inputs:
            if _crosses(plan, before, node):
                by = ", ".join(plan.attributes(number, each)) or "all together"
                rate = plan.rates.get((before.name, node.name))
                outputs = "" if rate is None else f", {rate:,.0f} tuples a second"
                seen.add(f"exchange from {before.name}, by {by}{outputs}")
    yield from sorted(seen)


def _crosses(plan: JobPlan, before: JobNode, node: JobNode) -> bool:
    """Return whether tuples between two operators are exchanged."""
    here = _component(plan, node)
    if not plan.has_tasks(here):
        return False
    return isinstance(before, TupleSource) or _component(plan, before) != here


def _component(plan: JobPlan, node: JobNode) -> int:
    return plan.place[plan.operators.index(node)]


def _all_nodes(plan: JobPlan) -> list[JobNode]:
    sources = [
        before
        for node in plan.operators
        for before in node.inputs
        if isinstance(before, TupleSource)
    ]
    return [*dict.fromkeys(sources), *plan.operators]


def _places(plan: JobPlan) -> dict[int, tuple[int, int]]:
    """Return the position of each node in the drawing."""
    depths: dict[int, int] = {}
    used: dict[int, int] = {}
    places = {}
    for node in _all_nodes(plan):
        depth = 1 + max((depths[id(before)] for before in node.inputs), default=-1)
        depths[id(node)] = depth
        row = used.get(depth, 0)
        used[depth] = row + 1
        places[id(node)] = (_EDGE + depth * (_WIDE + _GAP), 2 * _EDGE + row * _ROW)
    return places


def _frame(plan: JobPlan, number: int, places: dict[int, tuple[int, int]]) -> str:
    if not plan.has_tasks(number):
        return ""
    spots = [places[id(plan.operators[each])] for each in plan.components[number]]
    left, top = (min(spot[axis] for spot in spots) - 12 for axis in (0, 1))
    right = max(x for x, _ in spots) + _WIDE + 12
    bottom = max(y for _, y in spots) + _HIGH + 12
    by = escape(", ".join(plan.attributes(number, plan.components[number][0])) or "all")
    return (
        f'<rect x="{left}" y="{top}" width="{right - left}" height="{bottom - top}" rx="8" '
        'fill="#eef4fb" fill-opacity="0.6" stroke="#5b8cc0" stroke-dasharray="5 3"/>'
        f'<text x="{left + 6}" y="{top - 4}" fill="#2f5d8c">component {number} by {by}</text>'
    )


def _box(node: JobNode, x: int, y: int) -> str:
    kinds = {MapNode: "map", ComputeNode: "compute", ConsolidateNode: "consolidate"}
    kind = kinds.get(type(node), "source")
    fill = {"source": "#f4f4f4", "map": "#fff7e0", "compute": "#e3f4e4"}.get(kind, "#f3e6f7")
    by = f" by {_key(node)}" if kind in {"compute", "consolidate"} else ""
    return (
        f'<rect x="{x}" y="{y}" width="{_WIDE}" height="{_HIGH}" rx="5" fill="{fill}" '
        f'stroke="#555"/><text x="{x + 8}" y="{y + 21}" font-weight="bold">{escape(node.name)}'
        f'</text><text x="{x + 8}" y="{y + 40}" fill="#555">{escape(kind + by)}</text>'
    )


def _line(plan: JobPlan, before: JobNode, node: JobNode, places: dict[int, tuple[int, int]]) -> str:
    (x1, y1), (x2, y2) = places[id(before)], places[id(node)]
    crosses = _crosses(plan, before, node)
    style = 'stroke="#c0392b" stroke-width="3"' if crosses else 'stroke="#777"'
    return (
        f'<line x1="{x1 + _WIDE}" y1="{y1 + _HIGH // 2}" x2="{x2}" y2="{y2 + _HIGH // 2}" {style}/>'
    )
