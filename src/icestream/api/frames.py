"""The frames that users write for `over`."""

from __future__ import annotations

from collections.abc import Sequence

from icestream.api.column_text import sql_text
from icestream.api.functions import AggregateExpression
from icestream.core.errors import DefinitionError
from icestream.core.units import parse_interval
from icestream.plan.events.features import UP_TO_ROW, UP_TO_TIME, FeatureCall, with_features
from icestream.plan.nodes.events import Framed, Node
from icestream.plan.windows.frame import Frame


def framed(
    node: Node,
    expressions: Sequence[AggregateExpression],
    keys: tuple[str, ...],
    range: str | int | None,
    rows: int | str | None,
) -> Framed:
    """Return events with columns over a frame of the events with equal keys."""
    if not expressions or not all(isinstance(e, AggregateExpression) for e in expressions):
        msg = (
            "over takes Icestream's functions, for example "
            "over(ice.sum('amount').alias('spent'), partitionBy='card', range='1 hour')"
        )
        raise DefinitionError(msg)
    frame, calls = _frame(range, rows), []
    for each in expressions:
        texts = tuple(sql_text(column, node.payload, each.function) for column in each.columns)
        name = each.name or f"{each.title}({', '.join(texts) or '*'})"
        calls.append(FeatureCall(each.function, texts, name, keys, frame, each.parameters))
    return with_features(node, calls)


def _frame(range: str | int | None, rows: int | str | None) -> Frame:
    if range is not None and rows is not None:
        msg = "a frame of over(...) reaches back a range of time or a number of rows; give one"
        raise DefinitionError(msg)
    if range is not None:
        return Frame(range=parse_interval(range), peers=True)
    if rows is None:
        return UP_TO_TIME
    if rows == "unbounded":
        return UP_TO_ROW
    if isinstance(rows, bool) or not isinstance(rows, int):
        msg = f"rows must be a number of events or 'unbounded'; got {rows!r}"
        raise DefinitionError(msg)
    return Frame(rows=rows)
