"""What mode `now` follows from a query: the key of its rows, and whether the past matters.

Idea: rows of an aggregate or of a top-k replace those of the same group; rows of anything else are
replaced as a whole. Operators that compute each instant from the events alive then (joins,
differences, aggregates, top-k) need nothing from before the latest event, so neither lateness nor
history exist: time is the latest event of any source, and lifetimes are cut off there. User code,
lifetimes that are altered after an operator, and functions that depend on when an event began do
look back; such a query keeps the watermark, and computes what led to the rows.

Invariant: cutting off the past changes no row that holds
(`test_oracle_what_holds_now_is_the_same_with_and_without_the_past`).
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pt

from icestream.core.errors import DefinitionError
from icestream.operators.dataflow.padding import Padding
from icestream.operators.dataflow.steps import Filtering, Projecting
from icestream.operators.lifetimes.aggregate import LifetimeAggregate
from icestream.operators.lifetimes.difference import StreamDifference
from icestream.operators.lifetimes.join import StreamJoin
from icestream.operators.lifetimes.top import TopK
from icestream.plan.nodes.events import (
    Applied,
    Entered,
    FromSource,
    Left,
    Mapped,
    Node,
    United,
    upstream,
)


def row_key(node: Node) -> tuple[tuple[str, ...], bool]:
    """Return the columns that identify rows, and whether they are those of the outermost groups."""
    found = _group_key(node)
    if found is not None:
        return found
    names = tuple(each.name for each in node.payload if _is_comparable(each.type))
    if not names:
        msg = "rows of lists only have no key: select a column that identifies them as well"
        raise DefinitionError(msg)
    return names, False


def _group_key(node: Node) -> tuple[tuple[str, ...], bool] | None:
    match node:
        case Mapped(change=Filtering()) | Left():
            return _group_key(node.before)
        case Mapped(change=Projecting() as change):
            known = _group_key(node.before)
            names = None if known is None else change.projection.renamed(known[0])
            return None if known is None or names is None else (names, known[1])
        case Applied(operator=LifetimeAggregate() | TopK()) if node.scope is not None:
            return node.scope.keys, node.scope.outer is None
    return None


def forgets_past(node: Node) -> bool:
    """Return whether the rows that hold need only the events alive at the latest one."""
    return all(map(_at_each_instant, upstream(node)))


def _at_each_instant(node: Node) -> bool:
    match node:
        case Mapped(change=Filtering() | Projecting() | Padding()):
            return True
        case Mapped():
            return all(isinstance(each, Mapped | FromSource) for each in upstream(node.before))
        case Applied(operator=LifetimeAggregate() as operator):
            return not operator.depends_on_order
        case Applied():
            return isinstance(node.operator, StreamJoin | StreamDifference | TopK)
    return isinstance(node, FromSource | Entered | Left | United)


def _is_comparable(kind: pa.DataType) -> bool:
    if pt.is_struct(kind):
        return all(_is_comparable(each.type) for each in kind)
    return not (pt.is_nested(kind) or pt.is_null(kind))
