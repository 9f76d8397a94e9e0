"""What mode `now` follows from a query: the key of its rows, when they hold, if the past counts.

Idea: rows of an aggregate or of a top-k, or of several that are joined in their group, replace
those of the same group; rows of anything else are replaced as a whole. Rows of windows, of joins by
match and of first events *stay*: their lifetimes only say when they are final. What others compute
from such rows is a query over tables, without a time: all rows live at one instant (`Always`).
Everything else holds while it is alive.

Operators that compute each instant from the events alive then (joins, differences, aggregates,
top-k) need nothing from before the latest event, so neither lateness nor history exist: time is the
latest event of any source, and lifetimes are cut off there. User code, lifetimes that are altered
after an operator, and functions that depend on when an event began do look back; such a query keeps
the watermark, and computes what led to the rows.

Invariants:
1. Cutting off the past changes no row that holds
   (`test_oracle_what_holds_now_is_the_same_with_and_without_the_past`).
2. Rows that stay are those of the query over all events so far
   (`test_oracle_every_kind_of_window_is_in_the_table_while_it_is_open`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pyarrow as pa
import pyarrow.types as pt

from icestream.core.errors import DefinitionError
from icestream.operators.dataflow.steps import Filtering, Padding, Projecting
from icestream.operators.dataflow.table_lookup import TableLookup
from icestream.operators.lifetimes.alter_lifetimes import AlterLifetimes
from icestream.operators.lifetimes.answers import LifetimeAggregate
from icestream.operators.lifetimes.changes import BEGAN
from icestream.operators.lifetimes.conditions_met import ConditionsMet
from icestream.operators.lifetimes.difference import StreamDifference
from icestream.operators.lifetimes.first_events import FirstEvents
from icestream.operators.lifetimes.join import StreamJoin
from icestream.operators.lifetimes.open_windows import InWindows, OpenWindows
from icestream.operators.lifetimes.session_copies import SessionCopies
from icestream.operators.lifetimes.top import TopK
from icestream.operators.lifetimes.window_copies import WINDOW, GroupingCopies, OwnTimes
from icestream.plan.nodes.events import (
    Applied,
    Entered,
    Final,
    Framed,
    FromSource,
    Left,
    Mapped,
    Node,
    Paned,
    United,
    before,
    only_grows,
    rebuilt,
    upstream,
)
from icestream.plan.windows.grid import Cumulative, Windows
from icestream.plan.windows.lifetimes import Always, Forever, Point, Shifted
from icestream.plan.windows.session import Session

#: when rows hold: at their instant; once they are there; while they live; from their start on; and
#: as rows of a table without a time
_INSTANT, _STAYS, _LIVES, _FOREVER, _ALWAYS = "instant", "stays", "lives", "for ever", "always"


def row_key(node: Node) -> tuple[str, ...]:
    """Return the columns that identify rows."""
    found = group_key(node)
    if found is not None:
        return found
    names = tuple(each.name for each in node.payload if is_comparable(each.type))
    if not names:
        msg = "rows of lists only have no key: select a column that identifies them as well"
        raise DefinitionError(msg)
    return names


def group_key(node: Node) -> tuple[str, ...] | None:
    """Return the columns of the group whose answers rows are; None if they are no answers."""
    match node:
        case Mapped(change=Filtering()) | Left() | Final():
            return group_key(node.before)
        case Mapped(change=Projecting() as change):
            known = group_key(node.before)
            return None if known is None else change.projection.renamed(known)
        case Applied(operator=OpenWindows() as answers):
            return answers.keys
        case Applied(operator=LifetimeAggregate() | TopK()) if node.scope is not None:
            return node.scope.keys
        case Applied(operator=StreamJoin()) if node.scope is not None:
            # of answers of one group, as of several aggregates
            keys = node.scope.keys
            return keys if all(group_key(each) == keys for each in node.inputs) else None
    return None


def of_windows(node: Node) -> bool:
    """Return whether rows show their windows, so that they never come again once these are over."""
    return bool(_shown_windows(node))


def _shown_windows(node: Node) -> dict[str, tuple[str, ...]]:
    """Return the columns that tell windows apart, and which of their fields do so alone."""
    match node:
        case Mapped(change=Filtering()) | Left() | Final():
            return _shown_windows(node.before)
        case Mapped(change=Projecting(projection)):
            before, found = _shown_windows(node.before), dict[str, tuple[str, ...]]()
            for item in projection.items:
                column, field = item.field_of or (item.reads, None)
                if column in before and (field is None or field in before[column]):
                    found[item.name] = before[column] if field is None else ()
            return found
        case Applied(operator=OpenWindows() as rows):
            return {WINDOW: rows.own_edges}
        case Applied(operator=LifetimeAggregate()) if node.scope is not None:
            return {WINDOW: ("start", "end")} if WINDOW in node.scope.keys else {}
    return {}


# -- tables --------------------------------------------------------------------------------


def as_table(node: Node) -> Node:
    """Return a node whose rows are those that hold now, not only the final ones.

    Operators that need events which are never retracted keep reading final rows of windows.
    """
    if not all(map(_follows_revisions, _behind_windows(node))):
        return node
    known: dict[int, Node] = {}

    def made(each: Node) -> Node:
        if id(each) not in known:
            known[id(each)] = _held(rebuilt(each, made))
        return known[id(each)]

    return made(node)


def _held(node: Node) -> Node:
    match node:
        case Final() if stays(node.before):
            return node.before
        case Mapped(change=AlterLifetimes(lifetime=Forever())) if _computes(node.before):
            always = AlterLifetimes(Always())
            return replace(node, change=always, text="rows of a table", delay=0)
    return node


def _behind_windows(node: Node) -> Iterator[Node]:
    for each in upstream(node):
        if any(isinstance(other, Final) for other in upstream(each)) and not isinstance(
            each, Final
        ):
            yield each


def _computes(node: Node) -> bool:
    """Return whether rows are computed from others, not only taken from sources."""
    return not all(isinstance(each, Mapped | FromSource | United) for each in upstream(node))


def _follows_revisions(node: Node) -> bool:
    """Return whether a node takes rows of windows that are still revised."""
    match node:
        case Mapped(change=Filtering() | Projecting() | Padding() | InWindows()):
            return True
        case Mapped(change=GroupingCopies() | TableLookup()):
            return True
        case Mapped(change=AlterLifetimes(lifetime=Forever())):
            return True
        case Applied(operator=LifetimeAggregate() as operator):
            return not operator.depends_on_order or BEGAN in node.inputs[0].payload.names
        case Applied():
            kinds = StreamJoin | StreamDifference | TopK | SessionCopies | OpenWindows
            return isinstance(node.operator, kinds)
    return isinstance(node, Entered | Left | United)


def stays(node: Node) -> bool:
    """Return whether rows hold from the first on, whatever their lifetimes."""
    return _holds(node) in (_STAYS, _ALWAYS)


def ends(node: Node) -> bool:
    """Return whether rows hold for a time only."""
    return _holds(node) in (_INSTANT, _LIVES)


def never_ends(node: Node) -> bool:
    """Return whether rows hold from some instant on, until they are retracted."""
    return _holds(node) in (_FOREVER, _ALWAYS)


def holds_by_group(node: Node) -> bool:
    """Return whether rows hold by their group from some instant on, until others replace them."""
    return group_key(node) is not None and node.delay == 0 and never_ends(node)


def stay_forever(node: Node) -> bool:
    """Return whether events never end and are never retracted, in whichever mode they are read."""
    finals = (each for each in upstream(node) if isinstance(each, Final))
    return _holds(node) == _FOREVER and only_grows(node) and not any(finals)


def _holds(node: Node) -> str:
    """Return when the rows of a node hold."""
    if node.stays or isinstance(node, Framed | Final | Paned):
        return _STAYS
    found = [_holds(each) for each in before(node)]
    match node:
        case FromSource():
            return _INSTANT
        case Mapped():
            return _mapped_holds(node, found[0])
        case Applied():
            return _applied_hold(node, found)
        case Entered() | Left():
            return found[0]
    return _together(found)


def _mapped_holds(node: Mapped, before: str) -> str:
    match node.change:
        case Filtering() | Projecting() | Padding() | TableLookup():
            return before
        case GroupingCopies() | OwnTimes():
            return before
        case AlterLifetimes(lifetime=Shifted()):
            return before
        case AlterLifetimes(lifetime=Point()):
            return _STAYS if before == _STAYS else _INSTANT
        case AlterLifetimes(lifetime=Forever()):
            return _FOREVER
        case AlterLifetimes(lifetime=Always()):
            return _ALWAYS
    return _STAYS if isinstance(node.change, InWindows) else _LIVES


def _applied_hold(node: Applied, before: list[str]) -> str:
    first = before[0]
    match node.operator:
        case SessionCopies():
            return _STAYS
        case OpenWindows():
            return first
        case FirstEvents():
            return _STAYS if first == _INSTANT else first
        case LifetimeAggregate() | TopK() | StreamDifference() | ConditionsMet():
            return _LIVES if first == _INSTANT else first
        case StreamJoin():
            return _together(before)
    return _LIVES


def _together(kinds: list[str]) -> str:
    if len(set(kinds)) == 1:
        return kinds[0]
    if _ALWAYS in kinds and not {*kinds} <= {_ALWAYS, _FOREVER}:
        msg = (
            "in output mode 'now', rows that never end cannot be joined or united with events that "
            "end, or with rows of single windows: let those live for ever too, with forever()"
        )
        raise DefinitionError(msg)
    for each in (_ALWAYS, _STAYS):
        if each in kinds:
            return each
    return _LIVES


def late_windows(nodes: Iterable[Node]) -> tuple[Windows | Cumulative | Session, ...]:
    """Return the windows that all events of all sources go into; none if some go elsewhere."""
    found = [each for node in nodes for each in _first_windows(node, None)]
    return () if None in found else tuple(each for each in found if each is not None)


def _first_windows(
    node: Node, windows: Windows | Cumulative | Session | None
) -> Iterator[Windows | Cumulative | Session | None]:
    match node:
        case FromSource():
            yield windows
        case Mapped(change=InWindows(windows=windows)) | Paned(windows=windows):
            yield from _first_windows(node.before, windows)
        case Applied(operator=SessionCopies() as copies):
            yield from _first_windows(node.inputs[0], copies.windows)
        case Mapped(change=Filtering() | Projecting() | GroupingCopies()) | Entered() | Left():
            yield from _first_windows(node.before, windows)
        case United():
            for part in node.parts:
                yield from _first_windows(part, windows)
        case _:
            for each in before(node):
                yield from _first_windows(each, None)


# -- no past -------------------------------------------------------------------------------


def forgets_past(node: Node) -> bool:
    """Return whether the rows that hold need only the events alive at the latest one."""
    return not stays(node) and all(map(_at_each_instant, upstream(node)))


def _at_each_instant(node: Node) -> bool:
    match node:
        case Mapped(change=Filtering() | Projecting() | Padding() | TableLookup()):
            return True
        case Mapped():
            return all(isinstance(each, Mapped | FromSource) for each in upstream(node.before))
        case Applied(operator=LifetimeAggregate() as operator):
            return not operator.depends_on_order
        case Applied():
            kinds = StreamJoin | StreamDifference | TopK | ConditionsMet
            return isinstance(node.operator, kinds)
    return isinstance(node, FromSource | Entered | Left | United)


def is_comparable(kind: pa.DataType) -> bool:
    """Return whether values can be those of a key."""
    if pt.is_struct(kind):
        return all(is_comparable(each.type) for each in kind)
    return not (pt.is_nested(kind) or pt.is_null(kind))
