"""Expressions of statements: names and functions.

Idea: an expression is checked, and its names are resolved by scope.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Self

from sqlglot import exp

from icestream.core.text_errors import guess
from icestream.sql.relations.names import (
    ColumnNumbers,
    ColumnScope,
    Definitions,
    Functions,
    NamedRelation,
    resolved,
)
from icestream.sql.relations.tree import Filter, Relation
from icestream.sql.statements.aggregates import ABSENT, NAMES, CallReader, called
from icestream.sql.statements.dialect import written
from icestream.sql.statements.tokens import Text


class ExpressionReader(ABC):
    """Reads the expressions of one statement."""

    def __init__(
        self, text: Text, definitions: Definitions, functions: Functions, numbers: ColumnNumbers
    ) -> None:
        """Take the text, and what it may name."""
        self._text = text
        self._definitions = dict(definitions)
        self._functions = functions
        self._numbers = numbers
        #: columns that are answers of nested queries
        self._answers: set[str] = set()
        self._calls = CallReader(text, functions.own, written)

    @abstractmethod
    def query(self, tree: exp.Expr) -> NamedRelation:
        """Read a query."""

    @abstractmethod
    def rows_of(self, tree: exp.Select) -> NamedRelation:
        """Read FROM and its joins."""

    def inside(self) -> Self:
        """Return a reader for a query inside this one."""
        return type(self)(self._text, self._definitions, self._functions, self._numbers)

    def expression(self, node: exp.Expr, *scopes: ColumnScope) -> exp.Expr:
        """Return an expression over columns."""
        for each in own_nodes(node):
            self.check_form(each)
        found = resolved(node, scopes, self._text)
        return found.transform(_processing_time)

    def row_expression(self, node: exp.Expr, *scopes: ColumnScope) -> exp.Expr:
        """Return an expression over the columns of one row, without aggregates."""
        for each in own_nodes(node):
            if isinstance(each, exp.Window):
                raise self._text.error(
                    each, "a condition on OVER (...) goes around the query that computes it: "
                    "SELECT ... FROM (SELECT *, ROW_NUMBER() OVER (...) AS n ...) WHERE n <= 10",
                )  # fmt: skip
            self.check_without_aggregates(each)
        return self.expression(node, *scopes)

    def check_without_aggregates(self, node: exp.Expr) -> None:
        """Refuse an aggregate where rows are looked at one by one."""
        if self._calls.is_aggregate(node):
            raise self._text.error(
                node, f"{called(node)} is an aggregate, not allowed here: aggregates are computed "
                "over groups, and conditions on them go into HAVING",
            )  # fmt: skip

    def check_form(self, node: exp.Expr) -> None:
        """Refuse what no expression may have."""
        if isinstance(node, exp.Values):
            raise self._text.error(node, "VALUES is not an expression: pass rows as a table")
        if isinstance(node, exp.DataType) and node.is_type("time"):
            raise self._text.error(
                node, "the type TIME cannot be used here: use strings or timestamps"
            )
        if isinstance(node, exp.Anonymous) and not isinstance(node.parent, exp.Dot):
            name = node.name.lower()
            is_own = self._calls.is_aggregate(node) or name in _OWN_FUNCTIONS
            if not is_own and not self._functions.exists(name):
                known = {*NAMES, *self._functions.own, *self._functions.known} - {name}
                hint = guess(name, sorted(known))
                raise self._text.error(node, f"there is no function {node.name!r}{hint}")

    def is_aggregate(self, node: exp.Expr) -> bool:
        """Return whether an expression contains an aggregate of its own query."""
        inside = node.walk(prune=lambda each: isinstance(each, exp.Subquery | exp.Window))
        return any(
            self._calls.is_aggregate(each) or called(each) in ("grouping", "grouping_id")
            for each in inside
            if not isinstance(each, exp.Window)
        )


def own_nodes(node: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the nodes of an expression without those of queries inside it."""
    return node.walk(prune=lambda found: isinstance(found, exp.Subquery))


def filtered(relation: Relation, conditions: Iterable[exp.Expr]) -> Relation:
    """Return the rows that satisfy expressions."""
    found = tuple(conditions)
    return Filter(relation, found) if found else relation


#: functions that relations give a meaning to
_OWN_FUNCTIONS = frozenset(
    {"proctime", "row_number", "lag", "lead", "rank", "dense_rank", "nth_value", "descriptor"}
    | {"table", *ABSENT}
    | {f"{kind}_{edge}" for kind in ("tumble", "hop", "session") for edge in ("start", "end")}
    | {"tumble", "hop", "cumulate", "session", "window", "session_window"}
    | {"grouping", "grouping_id"}
)


def _processing_time(node: exp.Expr) -> exp.Expr:
    """Write PROCTIME() as Spark does."""
    if isinstance(node, exp.Anonymous) and node.name.lower() == "proctime":
        return exp.Anonymous(this="current_timestamp")
    return node
