"""Relations as text, with the state each needs and what bounds it.

Idea: one line for each relation, its inputs indented below it. A line says where the relation is
computed (`in Spark` before the stream, or with state) and, for state, how long rows are kept. A
statement whose state nothing bounds says so.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from icestream.core.times import Micros
from icestream.core.units import format_interval
from icestream.plan.windows.frame import Frame, RowsSlide
from icestream.sql.relations.times import is_changing, time_bounds, time_of
from icestream.sql.relations.tree import (
    ALL_ROWS,
    Conditions,
    Filter,
    Grouped,
    Join,
    Lasting,
    Over,
    OverCall,
    Project,
    Relation,
    Scan,
    Streamed,
    TimeWindow,
    Top,
    UnionAll,
    WindowTable,
    bare,
    is_static,
    walk,
)
from icestream.sql.relations.window_query import call_text
from icestream.sql.statements.dialect import written

#: unions of more parts are shown by their first one
_SHOWN = 4
UNBOUNDED = "nothing bounds it"


def shown(relation: Relation) -> str:
    """Show a relation as lines."""
    return "\n".join(_lines(relation, 0))


def is_staged(relation: Relation) -> bool:
    """Return whether Spark alone computes a relation."""
    match relation:
        case Grouped() | Top():
            return False
        case Join():
            streams = [each for each in relation.inputs if not is_static(each)]
            return len(streams) < 2 and all(is_staged(each) for each in relation.inputs)
    return all(is_staged(each) for each in relation.inputs)


def _lines(relation: Relation, depth: int) -> Iterator[str]:
    state = state_of(relation)
    suffix = f"   [{state}]" if state else ""
    yield f"{'  ' * depth}{_title(relation)}{suffix}"
    alike = relation.inputs if len(relation.inputs) > _SHOWN else ()
    for each in relation.inputs[: 1 if alike else None]:
        yield from _lines(each, depth + 1)
    if alike:
        yield f"{'  ' * (depth + 1)}... and {len(alike) - 1} more"


def _title(relation: Relation) -> str:
    match relation:
        case Scan():
            kind = "table" if relation.time is None else "stream"
            words = f"{kind} {relation.source}: {', '.join(relation.named)}"
        case Filter():
            words = f"filter {_joined(relation.conditions)}"
        case Project():
            words = f"select {', '.join(_named(*item) for item in relation.items.items())}"
        case WindowTable():
            words = f"window {_window(relation.window)} of {bare(relation.time)}"
        case Lasting():
            length = f"for {format_interval(relation.length)}" if relation.length else "at once"
            words = f"rows that are there {length}"
        case Streamed():
            words = f"rows that are {relation.kind}"
        case Join():
            words = f"{relation.kind} join on {_of_sides(relation) or 'nothing'}"
        case Grouped():
            keys = ", ".join(bare(written(each)) for each in relation.keys.values())
            if relation.sets is not None:
                sets = ("(" + ", ".join(map(bare, each)) + ")" for each in relation.sets)
                keys += f" in sets {', '.join(sets)}"
            calls = ", ".join(call_text(each) for each in relation.calls.values())
            words = f"group by {keys or 'nothing'}: {calls or 'the groups'}"
        case Top():
            order = ", ".join(
                f"{bare(written(each.expression))} {'DESC' if each.descending else 'ASC'}"
                for each in relation.order
            )
            keys = ", ".join(bare(written(each)) for each in relation.partition)
            many = "number rows" if relation.count == ALL_ROWS else f"top {relation.count}"
            words = f"{many} by {order}" + (f" for each {keys}" if keys else "")
        case Over():
            shown = [_frame(each) for each in relation.calls.values()]
            words = f"over frames: {'; '.join(shown)}"
        case _:
            words = "union all"
    return words


def _window(window: TimeWindow | Frame) -> str:
    if isinstance(window, TimeWindow):
        if window.gap is not None:
            return f"session {bare(written(window.gap))}"
        words = f"{window.kind} {format_interval(window.size)}"
        words += f" from {format_interval(window.offset)}" if window.offset else ""
        step: Micros | RowsSlide | None = window.step if window.step != window.size else None
    else:
        reaches = [] if window.rows is None else [f"{window.rows} rows"]
        reaches += [] if window.range is None else [format_interval(window.range)]
        words, step = f"of the last {' within '.join(reaches)}", window.slide or RowsSlide(1)
    if isinstance(step, RowsSlide):
        return f"{words} at every {f'{step.rows} rows' if step.rows > 1 else 'row'}"
    return words if step is None else f"{words} every {format_interval(step)}"


def _named(column: str, node: exp.Expr) -> str:
    text, name = bare(written(node)), bare(column)
    return text if text == name else f"{text} AS {name}"


def state_of(relation: Relation) -> str:  # noqa: PLR0911 - one for each kind of relation
    """Show what a relation stores and what bounds it; empty if it stores nothing."""
    match relation:
        case Scan() | UnionAll() | Filter() | Project():
            return ""
        case WindowTable():
            return "no state" if relation.on_a_grid else ""
        case Lasting():
            return ""
        case Streamed():
            return "state: rows of the instant before"
        case Join() if is_staged(relation):
            return "in Spark"
        case Join():
            return _state_of_join(relation)
        case Grouped(input=WindowTable(window=Frame())):
            return "state: the rows of the window"
        case Grouped() | Top():
            if time_of(relation) is not None or isinstance(relation.input, WindowTable):
                return "state: windows that are open"
            rows = "a row for each group" if isinstance(relation, Grouped) else _of_top(relation)
            return f"state: {rows}; {UNBOUNDED}"
        case Over():
            ranges = [
                each.before if each.kind == "range" else None for each in relation.calls.values()
            ]
            if None in ranges:
                return f"state: the frame of each group; {UNBOUNDED}"
            return f"state: rows of {format_interval(max(each or 0 for each in ranges))}"
    return ""


def _of_top(top: Top) -> str:
    """Return what a top stores: of rows that stay, those that it shows."""
    if top.count == ALL_ROWS or is_changing(top.input):
        return "all rows"
    return f"{top.count} rows for each group"


def _frame(over: OverCall) -> str:
    keys = ", ".join(bare(written(each)) for each in over.partition)
    if over.before is None:
        reach = "all"
    elif over.kind == "rows":
        reach = f"{over.before} rows"
    else:
        reach = format_interval(over.before)
    return f"{call_text(over.call)} by {keys or 'nothing'}, {reach} before"


def _state_of_join(join: Join) -> str:
    bounds = time_bounds(join)
    if any(isinstance(each, Lasting) for side in join.inputs for each in walk(side)):
        stay = [
            word
            for word, side in zip(("left", "right"), join.inputs, strict=True)
            if not any(isinstance(each, Lasting) for each in walk(side))
        ]
        forever = f"; all rows of the {stay[0]} side; {UNBOUNDED}" if stay else ""
        return f"state: rows while they are there{forever}"
    if bounds is None:
        return f"state: all rows of both sides; {UNBOUNDED}"
    side = "right" if bounds.point == 0 else "left"
    if bounds.length is not None:
        length = bounds.length - bounds.low
        if length <= 0:
            return "state: rows of one instant"
        return f"state: rows of the {side} side for {format_interval(length)}"
    if bounds.high is not None:
        return f"state: rows of the {side} side until {bare(written(bounds.high))}"
    return f"state: all rows of the {side} side; {UNBOUNDED}"


def _of_sides(join: Join) -> str:
    """Return the condition of a join; columns that both sides have say which side they are of."""
    sides = {
        column: word
        for word, side in zip(("left", "right"), join.inputs, strict=True)
        for column in side.columns
    }
    names = [bare(column) for column in sides]

    def shown(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Column) and names.count(bare(node.name)) > 1:
            return exp.column(bare(node.name), table=sides[node.name])
        return node

    return _joined(tuple(each.transform(shown) for each in join.on))


def _joined(conditions: Conditions) -> str:
    return " AND ".join(bare(written(each)) for each in conditions)
