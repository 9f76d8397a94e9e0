"""Windows as functions: TUMBLE, HOP, CUMULATE and SESSION, and Spark's window and session_window.

Idea: all of them name a kind of windows and one or two intervals. HOP and CUMULATE give the step
first and the size second; Spark's window gives the size first. A last one may say where windows on
a grid start. The gap of a session may be an
expression over the columns of a row.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from icestream.core.errors import DefinitionError
from icestream.core.times import Micros
from icestream.core.units import parse_interval
from icestream.sql.relations.tree import TimeWindow
from icestream.sql.statements.aggregates import called
from icestream.sql.statements.tokens import Text

#: kinds by their names in SQL, and the numbers of intervals they take
_KINDS = {
    "tumble": (1, 2),
    "hop": (2, 3),
    "cumulate": (2,),
    "session": (1,),
    "window": (1, 2, 3),
    "session_window": (1,),
}


def window_call(node: exp.Expr) -> str | None:
    """Return the name of the window that a node calls."""
    name = called(node)
    return name.upper() if name in _KINDS else None


def read_window(node: exp.Expr, lengths: Sequence[exp.Expr], text: Text) -> TimeWindow:
    """Read the intervals of a window."""
    name = str(called(node))
    if len(lengths) not in _KINDS[name]:
        wanted = " to ".join(str(each) for each in _KINDS[name][:: len(_KINDS[name]) - 1 or 1])
        raise text.error(
            node, f"{name} takes {wanted} intervals after the time; got {len(lengths)}"
        )
    if name.startswith("session") and _depends_on_rows(lengths[0]):
        return TimeWindow("session", 0, 0, lengths[0])
    count = 1 if name == "tumble" else 2
    first, *rest = [_length(each, text) for each in lengths[:count]]
    offset = _offset(lengths[count], text) if len(lengths) > count else 0
    match name:
        case "session" | "session_window":
            return TimeWindow("session", first, first)
        case "window" | "tumble":
            step = rest[0] if rest else first
            kind = "tumble" if step == first else "hop"
            window = TimeWindow(kind, first, step, offset=offset)
        case _:
            window = TimeWindow(name, rest[0], first, offset=offset)
    _check(node, window, text)
    return window


def _check(node: exp.Expr, window: TimeWindow, text: Text) -> None:
    kind = window.kind
    if window.step > window.size or (kind == "cumulate" and window.size % window.step):
        rule = "divide the size evenly" if kind == "cumulate" else "not exceed the size"
        raise text.error(node, f"the step of {kind} must {rule}")
    if abs(window.offset) >= window.step:
        raise text.error(node, f"the start of {kind} windows must be shorter than their step")


def _depends_on_rows(node: exp.Expr) -> bool:
    return node.find(exp.Column) is not None


def _length(node: exp.Expr, text: Text) -> Micros:
    """Read an interval."""
    found = interval_of(node)
    if found is None or found <= 0:
        raise text.error(node, "write an interval here, for example INTERVAL '10' SECOND")
    return found


def _offset(node: exp.Expr, text: Text) -> Micros:
    """Read where windows start, which may be before or after 0."""
    found = interval_of(node)
    if found is None:
        raise text.error(node, "write an interval here, for example INTERVAL '15' MINUTE")
    return found


def interval_of(node: exp.Expr) -> Micros | None:
    """Return the length of a literal interval in a call of a window, or None."""
    if isinstance(node, exp.Interval):
        unit = node.args.get("unit")
        words = [str(node.this.name), "" if unit is None else str(unit.name)]
    elif isinstance(node, exp.Literal) and node.is_string:
        words = [str(node.this)]
    else:
        return None
    try:
        return parse_interval(" ".join(words).strip())
    except DefinitionError:
        return None
