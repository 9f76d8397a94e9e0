"""What relations say about time: the instant of a row, and how far apart the rows of a join are.

Idea: a row of a stream is an event at the instant of its time column, and a row of a window is one
at the window's end. If the conditions of a join bound the instant of one side, the *point*, by
columns of the other side, then a row of the other side *lives* from the lower bound to the upper
one, and a point pairs with the rows that live at its instant. Nothing else needs to be stored, and
lifetimes that have ended are forgotten. Bounds that are constants are those of joins by match.

    B.time BETWEEN A.time AND A.expires      A  |----------|        lives
                                             B       |              a point

Windowed joins are the same with equal instants.

Invariants:
1. Pairs are those that satisfy the conditions (`test_oracle_statements`).

Limits: the lower bound is the other side's instant plus a constant, because rows cannot live before
they arrive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from icestream.core.errors import DefinitionError
from icestream.core.times import DAY, Micros
from icestream.sql.relations.group_windows import interval_of
from icestream.sql.relations.tree import (
    Filter,
    Grouped,
    Join,
    Lasting,
    Over,
    Project,
    Relation,
    Scan,
    Streamed,
    Top,
    UnionAll,
    WindowTable,
    is_static,
    reads_only,
)


def time_of(relation: Relation) -> str | None:
    """Return the column of the instant at which each row of a relation exists, if there is one."""
    match relation:
        case Scan():
            return relation.time if relation.time in relation.columns else None
        case WindowTable():
            return relation.end if relation.on_a_grid else None
        case Filter() | Over():
            return time_of(relation.input)
        case Project() | Grouped():
            items = relation.items if isinstance(relation, Project) else relation.keys
            inner = time_of(relation.input)
            return next((name for name, each in items.items() if _is_column(each, inner)), None)
        case Top():
            inner = time_of(relation.input)
            return inner if any(_is_column(each, inner) for each in relation.partition) else None
        case Join():
            return _time_of_join(relation)
        case UnionAll():
            times = [time_of(each) for each in relation.parts]
            at = {part.columns.index(t) for part, t in zip(relation.parts, times, strict=True) if t}
            return relation.names[at.pop()] if None not in times and len(at) == 1 else None
    return None


def _time_of_join(join: Join) -> str | None:
    bounds = time_bounds(join)
    if bounds is None:
        return time_of(join.left) if is_static(join.right) else None
    return None if join.kind == "full" else time_of(join.inputs[bounds.point])


def is_changing(relation: Relation) -> bool:
    """Return whether rows of a relation may be taken back, or come later than their time."""
    match relation:
        case Grouped() | Top():
            return time_of(relation) is None
        case Join() if time_bounds(relation) is None and not is_static(relation.right):
            return True
        case Lasting():
            return True
        case Streamed():
            return False
    return any(is_changing(each) for each in relation.inputs)


def origin(relation: Relation, column: str) -> exp.Expr | None:
    """Return what a column is made of at the source of a relation, if it passes unchanged."""
    match relation:
        case Scan():
            return exp.column(column) if column in relation.columns else None
        case Filter() | WindowTable() | Top() | Over():
            return origin(relation.input, column)
        case Project():
            item = relation.items.get(column)
            return origin(relation.input, item.name) if isinstance(item, exp.Column) else item
        case Join():
            sides = (origin(each, column) for each in relation.inputs if column in each.columns)
            return next(sides, None)
    return None


def _is_column(node: exp.Expr, name: str | None) -> bool:
    return isinstance(node, exp.Column) and name is not None and node.name == name


@dataclass(frozen=True)
class TimeBounds:
    """How the instant of one side of a join is bounded by the other side."""

    #: the side that is a point: 0 for the left one, 1 for the right one
    point: int
    #: rows of the other side live from this long after their instant
    low: Micros
    #: up to and including a time, an expression over the other side; None forever
    high: exp.Expr | None
    #: up to this long after their instant, if that is known
    length: Micros | None
    #: conditions that the lifetimes express
    expressed: tuple[exp.Expr, ...]

    @property
    def shift(self) -> Micros:
        """Return how far lifetimes move, because none can begin in the past."""
        return max(0, -self.low)

    @property
    def within(self) -> tuple[Micros, Micros] | None:
        """Return by how much the other side may be later than the point, if that is known."""
        if self.length is None:
            return None
        if self.length < self.low:
            msg = "no rows can satisfy the conditions on times"
            raise DefinitionError(msg)
        return -self.length, -self.low


@dataclass(frozen=True)
class _Bound:
    """`instant of the point >= or <= other`, as a time of the other side plus a constant."""

    is_low: bool
    other: exp.Expr
    plus: Micros


def time_bounds(join: Join) -> TimeBounds | None:
    """Return what the conditions of a join say about the instants of its sides."""
    times = [time_of(each) for each in join.inputs]
    points = (0, 1) if join.kind == "inner" else (0,)
    found = [bounds for each in points if (bounds := _bounds(join, each, times)) is not None]
    if join.kind == "full":
        found = [each for each in found if each.length is not None]
    found.sort(key=lambda each: (each.high is None, each.shift, each.length is None, -each.point))
    return found[0] if found else None


def _bounds(join: Join, point: int, times: Sequence[str | None]) -> TimeBounds | None:
    instant, other = times[point], times[1 - point]
    if instant is None or other is None:
        return None
    columns = join.inputs[1 - point].columns
    low: Micros | None = None
    high: _Bound | None = None
    expressed = []
    for condition in join.on:
        bounds = _bounds_in(condition, instant, columns)
        used = False
        for bound in bounds:
            if bound.is_low and _is_column(bound.other, other) and low is None:
                low, used = bound.plus, True
            elif not bound.is_low and high is None:
                high, used = bound, True
        # an equality stays a key
        if used and not isinstance(condition, exp.EQ):
            expressed.append(condition)
    if low is None:
        return None
    length = high.plus if high is not None and _is_column(high.other, other) else None
    until = None if high is None else _later_by(high.other, high.plus)
    return TimeBounds(point, low, until, length, tuple(expressed))


def _bounds_in(condition: exp.Expr, instant: str, columns: Sequence[str]) -> list[_Bound]:
    """Return the bounds on an instant that a comparison means."""
    if not isinstance(condition, exp.GTE | exp.LTE | exp.EQ | exp.GT | exp.LT):
        return []
    left, right = condition.left, condition.right
    at_most = isinstance(condition, exp.LTE | exp.LT)
    for mine, theirs, is_low in ((left, right, not at_most), (right, left, at_most)):
        (column, offset), (other, plus) = _linear(mine), _linear(theirs)
        if not _is_column(column, instant) or not reads_only(columns, other):
            continue
        both = isinstance(condition, exp.EQ)
        strict = isinstance(condition, exp.GT | exp.LT)
        return [
            _Bound(low, other, plus - offset + (strict if low else -strict))
            for low in ((True, False) if both else (is_low,))
        ]
    return []


def _linear(node: exp.Expr) -> tuple[exp.Expr, Micros]:
    """Return an expression as another one plus an interval."""
    if isinstance(node, exp.Paren):
        return _linear(node.this)
    if isinstance(node, exp.Add | exp.Sub):
        length = interval_of(node.expression)
        if length is not None and isinstance(node.expression, exp.Interval):
            inner, plus = _linear(node.this)
            return inner, plus + length if isinstance(node, exp.Add) else plus - length
    return node, 0


def _later_by(node: exp.Expr, length: Micros) -> exp.Expr:
    """Return a time plus a length in microseconds."""
    if not length:
        return node
    interval = exp.Interval(this=exp.Literal.string(str(abs(length))), unit=exp.var("MICROSECOND"))
    kind = exp.Add if length > 0 else exp.Sub
    return kind(this=node.copy(), expression=interval)


def by_calendar(relation: Relation) -> Relation:
    """Return a relation for a zone whose days differ in length (`test_oracle_days_of_a_zone`).

    Lifetimes have lengths; so where times are compared by days, they bound a day more, and the
    comparison is a condition.
    """
    relation = relation.over([by_calendar(each) for each in relation.inputs])
    if not isinstance(relation, Join) or is_static(relation.right):
        return relation
    return replace(relation, on=tuple(part for each in relation.on for part in _widened(each)))


def _widened(condition: exp.Expr) -> list[exp.Expr]:
    kinds = (exp.GTE, exp.GT), (exp.LTE, exp.LT)
    if not isinstance(condition, exp.EQ | exp.GTE | exp.GT | exp.LTE | exp.LT):
        return [condition]
    left, right = condition.left, condition.right
    if max(abs(_linear(each)[1]) for each in (left, right)) < DAY:
        return [condition]
    both = isinstance(condition, exp.EQ)
    made: list[exp.Expr] = []
    for (kind, strict), length in zip(kinds, (-DAY, DAY), strict=True):
        if both or isinstance(condition, kind | strict):
            made.append(kind(this=left.copy(), expression=_later_by(right, length)))
    kept = condition if both else exp.Is(this=exp.Paren(this=condition), expression=exp.true())
    return [*made, kept]


def unexpressed(join: Join, bounds: TimeBounds | None) -> Join:
    """Return a join without the conditions on times that lifetimes express."""
    if bounds is None:
        return join
    rest = tuple(each for each in join.on if not any(each is other for other in bounds.expressed))
    return replace(join, on=rest)
