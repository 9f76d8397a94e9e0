"""Relations: scan, filter, project, window, join, aggregate, top and union, as pure data.

Idea: every column of every relation has a number of its own, as part of its name (c3_price), so
an expression means the same wherever a rule moves it. Conditions are kept as conjunctions, part
by part. A relation is a table that changes: the rows of a stream are there from their time on.

Invariants:
1. The columns of a relation have different names, also if a source is read twice
   (`test_a_source_that_is_read_twice_has_two_sets_of_columns`).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Self

from sqlglot import exp

from icestream.core.text_errors import TextSpan
from icestream.core.times import Micros
from icestream.plan.windows.frame import Frame
from icestream.sql.statements.aggregates import AggregateCall
from icestream.sql.statements.dialect import written

_ID = re.compile(r"\bc\d+_\w*")

#: a number of rows that no relation has
ALL_ROWS = 2**40

Conditions = tuple[exp.Expr, ...]


@dataclass(frozen=True)
class Relation(ABC):
    """A table that changes over time."""

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """Return the names of the columns."""

    @property
    def inputs(self) -> tuple[Relation, ...]:
        """Return the relations that this one is made of."""
        values = (getattr(self, each.name) for each in fields(self))
        return tuple(each for each in values if isinstance(each, Relation))

    def over(self, inputs: Sequence[Relation]) -> Self:
        """Return the same relation over other inputs."""
        named = [each.name for each in fields(self)]
        own = [name for name in named if isinstance(getattr(self, name), Relation)]
        return replace(self, **dict(zip(own, inputs, strict=True)))


@dataclass(frozen=True)
class _Restricted(Relation):
    """Rows with the columns of the input."""

    input: Relation

    @property
    def columns(self) -> tuple[str, ...]:
        return self.input.columns


@dataclass(frozen=True)
class Scan(Relation):
    """The rows of a stream or of a static table."""

    source: str
    #: columns of the source under the names they have here
    named: Mapping[str, str]
    #: column of the event time; None for a static table
    time: str | None

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.named.values())


@dataclass(frozen=True)
class Filter(_Restricted):
    """The rows that satisfy all conditions."""

    conditions: Conditions


@dataclass(frozen=True)
class Project(Relation):
    """Expressions over each row."""

    input: Relation
    items: Mapping[str, exp.Expr]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.items)


@dataclass(frozen=True)
class TimeWindow:
    """A kind of windows in time: `tumble`, `hop`, `cumulate` or `session`."""

    kind: str
    #: length of a window; the gap of a session
    size: Micros
    #: distance of windows, or the step of cumulating ones
    step: Micros
    #: the gap of a session in which each row has its own; then there is no size
    gap: exp.Expr | None = None
    #: where windows start, from 1970-01-01 UTC
    offset: Micros = 0


#: the window of the rows of an instant
NOW = Frame(range=0, peers=True)


@dataclass(frozen=True)
class WindowTable(Relation):
    """Each row once for each window that contains it, with the window's start and end.

    A window that moves with rows has one instant, which is both.
    """

    input: Relation
    window: TimeWindow | Frame
    time: str
    start: str
    end: str
    place: TextSpan = field(default=TextSpan(0, 1), compare=False, repr=False)
    #: columns of [PARTITION BY ... ROWS n]
    partition: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns of the input, and start and end."""
        return (*self.input.columns, *dict.fromkeys((self.start, self.end)))

    @property
    def on_a_grid(self) -> bool:
        """Return whether the windows of a row depend on its time alone."""
        return isinstance(self.window, TimeWindow) and self.window.kind != "session"

    @property
    def heading(self) -> str:
        """Return the name of the window's column: a struct of bounds, or the instant."""
        if isinstance(self.window, Frame):
            return "time"
        return "session_window" if self.window.kind == "session" else "window"


@dataclass(frozen=True)
class Lasting(_Restricted):
    """Rows that are there for a length of time: [RANGE 1 HOUR]; for an instant: [NOW]."""

    length: Micros


@dataclass(frozen=True)
class Streamed(_Restricted):
    """The rows that enter a relation (ISTREAM), or that leave it (DSTREAM), at that instant."""

    kind: str


@dataclass(frozen=True)
class Join(Relation):
    """Pairs of rows: `inner`, `left`, `full`, or the left rows of `semi` and `anti`."""

    left: Relation
    right: Relation
    kind: str
    on: Conditions
    place: TextSpan = field(default=TextSpan(0, 1), compare=False, repr=False)

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns of both sides, or of the left one."""
        if self.kind in ("semi", "anti"):
            return self.left.columns
        return self.left.columns + self.right.columns


@dataclass(frozen=True)
class Grouped(Relation):
    """Aggregates of groups; without any, the groups themselves."""

    input: Relation
    keys: Mapping[str, exp.Expr]
    calls: Mapping[str, AggregateCall]
    #: sets of keys to group by; None for one grouping by all of them
    sets: tuple[tuple[str, ...], ...] | None = None
    #: column for the set of a row: a bit for each key, set if it is left out
    grouping: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        named = () if self.grouping is None else (self.grouping,)
        return (*self.keys, *named, *self.calls)


@dataclass(frozen=True)
class SortKey:
    """An expression to order by."""

    expression: exp.Expr
    descending: bool
    nulls_first: bool


@dataclass(frozen=True)
class Top(Relation):
    """The first `count` rows of each partition; None while no condition has limited the rank."""

    input: Relation
    count: int | None
    partition: tuple[exp.Expr, ...]
    order: tuple[SortKey, ...]
    #: column for the place of a row, from 1; None if nothing needs it
    rank: str | None
    place: TextSpan = field(default=TextSpan(0, 1), compare=False, repr=False)

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns of the input, and the rank."""
        return self.input.columns + (() if self.rank is None else (self.rank,))


@dataclass(frozen=True)
class OverCall:
    """A function over a frame of the rows up to each row."""

    call: AggregateCall
    partition: tuple[exp.Expr, ...]
    #: the column of the order
    order: str
    #: `range` with microseconds or `rows` with a number of rows before the row; None: all of them
    kind: str
    before: int | None

    @property
    def columns(self) -> frozenset[str]:
        return columns_in(self.call, *self.partition) | {self.order}


@dataclass(frozen=True)
class Over(Relation):
    """Each row, with functions over frames of the rows up to it."""

    input: Relation
    calls: Mapping[str, OverCall]

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns of the input, and the functions."""
        return (*self.input.columns, *self.calls)


@dataclass(frozen=True)
class UnionAll(Relation):
    """The rows of several relations, whose columns correspond by position."""

    parts: tuple[Relation, ...]
    names: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return self.names

    @property
    def inputs(self) -> tuple[Relation, ...]:
        return self.parts

    def over(self, inputs: Sequence[Relation]) -> Self:
        return replace(self, parts=tuple(inputs))


def columns_in(*values: exp.Expr | AggregateCall | str) -> frozenset[str]:
    """Return the columns that trees of expressions read."""
    found: set[str] = set()
    for value in values:
        if isinstance(value, AggregateCall):
            found.update(columns_in(*value.arguments))
        elif isinstance(value, str):
            found.update(_ID.findall(value))
        else:
            found.update(each.name for each in value.find_all(exp.Column))
    return frozenset(found)


def reads_only(columns: Iterable[str], *values: exp.Expr) -> bool:
    """Return whether trees of expressions read nothing but some columns."""
    return columns_in(*values) <= set(columns)


def substituted(value: exp.Expr, by: Mapping[str, exp.Expr]) -> exp.Expr:
    """Return a tree of an expression with columns replaced by what they are made of."""

    def change(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Column) or node.name not in by:
            return node
        found = by[node.name].copy()
        found.meta.update({each: node.meta[each] for each in ("start", "end") if each in node.meta})
        simple = isinstance(found, exp.Column | exp.Literal | exp.Anonymous)
        return found if simple else exp.paren(found)

    return value.transform(change)


def substituted_call(call: AggregateCall, by: Mapping[str, exp.Expr]) -> AggregateCall:
    """Return an aggregate with columns replaced by what they are made of."""

    def change(found: re.Match[str]) -> str:
        node = by.get(found[0])
        if node is None:
            return found[0]
        return written(node) if isinstance(node, exp.Column) else f"({written(node)})"

    return replace(call, arguments=tuple(_ID.sub(change, each) for each in call.arguments))


def walk(relation: Relation) -> Iterator[Relation]:
    """Walk the tree of a relation: yield it and all that it is made of."""
    yield relation
    for each in relation.inputs:
        yield from walk(each)


def is_static(relation: Relation) -> bool:
    """Return whether the tree of a relation reads no stream."""
    return all(each.time is None for each in walk(relation) if isinstance(each, Scan))


def bare(name: str) -> str:
    """Return the user's name of a column."""
    return _ID.sub(lambda found: found[0].split("_", 1)[1], name)
