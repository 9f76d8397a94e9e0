"""Expressions and conditions of statements: names, functions and nested queries.

Idea: an expression is checked and its names are resolved; a query inside it becomes a column of a
relation beside it, which has one row. IN, EXISTS and their negations are semi and anti joins.

Invariants:
1. NOT IN follows SQL's rules for NULL (`test_oracle_statements`).

Limits: only EXISTS may refer to outer rows, by conditions in its WHERE clause.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Self

from sqlglot import exp

from icestream.core.text_errors import guess
from icestream.sql.relations.conditions import parts_of
from icestream.sql.relations.definitions import Definitions, Functions, NamedRelation
from icestream.sql.relations.names import ColumnNumbers, ColumnScope, reference, resolved
from icestream.sql.relations.tree import Filter, Join, Relation, reads_only
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
        #: columns of scalar queries
        self._scalars: set[str] = set()
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
                hint = guess(name, (*NAMES, *self._functions.own, *self._functions.known))
                raise self._text.error(node, f"there is no function {node.name!r}{hint}")

    def is_aggregate(self, node: exp.Expr) -> bool:
        """Return whether an expression contains an aggregate of its own query."""
        inside = node.walk(prune=lambda each: isinstance(each, exp.Subquery | exp.Window))
        return any(
            self._calls.is_aggregate(each) or called(each) in ("grouping", "grouping_id")
            for each in inside
            if not isinstance(each, exp.Window)
        )

    def without_scalars(self, node: exp.Expr) -> tuple[exp.Expr, list[Relation]]:
        """Return an expression with columns for its scalar queries, and the rows of these."""
        node, rows = node.copy(), []
        while (found := node.find(exp.Subquery)) is not None:
            inside = self.inside().query(found.this)
            if len(inside.names) != 1 or not self._has_one_row(found.this):
                raise self._text.error(
                    found, "a query in an expression must have one column and one row: select an "
                    "aggregate without GROUP BY",
                )  # fmt: skip
            ((_, column),) = inside.names
            self._scalars.add(column)
            rows.append(inside.relation)
            new = reference(column, found)
            node = new if found is node else node
            found.replace(new)
        return node, rows

    def _has_one_row(self, tree: exp.Expr) -> bool:
        """Return whether a query has one row: aggregates without groups."""
        return (
            isinstance(tree, exp.Select)
            and not tree.args.get("group")
            and not tree.args.get("having")
            and any(self.is_aggregate(each) for each in tree.expressions)
        )

    # -- conditions ------------------------------------------------------------------------

    def where(self, query: NamedRelation, clause: exp.Where | None) -> NamedRelation:
        """Keep the rows that satisfy WHERE."""
        for part in parts_of(clause):
            query = self._condition(query, part)
        return query

    def _condition(self, query: NamedRelation, part: exp.Expr) -> NamedRelation:
        """Keep the rows that satisfy a part of a condition."""
        negated = isinstance(part, exp.Not)
        inner = part.this if negated else part
        while isinstance(inner, exp.Paren):
            inner = inner.this
        if isinstance(inner, exp.In) and inner.args.get("query") is not None:
            return self._membership(query, inner, negated=negated)
        if isinstance(inner, exp.Exists):
            return self._existence(query, inner, negated=negated)
        if part.find(exp.Exists) or any(each.args.get("query") for each in part.find_all(exp.In)):
            raise self._text.error(
                part, "IN (SELECT ...) and EXISTS must be conditions of their own, joined by AND"
            )
        part, rows = self.without_scalars(part)
        condition = self.row_expression(part, query.scope)
        relation = beside(query.relation, rows)
        return NamedRelation(filtered(relation, parts_of(condition)), query.scope)

    def _membership(self, query: NamedRelation, node: exp.In, *, negated: bool) -> NamedRelation:
        """Read IN and NOT IN over a query."""
        inside = self.inside().query(node.args["query"])
        if len(inside.names) != 1:
            raise self._text.error(node, "the query of IN must have one column")
        value = self.row_expression(node.this, query.scope)
        ((_, column),) = inside.names
        equal = exp.EQ(this=value, expression=reference(column))
        place = self._text.place_of(node)
        if not negated:
            joined = Join(query.relation, inside.relation, "semi", (equal,), place)
            return NamedRelation(joined, query.scope)
        joined = Join(query.relation, inside.relation, "anti", (equal,), place)
        # a NULL in the query leaves no row; a row with NULL stays only beside an empty query
        nulls = self.inside().query(node.args["query"])
        ((_, other),) = nulls.names
        only_nulls = filtered(
            nulls.relation, [exp.Is(this=reference(other), expression=exp.null())]
        )
        joined = Join(joined, only_nulls, "anti", (), place)
        anything = self.inside().query(node.args["query"]).relation
        of_null = exp.Is(this=value.copy(), expression=exp.null())
        return NamedRelation(Join(joined, anything, "anti", (of_null,), place), query.scope)

    def _existence(self, query: NamedRelation, node: exp.Exists, *, negated: bool) -> NamedRelation:
        """Read EXISTS and NOT EXISTS; conditions with outer columns become the join's."""
        inner = node.this.unnest() if isinstance(node.this, exp.Subquery) else node.this
        if (
            not isinstance(inner, exp.Select)
            or any(inner.args.get(each) for each in ("group", "having", "limit"))
            or any(self.is_aggregate(each) for each in inner.expressions)
        ):
            message = "EXISTS takes a SELECT without aggregates, GROUP BY, HAVING and LIMIT"
            raise self._text.error(node, message)
        reader = self.inside()
        inside = reader.rows_of(inner)
        across = []
        for each in parts_of(inner.args.get("where")):
            if each.find(exp.Query):
                inside = reader._condition(inside, each)
                continue
            condition = self.row_expression(each, inside.scope, query.scope)
            if reads_only(inside.relation.columns, condition):
                inside = replace(inside, relation=filtered(inside.relation, [condition]))
            else:
                across.append(condition)
        kind = "anti" if negated else "semi"
        place = self._text.place_of(node)
        return NamedRelation(
            Join(query.relation, inside.relation, kind, tuple(across), place), query.scope
        )


def own_nodes(node: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the nodes of an expression without those of queries inside it."""
    return node.walk(prune=lambda found: isinstance(found, exp.Subquery))


def beside(relation: Relation, rows: Iterable[Relation]) -> Relation:
    """Join the rows of scalar queries."""
    for each in rows:
        relation = Join(relation, each, "inner", ())
    return relation


def filtered(relation: Relation, conditions: Iterable[exp.Expr]) -> Relation:
    """Return the rows that satisfy conditions."""
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
