"""SELECT lists without aggregates: columns, functions over frames, ranks.

Idea: a SELECT list is a projection. Functions over frames are columns of a relation below it, and
ROW_NUMBER() is the rank of a top without a limit, until a condition around the query sets one.
Columns that ORDER BY or QUALIFY reads and SELECT does not return are hidden columns of the
projection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from sqlglot import exp

from icestream.core.text_errors import TextSpan
from icestream.sql.relations.group_by import GroupReader, SelectItem, windows_of
from icestream.sql.relations.names import (
    ColumnScope,
    NamedRelation,
    ScopedColumn,
    is_known,
    reference,
    resolved,
    unknown_column,
)
from icestream.sql.relations.nested import beside
from icestream.sql.relations.over_calls import of_numbered, read_over
from icestream.sql.relations.times import time_of
from icestream.sql.relations.tree import Grouped, Over, OverCall, Project, Relation, SortKey, Top
from icestream.sql.statements.aggregates import AggregateCall, called
from icestream.sql.statements.dialect import PLACE


class SelectReader(GroupReader):
    """Reads what a SELECT returns."""

    def items(
        self, tree: exp.Select, scope: ColumnScope, *, grouped: bool = False
    ) -> list[SelectItem]:
        """Return the SELECT list, with `*` written out."""
        items: list[SelectItem] = []
        for each in tree.expressions:
            node = each.unalias()
            place = TextSpan(*each.meta[PLACE]) if PLACE in each.meta else self._text.place_of(each)
            of_star = isinstance(node, exp.Column) and isinstance(node.this, exp.Star)
            if isinstance(node, exp.Star) or of_star:
                if grouped:
                    raise self._text.error(
                        place, "* is not a column of groups: name the keys and aggregates you want"
                    )
                table = node.table if of_star else None
                found = scope.stars(table)
                if not found:
                    raise unknown_column(node, scope, self._text)
                without = self._left_out(node.this if of_star else node, ColumnScope(tuple(found)))
                items += [
                    SelectItem(entry.name, reference(entry.column), place)
                    for entry in found
                    if entry.column not in without
                ]
                continue
            name = each.alias or scope.own_name(node) or self._text.slice(place)
            items.append(SelectItem(name, node, place, bool(each.alias)))
        return items

    def _left_out(self, star: exp.Expr, scope: ColumnScope) -> set[str]:
        """Return the columns that EXCEPT leaves out of `*`."""
        if star.args.get("replace") or star.args.get("rename"):
            raise self._text.error(star, "only EXCEPT may follow *: name the other columns")
        return {resolved(each, [scope], self._text).name for each in star.args.get("except_") or ()}

    def qualified(self, clause: exp.Expr, scope: ColumnScope, items: list[SelectItem]) -> exp.Expr:
        """Return the condition of QUALIFY over items, of which it adds those it needs."""
        names = {item.name.lower() for item in items if item.is_alias}

        def change(node: exp.Expr) -> exp.Expr:
            if not isinstance(node, exp.Window | exp.Column):
                return node
            of_select = node.sql().lower() in names
            if isinstance(node, exp.Column) and of_select and not is_known(node, scope):
                return node
            name = f"qualify {len(items)}"
            place = self._text.place_of(node)
            items.append(SelectItem(name, node.copy(), place, is_alias=False, is_hidden=True))
            return exp.column(exp.to_identifier(name, quoted=True))

        condition: exp.Expr = clause.this
        return condition.transform(change)

    def projected(
        self, query: NamedRelation, items: Sequence[SelectItem], tree: exp.Select
    ) -> NamedRelation:
        """Read a SELECT list without aggregates."""
        scope = query.scope
        made: dict[str, exp.Expr] = {}
        frames: dict[str, OverCall] = {}
        numbers: dict[str, OverCall] = {}
        entries: list[ScopedColumn] = []
        several = sum(item.node.find(exp.Window) is not None for item in items) > 1
        for item in items:
            column = self._numbers.new(item.name)
            is_number = isinstance(item.node, exp.Window) and called(item.node.this) == "row_number"
            if is_number and not (several and self._by_time(item.node, query)):
                ranked = self._ranked(query.relation, item, scope)
                query = replace(query, relation=ranked)
                made[column] = reference(ranked.columns[-1])
            else:
                node, rows = self.without_nested(
                    item.node, lambda outer: self.row_expression(outer, scope)
                )
                node = self._with_frames(node, scope, item.name, frames, numbers)
                made[column] = self.expression(node, scope)
                query = replace(query, relation=beside(query.relation, rows))
            entries.append(ScopedColumn(None, item.name, column, starred=not item.is_hidden))
        for name, node in self._order_columns(tree, scope, items).items():
            column = self._numbers.new(name)
            made[column] = node
            entries.append(ScopedColumn(None, name, column, starred=False))
        inner = Over(query.relation, numbers) if numbers else query.relation
        relation = Project(Over(inner, frames) if frames else inner, made)
        return NamedRelation(relation, ColumnScope(tuple(entries), windows_of(made, scope)))

    def _by_time(self, node: exp.Expr, query: NamedRelation) -> bool:
        """Return whether a function over a frame follows the time of the stream."""
        order = node.args.get("order")
        if order is None or len(order.expressions) != 1 or node.args.get("spec") is not None:
            return False
        (key,) = order.expressions
        by = self.expression(key.this, query.scope)
        return not key.args.get("desc") and by.name == time_of(query.relation)

    def _with_frames(
        self,
        node: exp.Expr,
        scope: ColumnScope,
        name: str,
        frames: dict[str, OverCall],
        numbers: dict[str, OverCall],
    ) -> exp.Expr:
        """Replace functions over frames by columns, which are added to `frames`.

        Numbers of rows that such functions read are added to `numbers`.
        """

        def change(each: exp.Expr) -> exp.Expr:
            if not isinstance(each, exp.Window):
                return each
            column = self._numbers.new(name)
            over = read_over(
                each, self._calls, self._text, lambda inner: self.expression(inner, scope)
            )

            def numbered(within: tuple[exp.Expr, ...]) -> str:
                number = self._numbers.new("number")
                call = AggregateCall("row_number", (), place=over.call.place)
                numbers[number] = OverCall(call, within, over.order, "rows", None)
                return number

            if over.call.function in ("dense_rank", "nth_value"):
                over = of_numbered(over, numbered, self._text)
            frames[column] = over
            return reference(column, each)

        return node.transform(change)

    def _order_columns(
        self, tree: exp.Select, scope: ColumnScope, items: Sequence[SelectItem]
    ) -> dict[str, exp.Expr]:
        """Return the columns that ORDER BY reads and SELECT does not return, by their text."""
        order = tree.args.get("order")
        selected = {item.name.lower() for item in items}
        columns = () if order is None else order.find_all(exp.Column)
        return {
            each.sql().lower(): resolved(each, [scope], self._text)
            for each in columns
            if each.sql().lower() not in selected
        }

    def _ranked(self, relation: Relation, item: SelectItem, scope: ColumnScope) -> Top:
        """Read ROW_NUMBER() OVER (PARTITION BY ... ORDER BY ...)."""
        node = item.node
        if node.args.get("spec") is not None:
            raise self._text.error(node, "ROW_NUMBER() has no frame: leave ROWS and RANGE out")
        order = node.args.get("order")
        if order is None:
            raise self._text.error(node, "ROW_NUMBER() needs ORDER BY")
        partition = tuple(self.expression(e, scope) for e in node.args.get("partition_by") or ())
        keys = _sort_keys(order, lambda each: self.expression(each, scope))
        rank = self._numbers.new(item.name)
        return Top(relation, None, partition, keys, rank, self._text.place_of(node))

    # -- DISTINCT, ORDER BY ... LIMIT ------------------------------------------------------

    def distinct(self, query: NamedRelation) -> NamedRelation:
        keys = {self._numbers.new(name): reference(column) for name, column in query.names}
        entries = tuple(
            ScopedColumn(None, name, column)
            for (name, _), column in zip(query.names, keys, strict=True)
        )
        scope = ColumnScope(entries, windows_of(keys, query.scope))
        return NamedRelation(Grouped(query.relation, keys, {}), scope)

    def limited(self, query: NamedRelation, tree: exp.Expr) -> NamedRelation:
        """Read ORDER BY ... LIMIT n."""
        order, limit = tree.args.get("order"), tree.args.get("limit")
        if order is None and limit is None:
            return query
        if limit is None or order is None:
            message = (
                "a stream is not sorted: write ORDER BY ... LIMIT n, or sort the result when you "
                "read it"
                if limit is None
                else "LIMIT needs ORDER BY, which says what comes first"
            )
            word = "ORDER" if limit is None else "LIMIT"
            raise self._text.error(self._text.keyword(word) or order or limit or tree, message)
        count = limit.expression
        plain = isinstance(count, exp.Literal) and str(count.this).isdecimal()
        if not plain or limit.args.get("limit_options"):
            raise self._text.error(limit, "LIMIT is followed by a number")
        scope = query.scope

        def read(node: exp.Expr) -> exp.Expr:
            if self.is_aggregate(node):
                raise self._text.error(node, "name the aggregate in SELECT, and order by that name")
            if isinstance(node, exp.Literal) and not node.is_string:
                return reference(query.names[self.position(node, len(query.names))][1], node)
            return node.transform(lambda each: self._order_column(each, scope))

        keys = _sort_keys(order, read)
        place = self._text.place_of(order)
        relation = Top(query.relation, int(str(count.this)), (), keys, None, place)
        return NamedRelation(relation, scope)

    def _order_column(self, node: exp.Expr, scope: ColumnScope) -> exp.Expr:
        """Return the column of the result that a name in ORDER BY means, or a hidden one."""
        if not isinstance(node, exp.Column):
            return node
        name = node.sql().lower()
        selected = [each for each in scope.entries if each.starred and each.name.lower() == name]
        hidden = [each for each in scope.entries if not each.starred and each.name == name]
        if not selected and not hidden:
            raise unknown_column(node, scope, self._text)
        return reference((selected or hidden)[0].column, node)


def _sort_keys(order: exp.Order, read: Callable[[exp.Expr], exp.Expr]) -> tuple[SortKey, ...]:
    return tuple(
        SortKey(read(each.this), bool(each.args.get("desc")), bool(each.args.get("nulls_first")))
        for each in order.expressions
    )
