"""Functions over frames: OVER (PARTITION BY ... ORDER BY time ROWS or RANGE BETWEEN ...).

Idea: a frame ends with the current row, because rows are emitted when they are final. It reaches
back a number of rows, a length of time, or to the first row; without a frame SQL means the latter,
by RANGE. A frame that WINDOW names is put in place of its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sqlglot import exp

from icestream.core.text_errors import guess
from icestream.sql.relations.group_windows import interval_of
from icestream.sql.relations.names import reference
from icestream.sql.relations.tree import OverCall
from icestream.sql.statements.aggregates import AggregateCall, CallReader, called
from icestream.sql.statements.dialect import written
from icestream.sql.statements.tokens import Text

#: arguments of sqlglot's window: what OVER (...) contains
_SPECIFIED = ("partition_by", "order", "spec")
_ENDS = "a frame ends with CURRENT ROW: later rows are not known when a row is emitted"
_FRAME = (
    "a frame is ROWS BETWEEN n PRECEDING AND CURRENT ROW, RANGE BETWEEN INTERVAL '1' HOUR "
    "PRECEDING AND CURRENT ROW, or begins with UNBOUNDED PRECEDING"
)


def with_named_windows(tree: exp.Select, text: Text) -> exp.Select:
    """Return a query with what WINDOW names in place of the names after OVER."""
    if not any(each.args.get("alias") for each in tree.find_all(exp.Window)):
        return tree
    known: dict[str, exp.Window] = {}
    for each in tree.args.get("windows") or ():
        if each.name.lower() in known:
            raise text.error(each.this, f"another window is also called {each.name!r}: rename it")
        known[each.name.lower()] = _specified(each, known, text)
    made = tree.copy()
    for each in list(made.find_all(exp.Window)):
        if each.args.get("alias") and each.parent_select is made:
            specified = _specified(each, known, text)
            for argument in (*_SPECIFIED, "alias"):
                each.set(argument, specified.args.get(argument))
    return made


def _specified(node: exp.Window, known: Mapping[str, exp.Window], text: Text) -> exp.Window:
    """Return a window with the partition, order and frame of the one that it names."""
    name = node.args.get("alias")
    if name is None:
        return node.copy()
    if any(node.args.get(argument) for argument in _SPECIFIED):
        raise text.error(name, f"a named window is used as it is: write OVER {name.name}")
    if name.name.lower() not in known:
        hint = guess(name.name, known) or f": write WINDOW {name.name} AS (...) after the query"
        raise text.error(name, f"no window is called {name.name!r}{hint}")
    return known[name.name.lower()].copy()


def read_over(
    node: exp.Window, calls: CallReader, text: Text, read: Callable[[exp.Expr], exp.Expr]
) -> OverCall:
    """Read a call with OVER: its function, partition, frame; `read` resolves names."""
    order = node.args.get("order")
    keys = order.expressions if order is not None else []
    column = read(keys[0].this) if len(keys) == 1 else None
    if not isinstance(column, exp.Column) or keys[0].args.get("desc"):
        raise text.error(node, "OVER needs ORDER BY the time of the stream, ascending")
    columns = map(read, node.args.get("partition_by") or ())
    partition = tuple({written(each): each for each in columns}.values())
    kind, before = _reach(node, text)
    function = called(node.this)
    if function in ("lag", "lead", "rank", "dense_rank", "nth_value", "row_number"):
        kind = "rows" if function == "row_number" else kind
        call = _order_call(node, function, text, read)
    elif calls.is_aggregate(node.this):
        call = calls.read(read(node.this))
    else:
        raise text.error(
            node, f"{function} is not a function over frames: use an aggregate, LAG, LEAD, "
            "RANK, DENSE_RANK, NTH_VALUE or ROW_NUMBER",
        )  # fmt: skip
    place = text.place_of(node)
    call = AggregateCall(call.function, call.arguments, call.parameters, call.is_users, place)
    return OverCall(call, partition, column.name, kind, before)


def of_numbered(
    over: OverCall, number: Callable[[tuple[exp.Expr, ...]], str], text: Text
) -> OverCall:
    """Return a function as an aggregate of rows that `number` numbers, within some columns.

    DENSE_RANK() counts the rows that are the first of their time.
    """
    call = over.call
    if call.function == "dense_rank":
        first = number((*over.partition, reference(over.order)))
        made = AggregateCall("count_if", (f"{first} = 1",), place=call.place)
        return OverCall(made, over.partition, over.order, "range", None)
    if over.before is not None:
        raise text.error(call.place, "NTH_VALUE needs a frame that begins with UNBOUNDED PRECEDING")
    place, (value,) = call.parameters[0], call.arguments
    nth = f"CASE WHEN {number(over.partition)} = {place} THEN {value} END"
    made = AggregateCall("max", (nth,), place=call.place)
    return OverCall(made, over.partition, over.order, over.kind, None)


def _reach(node: exp.Window, text: Text) -> tuple[str, int | None]:
    """Return the kind of a frame, and how far it reaches back; None to the first row."""
    spec = node.args.get("spec")
    if spec is None:
        return "range", None
    kind = str(spec.args.get("kind") or "").lower()
    start, end = spec.args.get("start"), spec.args.get("end")
    if end not in (None, "CURRENT ROW"):
        raise text.error(node, _ENDS)
    if kind not in ("rows", "range") or spec.args.get("exclude"):
        raise text.error(node, _FRAME)
    if start == "CURRENT ROW":
        return kind, 0
    if str(spec.args.get("start_side")).upper() != "PRECEDING":
        raise text.error(node, _FRAME)
    if start == "UNBOUNDED":
        return kind, None
    if kind == "rows":
        if not (isinstance(start, exp.Literal) and str(start.this).isdecimal()):
            raise text.error(
                node, "ROWS is followed by a number of rows: ROWS BETWEEN 10 PRECEDING"
            )
        return kind, int(str(start.this))
    length = interval_of(start)
    if length is None:
        raise text.error(node, "RANGE is followed by an interval: INTERVAL '1' HOUR PRECEDING")
    return kind, length


def _order_call(
    node: exp.Window, function: str, text: Text, read: Callable[[exp.Expr], exp.Expr]
) -> AggregateCall:
    """Read LAG(value, offset, default), LEAD, NTH_VALUE(value, offset), RANK and DENSE_RANK()."""
    if function in ("rank", "dense_rank", "row_number"):
        return AggregateCall(function, ())
    inner = node.this
    if isinstance(inner, exp.IgnoreNulls):
        raise text.error(node, f"{function.upper()} counts all rows: remove IGNORE NULLS")
    if isinstance(inner, exp.RespectNulls):
        inner = inner.this
    parts = [inner.this, inner.args.get("offset"), inner.args.get("default")]
    if isinstance(inner, exp.Anonymous):
        parts = [*inner.expressions, None, None, None][:3]
    offset = 1
    if parts[1] is not None:
        if not (isinstance(parts[1], exp.Literal) and str(parts[1].this).isdecimal()):
            raise text.error(node, f"the second argument of {function.upper()} is a number of rows")
        offset = int(str(parts[1].this))
    default = None if parts[2] is None else written(read(parts[2]))
    return AggregateCall(function, (written(read(parts[0])),), (offset, default))
