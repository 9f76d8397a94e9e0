"""Queries inside of conditions and expressions.

Idea: IN, EXISTS and their negations are semi and anti joins where they are conditions of their own.
Elsewhere a query is rows beside those of the statement, found by the equalities with outer columns
in its WHERE clause, and a column of them takes its place: the value of an aggregate, or whether
there is such a row.

Invariants:
1. NOT IN follows SQL's rules for NULL (`test_oracle_statements`).
2. An aggregate that finds no rows is NULL, and a count is 0 (`test_oracle_statements`).

Limits: only EXISTS and IN as conditions of their own compare with outer rows by anything but
equality. IN has no value of its own, because it may be unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

from sqlglot import exp

from icestream.sql.relations.conditions import all_of, parts_of
from icestream.sql.relations.expressions import ExpressionReader, filtered, own_nodes
from icestream.sql.relations.names import ColumnScope, NamedRelation, is_known, reference
from icestream.sql.relations.tree import Conditions, Join, Relation, reads_only
from icestream.sql.statements.aggregates import called

#: reads an expression over the rows around a query
Reader = Callable[[exp.Expr], exp.Expr]


@dataclass(frozen=True)
class RowsBeside:
    """Rows that are joined so that an expression can read a nested query's answer."""

    relation: Relation
    kind: str = "inner"
    on: Conditions = ()


def beside(relation: Relation, rows: Iterable[RowsBeside]) -> Relation:
    """Join the rows of nested queries."""
    for each in rows:
        relation = Join(relation, each.relation, each.kind, each.on)
    return relation


class NestedReader(ExpressionReader):
    """Reads queries inside of conditions and expressions."""

    def where(self, query: NamedRelation, clause: exp.Expr | None) -> NamedRelation:
        """Keep the rows that satisfy a condition."""
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
        part, rows = self.without_nested(
            part, lambda node: self.row_expression(node, query.scope), is_condition=True
        )
        condition = self.row_expression(part, query.scope)
        relation = beside(query.relation, rows)
        return NamedRelation(filtered(relation, parts_of(condition)), query.scope)

    # -- conditions of their own -----------------------------------------------------------

    def _membership(self, query: NamedRelation, node: exp.In, *, negated: bool) -> NamedRelation:
        """Read IN and NOT IN over a query, of a value or of several in parentheses."""
        inner, place = node.args["query"].unnest(), self._text.place_of(node)
        kind = "anti" if negated else "semi"
        written = node.this.expressions if isinstance(node.this, exp.Tuple) else [node.this]
        values = [self.row_expression(each, query.scope) for each in written]
        if self._is_plain(inner) and len(inner.expressions) == len(values):
            inside, across = self._rows_across(query, inner)
            if across:
                chosen = (each.unalias() for each in inner.expressions)
                items = [self.row_expression(each, inside.scope) for each in chosen]
                matches = _matches(values, items, negated=negated)
                joined = Join(query.relation, inside.relation, kind, (*across, *matches), place)
                return NamedRelation(joined, query.scope)
        inside, columns = self._members(node, len(values))
        if len(values) > 1 or not negated:
            matches = _matches(values, columns, negated=negated)
            joined = Join(query.relation, inside.relation, kind, tuple(matches), place)
            return NamedRelation(joined, query.scope)
        # a NULL in the query leaves no row; a row with NULL stays only beside an empty query
        equal = _matches(values, columns, negated=False)
        joined = Join(query.relation, inside.relation, "anti", tuple(equal), place)
        nulls, others = self._members(node, 1)
        joined = Join(joined, filtered(nulls.relation, map(_is_null, others)), "anti", (), place)
        anything = self._members(node, 1)[0].relation
        unknown = tuple(map(_is_null, values))
        return NamedRelation(Join(joined, anything, "anti", unknown, place), query.scope)

    def _members(self, node: exp.Expr, count: int) -> tuple[NamedRelation, list[exp.Expr]]:
        """Return the rows of the query of IN, read once more, and its columns."""
        inside = self.inside().query(node.args["query"])
        if len(inside.names) != count:
            have = f"{count} columns" if count > 1 else "one column"
            message = f"the query of IN must have {have}, as there are values before IN"
            raise self._text.error(node, message)
        return inside, [reference(column) for _, column in inside.names]

    def _existence(self, query: NamedRelation, node: exp.Exists, *, negated: bool) -> NamedRelation:
        """Read EXISTS and NOT EXISTS; conditions with outer columns become the join's."""
        inside, across = self._rows_across(query, self._plain(node))
        kind, place = "anti" if negated else "semi", self._text.place_of(node)
        return NamedRelation(
            Join(query.relation, inside.relation, kind, tuple(across), place), query.scope
        )

    def _rows_across(
        self, query: NamedRelation, inner: exp.Select
    ) -> tuple[NamedRelation, list[exp.Expr]]:
        """Return the rows of a nested query, and its conditions on outer columns."""
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
        return inside, across

    def _plain(self, node: exp.Exists) -> exp.Select:
        inner = node.this.unnest() if isinstance(node.this, exp.Subquery) else node.this
        if not self._is_plain(inner):
            message = "EXISTS takes a SELECT without aggregates, GROUP BY, HAVING and LIMIT"
            raise self._text.error(node, message)
        return inner

    def _is_plain(self, inner: exp.Expr) -> TypeGuard[exp.Select]:
        return (
            isinstance(inner, exp.Select)
            and not any(inner.args.get(each) for each in ("group", "having", "limit"))
            and not any(self.is_aggregate(each) for each in inner.expressions)
        )

    # -- answers beside the rows -----------------------------------------------------------

    def without_nested(
        self, node: exp.Expr, read: Reader, *, is_condition: bool = False
    ) -> tuple[exp.Expr, list[RowsBeside]]:
        """Return an expression over the answers of its nested queries, and the rows of these.

        `read` reads what the queries say about outer rows.
        """
        node, rows = node.copy(), []
        while (found := _first_nested(node)) is not None:
            if isinstance(found, exp.In) and not (is_condition and _is_connected(found, node)):
                raise self._text.error(
                    found, "IN (SELECT ...) is a condition that AND and OR may connect with "
                    "others: here write EXISTS or NOT EXISTS",
                )  # fmt: skip
            scalar = isinstance(found, exp.Subquery)
            answer, made = (self._scalar if scalar else self._is_there)(found, read)
            rows.append(made)
            node = answer if found is node else node
            found.replace(answer)
        return node, rows

    def _scalar(self, node: exp.Expr, read: Reader) -> tuple[exp.Expr, RowsBeside]:
        """Read the value of a query that has one row."""
        inner = node.unnest()
        if not self._has_one_row(inner):
            raise self._text.error(
                node, "a query in an expression must have one column and one row: select an "
                "aggregate without GROUP BY",
            )  # fmt: skip
        plain, equal = self._outer_equalities(inner)
        item = plain.expressions[0].unalias()
        if not equal:
            value, made = self._rows_by(plain, [], read)
            return reference(value, node), replace(made, kind="inner")
        plain.set("group", exp.Group(expressions=[each.copy() for each, _ in equal]))
        value, made = self._rows_by(plain, equal, read)
        of_nothing = exp.If(this=_is_null(made.on[0].this), true=item.transform(self._of_nothing))
        return exp.Case(ifs=[of_nothing], default=reference(value, node)), made

    def _has_one_row(self, tree: exp.Expr) -> TypeGuard[exp.Select]:
        """Return whether a query has one value: of aggregates without groups."""
        return (
            isinstance(tree, exp.Select)
            and not tree.args.get("group")
            and not tree.args.get("having")
            and len(tree.expressions) == 1
            and self.is_aggregate(tree.expressions[0])
        )

    def _of_nothing(self, node: exp.Expr) -> exp.Expr:
        """Replace an aggregate by its value over no rows."""
        if not self._calls.is_aggregate(node):
            return node
        counts = (called(node) or "").removeprefix("approx_").startswith("count")
        return exp.Literal.number(0) if counts else exp.null()

    def _is_there(self, node: exp.Expr, read: Reader) -> tuple[exp.Expr, RowsBeside]:
        """Read whether a query has a row, or a value of IN."""
        if isinstance(node, exp.Exists):
            plain, equal = self._outer_equalities(self._plain(node))
            plain.set("expressions", [exp.Literal.number(1)])
        else:
            plain, equal = self._values(node)
            equal = [(plain.expressions[0].unalias(), node.this), *equal]
        plain.set("distinct", exp.Distinct())
        value, made = self._rows_by(plain, equal, read)
        return exp.not_(exp.paren(_is_null(reference(value, node)))), made

    def _values(self, node: exp.Expr) -> tuple[exp.Select, list[tuple[exp.Expr, exp.Expr]]]:
        """Return the query of IN without its equalities with outer columns, and these."""
        inner = node.args["query"].unnest()
        if self._is_plain(inner):
            return self._outer_equalities(inner)
        ((name, _),) = self._members(node, 1)[0].names
        column = exp.column(exp.to_identifier(name, quoted=True))
        return exp.select(column).from_(inner.copy().subquery("nested")), []

    def _outer_equalities(
        self, inner: exp.Select
    ) -> tuple[exp.Select, list[tuple[exp.Expr, exp.Expr]]]:
        """Return a query without its equalities with outer columns, and these: inner and outer."""
        scope = self.inside().rows_of(inner).scope
        plain, own, equal = inner.copy(), [], []
        for part in parts_of(inner.args.get("where")):
            if _is_about(part, scope):
                own.append(part)
                continue
            sides = (part.left, part.right) if isinstance(part, exp.EQ) else ()
            inside = [each for each in sides if _is_about(each, scope)]
            if len(inside) != 1:
                raise self._text.error(
                    part, "a query inside of an expression compares with outer rows by equality "
                    "alone: write an equality here, or EXISTS as a condition of its own",
                )  # fmt: skip
            equal.append((inside[0], next(each for each in sides if each is not inside[0])))
        plain.set("where", exp.Where(this=all_of(own)) if own else None)
        return plain, equal

    def _rows_by(
        self, plain: exp.Select, equal: list[tuple[exp.Expr, exp.Expr]], read: Reader
    ) -> tuple[str, RowsBeside]:
        """Return the column of a query's value, and its rows, found by equal columns."""
        value = exp.alias_(plain.expressions[0].unalias().copy(), "value")
        keys = [exp.alias_(each.copy(), f"key{place}") for place, (each, _) in enumerate(equal)]
        plain.set("expressions", [*keys, value])
        inside = self.inside().query(plain)
        *columns, answer = [column for _, column in inside.names]
        self._answers.update((*columns, answer))
        on = tuple(
            exp.EQ(this=reference(column), expression=read(outer))
            for column, (_, outer) in zip(columns, equal, strict=True)
        )
        return answer, RowsBeside(inside.relation, "left", on)


def _first_nested(node: exp.Expr) -> exp.Expr | None:
    """Return the outermost query in an expression, with IN or EXISTS before it."""
    for each in node.walk():
        if isinstance(each, exp.Subquery | exp.Exists):
            return each
        if isinstance(each, exp.In) and each.args.get("query") is not None:
            return each
    return None


def _is_connected(node: exp.Expr, condition: exp.Expr) -> bool:
    """Return whether only AND and OR are between an expression and the condition it is part of."""
    while node is not condition and isinstance(node.parent, exp.And | exp.Or | exp.Paren):
        node = node.parent
    return node is condition


def _is_about(node: exp.Expr, scope: ColumnScope) -> bool:
    """Return whether all columns of an expression are in a scope."""
    return all(is_known(each, scope) for each in own_nodes(node) if isinstance(each, exp.Column))


def _matches(
    values: Sequence[exp.Expr], items: Sequence[exp.Expr], *, negated: bool
) -> list[exp.Expr]:
    """Return when values equal items, or for NOT IN, when that is not false."""
    found: list[exp.Expr] = []
    for value, item in zip(values, items, strict=True):
        equal = exp.EQ(this=value, expression=item)
        found.append(exp.or_(equal, _is_null(value), _is_null(item)) if negated else equal)
    return found


def _is_null(node: exp.Expr) -> exp.Expr:
    return exp.Is(this=node.copy(), expression=exp.null())
