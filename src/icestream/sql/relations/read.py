"""From the syntax of a statement to relations.

Idea: each clause wraps the relation so far, in SQL's order: FROM and JOIN, WHERE, GROUP BY with its
aggregates, HAVING, SELECT, DISTINCT, ORDER BY with LIMIT. A nested query is read where it stands:
in FROM it is a relation; IN, EXISTS and their negations are semi and anti joins; a scalar query is
a join with its one row.

Invariants:
1. NOT IN follows SQL's rules for NULL (`test_oracle_statements`).
2. Unsupported syntax is refused at its place, with what to write instead
   (`test_what_relations_cannot_express_is_refused`).

Limits: only EXISTS may refer to outer rows, by equalities in its WHERE clause. An aggregate
without GROUP BY has no row before the first row of its input.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

from icestream.core.errors import DefinitionError
from icestream.core.text_errors import guess
from icestream.sql.relations.conditions import parts_of
from icestream.sql.relations.frames import read_over
from icestream.sql.relations.names import (
    ColumnNumbers,
    ColumnScope,
    ScopedColumn,
    is_resolved,
    reference,
    resolved,
    unknown_column,
)
from icestream.sql.relations.tree import (
    Filter,
    Grouped,
    Join,
    Over,
    OverCall,
    Project,
    Relation,
    Scan,
    SortKey,
    TimeWindow,
    Top,
    UnionAll,
    WindowTable,
    reads_only,
)
from icestream.sql.relations.window_calls import read_window, window_call
from icestream.sql.statements.aggregates import ABSENT, AggregateCall, CallReader, called
from icestream.sql.statements.dialect import written
from icestream.sql.statements.tokens import Text

_REFUSED: dict[str, str] = {
    "hint": "hints have no effect here: remove them",
    "laterals": "LATERAL is not supported: explode in Spark, before ice.stream",
    "qualify": "QUALIFY is not supported: write the query in FROM (...) and its condition in WHERE",
    "windows": "WINDOW is not supported: write OVER (...) where it is used",
    "sort": "a stream is not sorted: leave SORT BY out, or write ORDER BY ... LIMIT n",
    "cluster": "CLUSTER BY is not supported: use writeStream.partitionBy(...)",
    "distribute": "DISTRIBUTE BY is not supported: use writeStream.partitionBy(...)",
    "offset": "OFFSET is not supported: write ROW_NUMBER() and a condition on it",
}


@dataclass(frozen=True)
class SourceTable:
    """A stream or a static table that the user passed."""

    name: str
    columns: tuple[str, ...]
    #: column of the event time; None for a static table
    time: str | None


@dataclass(frozen=True)
class ViewText:
    """A query that was given a name, with the names it sees."""

    tree: exp.Expr
    text: Text
    names: Mapping[str, SourceTable | ViewText]


Definitions = Mapping[str, SourceTable | ViewText]


@dataclass(frozen=True)
class Functions:
    """The functions that a statement may call."""

    #: lower-case names of the user's own aggregates
    own: frozenset[str] = frozenset()
    #: well-known functions of Spark, for suggestions
    known: Collection[str] = ()
    #: returns whether Spark has a function
    exists: Callable[[str], bool] = field(default=lambda name: True)


@dataclass(frozen=True)
class NamedRelation:
    """A relation and the names of its columns."""

    relation: Relation
    scope: ColumnScope

    @property
    def names(self) -> list[tuple[str, str]]:
        """Return the names that the user sees, and the columns."""
        return [(each.name, each.column) for each in self.scope.entries if each.starred]


def read_query(
    tree: exp.Expr, text: Text, definitions: Definitions, functions: Functions
) -> NamedRelation:
    """Return the relation that a query describes."""
    query = _Reader(text, definitions, functions, ColumnNumbers()).query(tree)
    names = [name.lower() for name, _ in query.names]
    twice = next((name for name, _ in query.names if names.count(name.lower()) > 1), None)
    if twice is not None:
        raise text.error(
            text.place, f"the result has several columns called {twice!r}: rename them with AS"
        )
    return query


@dataclass(frozen=True)
class _Item:
    """One element of a SELECT list."""

    name: str
    node: exp.Expr


class _Reader:
    """Reads one statement."""

    def __init__(
        self,
        text: Text,
        definitions: Definitions,
        functions: Functions,
        numbers: ColumnNumbers,
    ) -> None:
        self._text = text
        self._definitions = dict(definitions)
        self._functions = functions
        self._numbers = numbers
        #: columns of scalar queries
        self._scalars: set[str] = set()
        self._calls = CallReader(text, functions.own, written)

    def query(self, tree: exp.Expr) -> NamedRelation:
        """Read a SELECT, a UNION, or one of them in parentheses."""
        while isinstance(tree, exp.Subquery | exp.Paren):
            self._define(tree)
            tree = tree.this
        self._define(tree)
        match tree:
            case exp.Select():
                return self._select(tree)
            case exp.Union():
                return self._union(tree)
            case exp.SetOperation():
                raise self._text.error(
                    self._text.keyword("INTERSECT", "EXCEPT", "MINUS") or tree,
                    "INTERSECT and EXCEPT are not supported: write WHERE ... IN (SELECT ...) or "
                    "NOT IN (SELECT ...)",
                )
        raise self._text.error(tree, "a query must be a SELECT")

    def _define(self, tree: exp.Expr) -> None:
        """Add the names of WITH."""
        clause = tree.args.get("with_") or tree.args.get("with")
        if clause is None:
            return
        if clause.args.get("recursive"):
            raise self._text.error(clause, "WITH RECURSIVE is not supported")
        for each in clause.expressions:
            known = dict(self._definitions)
            self._definitions[each.alias.lower()] = ViewText(each.this, self._text, known)

    def _inside(self) -> _Reader:
        """Return a reader for a query inside this one."""
        return _Reader(self._text, self._definitions, self._functions, self._numbers)

    # -- FROM ------------------------------------------------------------------------------

    def _select(self, tree: exp.Select) -> NamedRelation:
        for argument, message in _REFUSED.items():
            found = tree.args.get(argument)
            if found:
                first = found[0] if isinstance(found, list) else found
                raise self._text.error(first, message)
        query = self._rows(tree)
        query = self._where(query, tree.args.get("where"))
        items = self._items(tree, query.scope)
        group = tree.args.get("group")
        aggregates = any(self._is_aggregate(item.node) for item in items)
        if group is not None or aggregates or tree.args.get("having"):
            query = self._grouped(query, tree, items)
        else:
            query = self._projected(query, items, tree)
        if tree.args.get("distinct"):
            query = self._distinct(query)
        return self._limited(query, tree)

    def _rows(self, tree: exp.Select) -> NamedRelation:
        """Read FROM and its joins."""
        clause = tree.args.get("from_") or tree.args.get("from")
        if clause is None:
            raise self._text.error(tree, "the query reads nothing: add FROM and a name")
        query = self._source(clause.this)
        for each in tree.args.get("joins") or ():
            query = self._join(query, each)
        return query

    def _source(self, node: exp.Expr) -> NamedRelation:
        """Read an element of FROM."""
        alias = node.alias or None
        if isinstance(node, exp.Subquery):
            inner = node.this
            if isinstance(inner, exp.Table):
                return self._called(self._source(inner), alias)
            query = self._inside().query(node)
            return self._called(query, alias or "")
        if not isinstance(node, exp.Table):
            raise self._text.error(
                node, "FROM is followed by a name, a query in parentheses, or a window"
            )
        for argument in ("sample", "pivots", "laterals"):
            if node.args.get(argument):
                raise self._text.error(node, "only an alias may follow the name of a table")
        if isinstance(node.this, exp.Identifier):
            return self._called(self._named(node), alias or node.name)
        return self._windowed(node.this, alias)

    def _called(self, query: NamedRelation, alias: str | None) -> NamedRelation:
        return NamedRelation(query.relation, query.scope.called(alias))

    def _named(self, node: exp.Table) -> NamedRelation:
        """Read a source, a view or a query of WITH."""
        name = node.name
        found = self._definitions.get(name.lower()) if not node.args.get("db") else None
        if found is None:
            known = sorted(self._definitions)
            hint = guess(name, known) or "."
            given = f"Given: {known}" if known else f"Pass it: ice.sql(text, {name}=stream)"
            raise self._text.error(node.this, f"there is no table {name!r}{hint} {given}")
        if isinstance(found, ViewText):
            inside = _Reader(found.text, found.names, self._functions, self._numbers)
            return inside.query(found.tree)
        if node.args.get("version") is not None and found.time is not None:
            raise self._text.error(
                node.this,
                "FOR SYSTEM_TIME AS OF needs a static table: join streams by conditions on their "
                "times",
            )
        named = {each: self._numbers.new(each) for each in found.columns}
        entries = tuple(ScopedColumn(None, each, column) for each, column in named.items())
        time = None if found.time is None else named[found.time]
        return NamedRelation(Scan(found.name, named, time), ColumnScope(entries))

    def _windowed(self, node: exp.Expr, alias: str | None) -> NamedRelation:
        """Read TUMBLE, HOP, CUMULATE or SESSION in FROM."""
        if called(node) == "table" and len(node.expressions) == 1:
            node = node.expressions[0]
        if (window := window_call(node)) is None:
            raise self._text.error(
                node,
                "this is no table: write TABLE(TUMBLE(TABLE t, DESCRIPTOR(time), INTERVAL ...))",
            )
        table, descriptor, *_ = [*node.expressions, exp.null(), exp.null()]
        if not isinstance(table, exp.Column) or called(descriptor) != "descriptor":
            raise self._text.error(
                node, f"{window} is called like {window}(TABLE t, DESCRIPTOR(time), INTERVAL '10' "
                "SECOND)",
            )  # fmt: skip
        of = table.name
        query = self._called(self._named(_table(table)), of)
        time = resolved(descriptor.expressions[0], [query.scope], self._text)
        kind = read_window(node, node.expressions[2:], self._text)
        return self._called(self._with_window(query, kind, time, node), alias or of)

    def _with_window(
        self, query: NamedRelation, window: TimeWindow, time: exp.Expr, node: exp.Expr
    ) -> NamedRelation:
        """Add the columns of a window."""
        if not isinstance(time, exp.Column):
            raise self._text.error(node, "a window needs the column of the event time")
        start, end = self._numbers.new("window_start"), self._numbers.new("window_end")
        relation = WindowTable(
            query.relation, window, time.name, start, end, self._text.place_of(node)
        )
        entries = (
            ScopedColumn(None, "window_start", start),
            ScopedColumn(None, "window_end", end),
            *(
                ScopedColumn(of, name, column, starred=False)
                for of in ("window", "session_window")
                for name, column in (("start", start), ("end", end))
            ),
        )
        scope = query.scope.and_(ColumnScope(entries, ((start, end),)))
        return NamedRelation(relation, scope)

    def _join(self, left: NamedRelation, node: exp.Join) -> NamedRelation:
        if node.args.get("method"):
            raise self._text.error(node, f"{node.args['method']} JOIN is not supported: write ON")
        right = self._source(node.this)
        side, kind = (node.side or "").upper(), (node.kind or "").upper()
        sort = kind.lower() if kind in ("SEMI", "ANTI") else side.lower() or "inner"
        if sort == "right":
            left, right, sort = right, left, "left"
        both = left.scope.and_(right.scope)
        on = parts_of(self._expression(node.args["on"], both)) if node.args.get("on") else []
        for name in node.args.get("using") or ():
            column = exp.Column(this=name.copy())
            sides = [resolved(column, [each.scope], self._text) for each in (left, right)]
            on.append(exp.EQ(this=sides[0], expression=sides[1]))
            hidden = sides[1].name
            both = replace(both, entries=tuple(e for e in both.entries if e.column != hidden))
        relation = Join(left.relation, right.relation, sort, tuple(on), self._text.place_of(node))
        return NamedRelation(relation, left.scope if sort in ("semi", "anti") else both)

    # -- WHERE -----------------------------------------------------------------------------

    def _where(self, query: NamedRelation, clause: exp.Where | None) -> NamedRelation:
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
        self._check_event_expression(part)
        part, rows = self._without_scalars(part)
        condition = self._expression(part, query.scope)
        relation = _beside(query.relation, rows)
        return NamedRelation(_filtered(relation, parts_of(condition)), query.scope)

    def _membership(self, query: NamedRelation, node: exp.In, *, negated: bool) -> NamedRelation:
        """Read IN and NOT IN over a query."""
        inside = self._inside().query(node.args["query"])
        if len(inside.names) != 1:
            raise self._text.error(node, "the query of IN must have one column")
        value = self._expression(node.this, query.scope)
        ((_, column),) = inside.names
        equal = exp.EQ(this=value, expression=reference(column))
        place = self._text.place_of(node)
        if not negated:
            joined = Join(query.relation, inside.relation, "semi", (equal,), place)
            return NamedRelation(joined, query.scope)
        joined = Join(query.relation, inside.relation, "anti", (equal,), place)
        # a NULL in the query leaves no row; a row with NULL stays only beside an empty query
        nulls = self._inside().query(node.args["query"])
        ((_, other),) = nulls.names
        only_nulls = _filtered(
            nulls.relation, [exp.Is(this=reference(other), expression=exp.null())]
        )
        joined = Join(joined, only_nulls, "anti", (), place)
        anything = self._inside().query(node.args["query"]).relation
        of_null = exp.Is(this=value.copy(), expression=exp.null())
        return NamedRelation(Join(joined, anything, "anti", (of_null,), place), query.scope)

    def _existence(self, query: NamedRelation, node: exp.Exists, *, negated: bool) -> NamedRelation:
        """Read EXISTS and NOT EXISTS; equalities with outer columns become the join's."""
        inner = node.this.unnest() if isinstance(node.this, exp.Subquery) else node.this
        if not isinstance(inner, exp.Select) or inner.args.get("group"):
            raise self._text.error(node, "EXISTS takes a SELECT without GROUP BY")
        reader = self._inside()
        inside = reader._rows(inner)
        across = []
        for each in parts_of(inner.args.get("where")):
            if each.find(exp.Query):
                inside = reader._condition(inside, each)
                continue
            condition = self._expression(each, inside.scope, query.scope)
            if reads_only(inside.relation.columns, condition):
                inside = replace(inside, relation=_filtered(inside.relation, [condition]))
            else:
                across.append(condition)
        kind = "anti" if negated else "semi"
        place = self._text.place_of(node)
        return NamedRelation(
            Join(query.relation, inside.relation, kind, tuple(across), place), query.scope
        )

    def _without_scalars(self, node: exp.Expr) -> tuple[exp.Expr, list[Relation]]:
        """Return an expression with columns for its scalar queries, and the rows of these."""
        node, rows = node.copy(), []
        while (found := node.find(exp.Subquery)) is not None:
            inside = self._inside().query(found.this)
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
            and any(self._is_aggregate(each) for each in tree.expressions)
        )

    # -- expressions -----------------------------------------------------------------------

    def _expression(self, node: exp.Expr, *scopes: ColumnScope) -> exp.Expr:
        """Return an expression over columns."""
        for each in node.walk(prune=lambda found: isinstance(found, exp.Subquery)):
            self._check_form(each)
        found = resolved(node, scopes, self._text)
        return found.transform(_processing_time)

    def _check_form(self, node: exp.Expr) -> None:
        if isinstance(node, exp.Anonymous) and not isinstance(node.parent, exp.Dot):
            name = node.name.lower()
            is_own = self._calls.is_aggregate(node) or name in _OWN_FUNCTIONS
            if not is_own and not self._functions.exists(name):
                hint = guess(name, self._functions.known)
                raise self._text.error(node, f"there is no function {node.name!r}{hint}")

    def _check_event_expression(self, node: exp.Expr) -> None:
        """Refuse aggregates and ranks where rows are filtered one by one."""
        for each in node.walk(prune=lambda found: isinstance(found, exp.Subquery)):
            if isinstance(each, exp.Window):
                raise self._text.error(
                    each, "a condition on ROW_NUMBER() goes around the query that computes it: "
                    "SELECT ... FROM (SELECT *, ROW_NUMBER() OVER (...) AS n ...) WHERE n <= 10",
                )  # fmt: skip
            if self._calls.is_aggregate(each):
                raise self._text.error(
                    each, f"{called(each)} is an aggregate: conditions on it go into HAVING"
                )

    def _is_aggregate(self, node: exp.Expr) -> bool:
        """Return whether an expression contains an aggregate of its own query."""
        inside = node.walk(prune=lambda each: isinstance(each, exp.Subquery | exp.Window))
        return any(
            self._calls.is_aggregate(each) for each in inside if not isinstance(each, exp.Window)
        )

    def _items(self, tree: exp.Select, scope: ColumnScope) -> list[_Item]:
        """Return the SELECT list, with `*` written out."""
        items: list[_Item] = []
        for each in tree.expressions:
            node = each.unalias()
            of_star = isinstance(node, exp.Column) and isinstance(node.this, exp.Star)
            if isinstance(node, exp.Star) or of_star:
                table = node.table if of_star else None
                found = scope.stars(table)
                if not found:
                    raise unknown_column(node, scope, self._text)
                items += [_Item(entry.name, reference(entry.column)) for entry in found]
                continue
            items.append(_Item(each.alias or _own_name(node) or self._text_of(node), node))
        return items

    def _text_of(self, node: exp.Expr) -> str:
        return written(node)

    # -- SELECT ----------------------------------------------------------------------------

    def _projected(
        self, query: NamedRelation, items: Sequence[_Item], tree: exp.Select
    ) -> NamedRelation:
        """Read a SELECT list without aggregates."""
        scope = query.scope
        made: dict[str, exp.Expr] = {}
        frames: dict[str, OverCall] = {}
        entries: list[ScopedColumn] = []
        for item in items:
            column = self._numbers.new(item.name)
            if isinstance(item.node, exp.Window) and called(item.node.this) == "row_number":
                query = NamedRelation(
                    self._ranked(query.relation, item, column, scope), query.scope
                )
                made[column] = reference(self._rank_of(query.relation))
            else:
                node, rows = self._without_scalars(item.node)
                node = self._with_frames(node, scope, item.name, frames)
                made[column] = self._expression(node, scope)
                query = replace(query, relation=_beside(query.relation, rows))
            entries.append(ScopedColumn(None, item.name, column))
        for name, node in self._order_columns(tree, scope, items).items():
            column = self._numbers.new(name)
            made[column] = node
            entries.append(ScopedColumn(None, name, column, starred=False))
        inner = Over(query.relation, frames) if frames else query.relation
        relation = Project(inner, made)
        return NamedRelation(relation, ColumnScope(tuple(entries), _windows_of(made, scope)))

    def _with_frames(
        self, node: exp.Expr, scope: ColumnScope, name: str, frames: dict[str, OverCall]
    ) -> exp.Expr:
        """Replace functions over frames by columns, which are added to `frames`."""

        def change(each: exp.Expr) -> exp.Expr:
            if not isinstance(each, exp.Window):
                return each
            column = self._numbers.new(name)
            frames[column] = read_over(
                each, self._calls, self._text, lambda inner: self._expression(inner, scope)
            )
            return reference(column, each)

        return node.transform(change)

    def _order_columns(
        self, tree: exp.Select, scope: ColumnScope, items: Sequence[_Item]
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

    def _ranked(self, relation: Relation, item: _Item, column: str, scope: ColumnScope) -> Top:
        """Read ROW_NUMBER() OVER (PARTITION BY ... ORDER BY ...)."""
        node = item.node
        if node.args.get("spec") is not None:
            raise self._text.error(node, "ROW_NUMBER() has no frame: leave ROWS and RANGE out")
        order = node.args.get("order")
        if order is None:
            raise self._text.error(node, "ROW_NUMBER() needs ORDER BY")
        self._check_form(node)
        partition = tuple(self._expression(e, scope) for e in node.args.get("partition_by") or ())
        keys = self._sort_keys(order, lambda each: self._expression(each, scope))
        rank = self._numbers.new(item.name)
        return Top(relation, None, partition, keys, rank, self._text.place_of(node))

    def _rank_of(self, relation: Relation) -> str:
        return relation.columns[-1]

    def _sort_keys(
        self, order: exp.Order, read: Callable[[exp.Expr], exp.Expr]
    ) -> tuple[SortKey, ...]:
        return tuple(
            SortKey(
                read(each.this), bool(each.args.get("desc")), bool(each.args.get("nulls_first"))
            )
            for each in order.expressions
        )

    def _distinct(self, query: NamedRelation) -> NamedRelation:
        """Group by all columns."""
        keys = {self._numbers.new(name): reference(column) for name, column in query.names}
        entries = tuple(
            ScopedColumn(None, name, column)
            for (name, _), column in zip(query.names, keys, strict=True)
        )
        scope = ColumnScope(entries, _windows_of(keys, query.scope))
        return NamedRelation(Grouped(query.relation, keys, {}), scope)

    def _limited(self, query: NamedRelation, tree: exp.Expr) -> NamedRelation:
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
            raise self._text.error(order or limit or tree, message)
        count = limit.expression
        if not (isinstance(count, exp.Literal) and str(count.this).isdecimal()):
            raise self._text.error(limit, "LIMIT is followed by a number")
        scope = query.scope

        def read(node: exp.Expr) -> exp.Expr:
            return node.transform(lambda each: self._order_column(each, scope))

        keys = self._sort_keys(order, read)
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

    # -- GROUP BY --------------------------------------------------------------------------

    def _grouped(
        self, query: NamedRelation, tree: exp.Select, items: Sequence[_Item]
    ) -> NamedRelation:
        """Read GROUP BY, aggregates and HAVING."""
        query, nodes = self._group_nodes(query, tree.args.get("group"), items)
        scope = query.scope
        grouping = _Grouping(self._numbers)
        for node in nodes:
            grouping.key(node, _own_name(node) or "key")
        for start, end in scope.windows:
            held = {written(each) for each in nodes}
            if start in held or end in held:
                grouping.key(reference(start), "window_start")
                grouping.key(reference(end), "window_end")
        made: dict[str, exp.Expr] = {}
        aliases: dict[str, exp.Expr] = {}
        scalars: list[Relation] = []
        for item in items:
            node, rows = self._without_scalars(item.node)
            scalars += rows
            column = self._numbers.new(item.name)
            made[column] = aliases[item.name.lower()] = self._over_groups(node, scope, grouping)
        having = []
        for each in parts_of(tree.args.get("having")):
            node, rows = self._without_scalars(each)
            scalars += rows
            having += parts_of(self._over_groups(node, scope, grouping, aliases))
        groups = Grouped(query.relation, grouping.keys, grouping.calls)
        relation = _filtered(_beside(groups, scalars), having)
        entries = tuple(
            ScopedColumn(None, item.name, column) for item, column in zip(items, made, strict=True)
        )
        windows = _windows_of(made, scope, grouping.keys)
        return NamedRelation(Project(relation, made), ColumnScope(entries, windows))

    def _group_nodes(
        self, query: NamedRelation, group: exp.Group | None, items: Sequence[_Item]
    ) -> tuple[NamedRelation, list[exp.Expr]]:
        """Return the expressions to group by; a window among them is added to the input."""
        if group is None:
            return query, []
        sets = exp.Cube | exp.Rollup | exp.GroupingSets
        for argument in ("grouping_sets", "rollup", "cube", "all", "totals"):
            if group.args.get(argument) or any(isinstance(e, sets) for e in group.expressions):
                raise self._text.error(
                    group, "GROUPING SETS, ROLLUP, CUBE and ALL need a stream with a window in "
                    "brackets: FROM s [RANGE 1 HOUR SLIDE 1 MINUTE]",
                )  # fmt: skip
        nodes = [self._meant(each, query.scope, items) for each in group.expressions]
        found: list[exp.Expr] = []
        for node in nodes:
            if window_call(node) is None:
                found.append(self._expression(node, query.scope))
                continue
            time = resolved(node.expressions[0], [query.scope], self._text)
            kind = read_window(node, node.expressions[1:], self._text)
            query = self._with_window(query, kind, time, node)
            start, end = query.scope.windows[-1]
            found += [reference(start), reference(end)]
        return query, found

    def _meant(self, node: exp.Expr, scope: ColumnScope, items: Sequence[_Item]) -> exp.Expr:
        """Return the expression that an element of GROUP BY stands for."""
        if isinstance(node, exp.Literal) and not node.is_string:
            place = int(node.this) if str(node.this).isdecimal() else 0
            if not 1 <= place <= len(items):
                raise self._text.error(
                    node, f"there is no column at {place}: SELECT has {len(items)}"
                )
            return items[place - 1].node
        if isinstance(node, exp.Column) and not scope.find([p.name for p in node.parts])[0]:
            for item in items:
                if item.name.lower() == node.name.lower() and len(node.parts) == 1:
                    return item.node
        return node

    def _over_groups(
        self,
        node: exp.Expr,
        scope: ColumnScope,
        grouping: _Grouping,
        aliases: Mapping[str, exp.Expr] | None = None,
    ) -> exp.Expr:
        """Return an expression over keys and aggregates."""

        def change(each: exp.Expr) -> exp.Expr:
            if isinstance(each, exp.Literal) or each.name in self._scalars:
                return each
            if isinstance(each, exp.Window):
                raise self._text.error(each, "number groups in a query around this one")
            edge = _window_edge(each, scope)
            if edge is not None:
                return reference(grouping.held(reference(edge)) or edge, each)
            if self._calls.is_aggregate(each):
                inner = self._expression(each, scope)
                return reference(grouping.call(self._calls.read(inner), each), each)
            column = each if isinstance(each, exp.Column) else None
            known = (
                column is None
                or is_resolved(column)
                or scope.find([part.name for part in column.parts])[0]
            )
            if column and not known and aliases and each.name.lower() in aliases:
                return exp.paren(aliases[each.name.lower()].copy())
            if column and each.name == "window" and not known and scope.windows:
                start, end = (grouping.held(reference(e)) for e in scope.windows[-1])
                return exp.Anonymous(
                    this="named_struct",
                    expressions=[
                        exp.Literal.string("start"), reference(str(start)),
                        exp.Literal.string("end"), reference(str(end)),
                    ],
                )  # fmt: skip
            inner = self._expression(each, scope) if known else each
            key = grouping.held(inner)
            if key is not None:
                return reference(key, each)
            if column:
                if not known:
                    raise unknown_column(column, scope, self._text)
                raise self._text.error(
                    each, f"{each.name!r} has many values in a group: add it to GROUP BY, or "
                    f"aggregate it, for example max({each.name})",
                )  # fmt: skip
            return each

        for each in node.walk(prune=lambda found: isinstance(found, exp.Subquery)):
            self._check_form(each)
        return node.transform(change)

    # -- UNION -----------------------------------------------------------------------------

    def _union(self, tree: exp.Union) -> NamedRelation:
        parts = [self._inside().query(each) for each in (tree.this, tree.expression)]
        lengths = [len(part.names) for part in parts]
        if len(set(lengths)) > 1:
            raise self._text.error(
                self._text.keyword("UNION") or tree,
                f"the queries of a UNION have {lengths} columns",
            )
        names = [name for name, _ in parts[0].names]
        columns = tuple(self._numbers.new(name) for name in names)
        aligned = tuple(
            Project(part.relation, {self._numbers.new(n): reference(c) for n, c in part.names})
            for part in parts
        )
        entries = tuple(ScopedColumn(None, n, c) for n, c in zip(names, columns, strict=True))
        query = NamedRelation(UnionAll(aligned, columns), ColumnScope(entries))
        if tree.args.get("distinct"):
            query = self._distinct(query)
        return self._limited(query, tree)


class _Grouping:
    """Keys and aggregates of one GROUP BY, each once."""

    def __init__(self, numbers: ColumnNumbers) -> None:
        self._numbers = numbers
        self.keys: dict[str, exp.Expr] = {}
        self.calls: dict[str, AggregateCall] = {}
        self._texts: dict[str, str] = {}

    def key(self, node: exp.Expr, name: str) -> None:
        text = written(node)
        if text not in self._texts:
            column = self._numbers.new(name)
            self._texts[text] = column
            self.keys[column] = node

    def held(self, node: exp.Expr) -> str | None:
        """Return the column of a key."""
        return self._texts.get(written(node))

    def call(self, call: AggregateCall, node: exp.Expr) -> str:
        for column, other in self.calls.items():
            if call == other:
                return column
        column = self._numbers.new(called(node) or "aggregate")
        self.calls[column] = call
        return column


#: functions that relations give a meaning to
_OWN_FUNCTIONS = frozenset(
    {"proctime", "row_number", "lag", "lead", "rank", "descriptor", "table", *ABSENT}
    | {f"{kind}_{edge}" for kind in ("tumble", "hop", "session") for edge in ("start", "end")}
    | {"tumble", "hop", "cumulate", "session", "window", "session_window"}
)


def _processing_time(node: exp.Expr) -> exp.Expr:
    """Write PROCTIME() as Spark does."""
    if isinstance(node, exp.Anonymous) and node.name.lower() == "proctime":
        return exp.Anonymous(this="current_timestamp")
    return node


def _window_edge(node: exp.Expr, scope: ColumnScope) -> str | None:
    """Return the column that TUMBLE_START(...) and its like stand for."""
    name = called(node) or ""
    kind, _, edge = name.rpartition("_")
    if (
        kind not in ("tumble", "hop", "session")
        or edge not in ("start", "end")
        or not scope.windows
    ):
        return None
    return scope.windows[-1][edge == "end"]


def _windows_of(
    items: Mapping[str, exp.Expr], scope: ColumnScope, keys: Mapping[str, exp.Expr] | None = None
) -> tuple[tuple[str, str], ...]:
    """Return the windows whose start and end are among some items."""
    source = {column: written(node) for column, node in (keys or {}).items()}
    held = {source.get(written(node), written(node)): column for column, node in items.items()}
    return tuple(
        (held[start], held[end]) for start, end in scope.windows if start in held and end in held
    )


def _beside(relation: Relation, rows: Iterable[Relation]) -> Relation:
    """Join the rows of scalar queries."""
    for each in rows:
        relation = Join(relation, each, "inner", ())
    return relation


def _filtered(relation: Relation, conditions: Iterable[exp.Expr]) -> Relation:
    found = tuple(conditions)
    return Filter(relation, found) if found else relation


def _own_name(node: exp.Expr) -> str:
    """Return the name of a column or of a field; empty for other expressions."""
    if isinstance(node, exp.Dot):
        return str(node.expression.name)
    return str(node.parts[-1].name) if isinstance(node, exp.Column) else ""


def _table(column: exp.Column) -> exp.Table:
    """Return the table that an argument of a window names."""
    return exp.Table(this=column.this.copy())


__all__ = ["DefinitionError", "Functions", "NamedRelation", "SourceTable", "ViewText", "read_query"]
