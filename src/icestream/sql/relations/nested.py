"""Conditions with queries inside: IN, EXISTS and their negations are semi and anti joins.

Invariants:
1. NOT IN follows SQL's rules for NULL (`test_oracle_statements`).

Limits: only EXISTS may refer to outer rows, by conditions in its WHERE clause.
"""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from icestream.sql.relations.conditions import parts_of
from icestream.sql.relations.definitions import NamedRelation
from icestream.sql.relations.expressions import ExpressionReader, beside, filtered
from icestream.sql.relations.names import reference
from icestream.sql.relations.tree import Join, reads_only


class NestedReader(ExpressionReader):
    """Reads conditions on rows."""

    def rows_of(self, tree: exp.Select) -> NamedRelation:
        """Read FROM and its joins."""
        raise NotImplementedError

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
        if not isinstance(inner, exp.Select) or inner.args.get("group"):
            raise self._text.error(node, "EXISTS takes a SELECT without GROUP BY")
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
