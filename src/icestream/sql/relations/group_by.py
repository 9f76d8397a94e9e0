"""GROUP BY, aggregates and HAVING.

Idea: expressions in SELECT and HAVING are about a group: keys, aggregates and columns of the window
are replaced by the columns that hold them, and the rest is computed from those. A window in
brackets is a key of every grouping, and the first column of the result unless it is selected.

Invariants:
1. An aggregate that appears several times is computed once (`test_aggregates_are_computed_once`).

Limits: an aggregate without GROUP BY has no row before the first row of its input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from icestream.core.text_errors import TextSpan
from icestream.sql.relations.conditions import parts_of
from icestream.sql.relations.expressions import filtered, own_nodes
from icestream.sql.relations.group_windows import read_window, window_call
from icestream.sql.relations.names import (
    ColumnNumbers,
    ColumnScope,
    NamedRelation,
    ScopedColumn,
    is_known,
    reference,
    resolved,
    unknown_column,
)
from icestream.sql.relations.nested import NestedReader, RowsBeside, beside
from icestream.sql.relations.tree import Grouped, Project, Relation, TimeWindow, WindowTable, bare
from icestream.sql.statements.aggregates import AggregateCall, called
from icestream.sql.statements.dialect import written
from icestream.sql.statements.grouping_sets import read_grouping


@dataclass(frozen=True)
class SelectItem:
    """One element of a SELECT list."""

    name: str
    node: exp.Expr
    place: TextSpan
    is_alias: bool = True
    #: whether only a condition reads it
    is_hidden: bool = False


class GroupReader(NestedReader):
    """Reads what is computed for groups."""

    def grouped(
        self, query: NamedRelation, tree: exp.Select, items: Sequence[SelectItem], *, implied: bool
    ) -> NamedRelation:
        """Read GROUP BY, aggregates and HAVING; a window in brackets is `implied`."""
        query, nodes, sets = self._keys(query, tree.args.get("group"), items, implied=implied)
        grouping = _Grouping(self._numbers, query.scope, implied=implied)
        edges = grouping.window_keys(nodes)
        for node in nodes:
            grouping.key(node, bare(query.scope.own_name(node)) or "key")
        if sets is not None:
            texts = [written(each) for each in nodes]
            grouping.sets = [(*edges, *(texts[place] for place in each)) for each in sets]
        made: dict[str, exp.Expr] = {}
        aliases: dict[str, exp.Expr] = {}
        nested: list[RowsBeside] = []

        def over_groups(node: exp.Expr) -> exp.Expr:
            return self._over_groups(node, query.scope, grouping, aliases)

        entries: list[ScopedColumn] = []
        for item in items:
            node, rows = self.without_nested(item.node, over_groups)
            nested += rows
            column = self._numbers.new(item.name)
            made[column] = self._over_groups(node, query.scope, grouping)
            if item.is_alias:
                aliases[item.name.lower()] = made[column]
            entries.append(ScopedColumn(None, item.name, column, starred=not item.is_hidden))
        having = []
        for each in parts_of(tree.args.get("having")):
            node, rows = self.without_nested(each, over_groups, is_condition=True)
            nested += rows
            having += parts_of(over_groups(node))
        if implied and not grouping.shows_window:
            heading = query.scope.windows[-1].heading
            column = self._numbers.new(heading)
            made = {column: grouping.window_struct(), **made}
            entries.insert(0, ScopedColumn(None, heading, column))
        if implied and not nodes and not grouping.calls:
            raise self._text.error(
                items[0].place,
                "nothing is aggregated: select an aggregate such as COUNT(*), or GROUP BY columns",
            )
        relation = filtered(beside(grouping.relation(query.relation), nested), having)
        windows = windows_of(made, query.scope, grouping.keys)
        return NamedRelation(Project(relation, made), ColumnScope(tuple(entries), windows))

    def with_window(
        self,
        query: NamedRelation,
        window: TimeWindow,
        time: exp.Expr,
        node: exp.Expr,
        partition: Sequence[str] = (),
    ) -> NamedRelation:
        if not isinstance(time, exp.Column):
            raise self._text.error(node, "a window needs the column of the event time")
        if window.gap is not None:
            window = replace(window, gap=self.row_expression(window.gap, query.scope))
        start, end = self._numbers.new("window_start"), self._numbers.new("window_end")
        place = self._text.place_of(node)
        of = query.relation
        relation = WindowTable(of, window, time.name, start, end, place, tuple(partition))
        entries = (
            ScopedColumn(None, "window_start", start),
            ScopedColumn(None, "window_end", end),
        )
        scope = query.scope.and_(ColumnScope(entries, (relation,)))
        return NamedRelation(relation, scope)

    # -- keys ------------------------------------------------------------------------------

    def _keys(
        self,
        query: NamedRelation,
        group: exp.Group | None,
        items: Sequence[SelectItem],
        *,
        implied: bool,
    ) -> tuple[NamedRelation, list[exp.Expr], tuple[tuple[int, ...], ...] | None]:
        """Return keys and sets of them; a window among the keys is added to the input."""

        def resolve(node: exp.Expr) -> list[exp.Expr]:
            nonlocal query
            node = self._meant(node, query.scope, items)
            if window_call(node) is not None:
                time = resolved(node.expressions[0], [query.scope], self._text)
                kind = read_window(node, node.expressions[1:], self._text)
                query = self.with_window(query, kind, time, node)
                table = query.scope.windows[-1]
                return [reference(table.start), reference(table.end)]
            if (named := _window_of(node, query.scope)) is not None:
                return [] if implied else [reference(named.start), reference(named.end)]
            return [self.row_expression(node, query.scope)]

        if group is not None and group.args.get("all"):
            chosen = [each.node for each in items if self._is_key(each.node, query.scope)]
            group = exp.Group(expressions=chosen)
        nodes, sets = read_grouping(group, resolve, self._text)
        return query, nodes, sets

    def _is_key(self, node: exp.Expr, scope: ColumnScope) -> bool:
        """Return whether GROUP BY ALL groups by an item: one over columns, without aggregates."""
        columns = list(node.find_all(exp.Column))
        known = all(is_known(each, scope) for each in columns)
        return bool(columns) and known and not self.is_aggregate(node)

    def _meant(self, node: exp.Expr, scope: ColumnScope, items: Sequence[SelectItem]) -> exp.Expr:
        """Return the expression that an element of GROUP BY stands for."""
        if isinstance(node, exp.Literal) and not node.is_string:
            return items[self.position(node, len(items))].node
        if isinstance(node, exp.Column) and not is_known(node, scope):
            for item in items:
                if item.name.lower() == node.name.lower() and len(node.parts) == 1:
                    return item.node
        return node

    def position(self, node: exp.Literal, count: int) -> int:
        """Return the place of a column that is named by its number."""
        place = int(node.this) if str(node.this).isdecimal() else 0
        if not 1 <= place <= count:
            raise self._text.error(node, f"there is no column at {place}: SELECT has {count}")
        return place - 1

    # -- expressions over groups -----------------------------------------------------------

    def _over_groups(
        self,
        node: exp.Expr,
        scope: ColumnScope,
        grouping: _Grouping,
        aliases: Mapping[str, exp.Expr] | None = None,
    ) -> exp.Expr:
        """Return an expression over keys and aggregates."""
        for each in own_nodes(node):
            self.check_form(each)
        return node.transform(lambda each: self._held(each, scope, grouping, aliases or {}))

    def _held(
        self,
        node: exp.Expr,
        scope: ColumnScope,
        grouping: _Grouping,
        aliases: Mapping[str, exp.Expr],
    ) -> exp.Expr:
        """Return the column that holds the value of a node, or the node itself to descend into."""
        if isinstance(node, exp.Literal) or node.name in self._answers:
            return node
        if isinstance(node, exp.Window):
            raise self._text.error(
                node, "OVER goes around the query that aggregates: SELECT ..., SUM(n) OVER (...) "
                "FROM (SELECT ..., COUNT(*) AS n ... GROUP BY ...)",
            )  # fmt: skip
        if called(node) in ("grouping", "grouping_id"):
            return self._grouping_function(node, scope, grouping)
        edge = grouping.edge(node) or self._called_again(node, scope, grouping)
        if edge is not None:
            return edge
        if self._calls.is_aggregate(node):
            return reference(self._aggregate(node, scope, grouping), node)
        column = node if isinstance(node, exp.Column) else None
        known = all(is_known(each, scope) for each in node.find_all(exp.Column))
        found = _of_key(self.expression(node, scope), node, grouping) if known else None
        if found is not None:
            return found
        if column is None:
            return node
        if (window := grouping.window_column(column)) is not None:
            return window
        if node.name.lower() in aliases and len(column.parts) == 1:
            return exp.paren(aliases[node.name.lower()].copy())
        if known:
            name = scope.own_name(column)
            raise self._text.error(
                node, f"{name!r} has many values in a group: add it to GROUP BY, or aggregate it, "
                f"for example max({name}) or last({name})",
            )  # fmt: skip
        if grouping.heading and column.parts[0].name.lower() in _WINDOW_NAMES:
            raise self._text.error(node, f"rows of this window have {grouping.heading!r} instead")
        raise unknown_column(column, scope, self._text, grouping.heading)

    def _called_again(
        self, node: exp.Expr, scope: ColumnScope, grouping: _Grouping
    ) -> exp.Expr | None:
        """Return the window of GROUP BY, or a bound of it, if a node calls it once more."""
        call = node.this if isinstance(node, exp.Dot) else node
        if window_call(call) is None or not scope.windows:
            return None
        time = resolved(call.expressions[0], [scope], self._text)
        table = scope.windows[-1]
        if (time.name, read_window(call, call.expressions[1:], self._text)) != (
            table.time,
            table.window,
        ):
            return None
        names = [grouping.heading or "", *([node.name] if call is not node else [])]
        return grouping.window_column(exp.column(*reversed(names)))

    def _aggregate(self, node: exp.Expr, scope: ColumnScope, grouping: _Grouping) -> str:
        """Return the column that holds an aggregate, adding it if there is none."""
        call = node
        around = [node]
        while isinstance(call, exp.Filter | exp.WithinGroup | exp.IgnoreNulls | exp.RespectNulls):
            call = call.this
            around.append(call)
        for each in own_nodes(node):
            if not any(each is one for one in around):
                self.check_without_aggregates(each)
        whole = self._calls.read(self.expression(node, scope))
        return grouping.call(whole, node)

    def _grouping_function(
        self, node: exp.Expr, scope: ColumnScope, grouping: _Grouping
    ) -> exp.Expr:
        """Return the number of a row's grouping, or whether it omits a key."""
        name = called(node)
        if grouping.sets is None:
            raise self._text.error(node, f"{name} needs GROUPING SETS, ROLLUP or CUBE")
        if name == "grouping_id":
            return reference(grouping.id_column(), node)
        asked = [written(self.expression(each, scope)) for each in node.expressions]
        if len(asked) != 1 or asked[0] not in grouping.texts:
            keys = [each.sql() for each in grouping.keys.values()]
            raise self._text.error(node, f"grouping must be called with one of the keys: {keys}")
        without = [exp.Literal.number(each) for each in grouping.numbers_without(asked[0])]
        if not without:
            return exp.cast(exp.Literal.number(0), "TINYINT")
        omits = exp.In(this=reference(grouping.id_column()), expressions=without)
        return exp.cast(exp.cast(omits, "INT"), "TINYINT")


class _Grouping:
    """Keys and aggregates of one GROUP BY, each once."""

    def __init__(self, numbers: ColumnNumbers, scope: ColumnScope, *, implied: bool) -> None:
        self._numbers = numbers
        self._windows = scope.windows
        self._implied = implied
        self.keys: dict[str, exp.Expr] = {}
        self.calls: dict[str, AggregateCall] = {}
        #: sets of keys by their texts; None for one grouping by all of them
        self.sets: list[tuple[str, ...]] | None = None
        self.shows_window = False
        #: columns by the texts of keys
        self.texts: dict[str, str] = {}
        self._id: str | None = None

    @property
    def heading(self) -> str | None:
        """Return the name of the window's column."""
        return self._windows[-1].heading if self._windows else None

    def window_keys(self, nodes: Sequence[exp.Expr]) -> list[str]:
        """Group by both bounds of a window if one of them is a key, or brackets imply it."""
        asked, edges = {written(each) for each in nodes}, []
        for table in self._windows:
            if self._implied or table.start in asked or table.end in asked:
                names = ("time",) if table.start == table.end else ("window_start", "window_end")
                for name, edge in zip(names, (table.start, table.end), strict=False):
                    self.key(reference(edge), name)
                    edges.append(edge)
        return edges

    def key(self, node: exp.Expr, name: str) -> None:
        text = written(node)
        if text not in self.texts:
            column = self._numbers.new(name)
            self.texts[text] = column
            self.keys[column] = node

    def held(self, node: exp.Expr) -> str | None:
        return self.texts.get(written(node))

    def call(self, call: AggregateCall, node: exp.Expr) -> str:
        for column, other in self.calls.items():
            if call == other:
                return column
        column = self._numbers.new(called(node) or "aggregate")
        self.calls[column] = call
        return column

    def numbers_without(self, text: str) -> list[int]:
        """Return the numbers of the groupings that omit a key."""
        keys = [next(t for t, name in self.texts.items() if name == each) for each in self.keys]
        return [
            int("".join(str(int(key not in each)) for key in keys), 2)
            for each in self.sets or ()
            if text not in each
        ]

    def id_column(self) -> str:
        """Return the column of the number of a row's grouping."""
        self._id = self._id or self._numbers.new("grouping_id")
        return self._id

    def relation(self, rows: Relation) -> Grouped:
        if self.sets is None:
            return Grouped(rows, self.keys, self.calls)
        sets = tuple(tuple(self.texts[each] for each in chosen) for chosen in self.sets)
        return Grouped(rows, self.keys, self.calls, sets, self.id_column())

    # -- columns of the window -------------------------------------------------------------

    def edge(self, node: exp.Expr) -> exp.Expr | None:
        """Return the column that TUMBLE_START(...) and its like stand for."""
        kind, _, edge = (called(node) or "").rpartition("_")
        if kind not in ("tumble", "hop", "session") or edge not in _EDGES or not self._windows:
            return None
        return self._edge(edge)

    def window_column(self, node: exp.Column) -> exp.Expr | None:
        names = [part.name.lower() for part in node.parts]
        if not self._windows or self.held(reference(self._windows[-1].start)) is None:
            return None
        if names == [self.heading]:
            self.shows_window = True
            return self.window_struct()
        if self.heading == "time":
            return None
        for edge in _EDGES:
            if names in ([self.heading, edge], [f"window_{edge}"]):
                self.shows_window = True
                return self._edge(edge)
        return None

    def window_struct(self) -> exp.Expr:
        if self.heading == "time":
            return self._edge("start")
        words = [each for edge in _EDGES for each in (exp.Literal.string(edge), self._edge(edge))]
        return exp.Anonymous(this="named_struct", expressions=words)

    def _edge(self, edge: str) -> exp.Expr:
        table = self._windows[-1]
        column = table.end if edge == "end" else table.start
        return reference(self.held(reference(column)) or column)


_EDGES = ("start", "end")
#: columns that windows of some kind have
_WINDOW_NAMES = ("window", "session_window", "window_start", "window_end", "time")


def _of_key(meant: exp.Expr, node: exp.Expr, grouping: _Grouping) -> exp.Expr | None:
    """Return the key that an expression is, or the field of the key that it names."""
    of = meant
    while (key := grouping.held(of)) is None and isinstance(of, exp.Dot):
        of = of.this
    if key is None or of is meant:
        return None if key is None else reference(key, node)
    held = reference(key, node)
    return meant.transform(lambda each: held if written(each) == written(of) else each)


def _window_of(node: exp.Expr, scope: ColumnScope) -> WindowTable | None:
    """Return the window that a name in GROUP BY belongs to."""
    if not isinstance(node, exp.Column) or is_known(node, scope):
        return None
    first = node.parts[0].name.lower()
    known = (*scope.windows[-1:],)
    names = [name for each in known for name in (each.heading, "window_start", "window_end")]
    return known[0] if first in names else None


def windows_of(
    items: Mapping[str, exp.Expr], scope: ColumnScope, keys: Mapping[str, exp.Expr] | None = None
) -> tuple[WindowTable, ...]:
    """Return the windows whose start and end are among some items, under their new names."""
    source = {column: written(node) for column, node in (keys or {}).items()}
    held = {source.get(written(node), written(node)): column for column, node in items.items()}
    return tuple(
        WindowTable(each.input, each.window, each.time, held[each.start], held[each.end])
        for each in scope.windows
        if each.start in held and each.end in held
    )
