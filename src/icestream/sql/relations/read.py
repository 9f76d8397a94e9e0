"""From the syntax of a statement to relations.

Idea: each clause wraps the relation so far, in SQL's order: FROM and JOIN, WHERE, GROUP BY with its
aggregates, HAVING, SELECT, DISTINCT, ORDER BY with LIMIT. A nested query is read where it stands:
in FROM it is a relation, elsewhere a join. A window in brackets that is aggregated comes after
WHERE, which selects the rows that enter it; in a join brackets say how long rows are there.

Invariants:
1. Unsupported syntax is refused at its place, with what to write instead
   (`test_what_relations_cannot_express_is_refused`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from icestream.core.text_errors import TextSpan, guess
from icestream.plan.windows.frame import Frame
from icestream.sql.relations.brackets import BRACKETS, Brackets, read_brackets
from icestream.sql.relations.conditions import parts_of
from icestream.sql.relations.group_windows import read_window, window_call
from icestream.sql.relations.names import (
    ColumnNumbers,
    ColumnScope,
    Definitions,
    Functions,
    NamedRelation,
    ScopedColumn,
    ViewText,
    reference,
    resolved,
)
from icestream.sql.relations.over_calls import with_named_windows
from icestream.sql.relations.select_list import SelectReader
from icestream.sql.relations.times import time_of
from icestream.sql.relations.tree import (
    Filter,
    Grouped,
    Join,
    Lasting,
    Project,
    Scan,
    Streamed,
    UnionAll,
    WindowTable,
    walk,
)
from icestream.sql.statements.aggregates import AggregateCall, called
from icestream.sql.statements.dialect import PARTITION
from icestream.sql.statements.tokens import Text

#: arguments of sqlglot's SELECT: the word they start with, and what to do instead
_REFUSED: dict[str, tuple[str, str]] = {
    "hint": ("SELECT", "hints have no effect here: remove them"),
    "laterals": ("LATERAL", "LATERAL is not supported: explode in Spark, before ice.stream"),
    "sort": ("SORT", "a stream is not sorted: leave SORT BY out, or write ORDER BY ... LIMIT n"),
    "cluster": ("CLUSTER", "CLUSTER BY is not supported: use writeStream.partitionBy(...)"),
    "distribute": (
        "DISTRIBUTE", "DISTRIBUTE BY is not supported: use writeStream.partitionBy(...)"
    ),
    "offset": ("OFFSET", "OFFSET is not supported: write ROW_NUMBER() and a condition on it"),
}  # fmt: skip
_STREAMS = {"istream": "inserted", "dstream": "deleted"}


def read_query(
    tree: exp.Expr, text: Text, definitions: Definitions, functions: Functions
) -> NamedRelation:
    """Return the relation that a query describes."""
    query = QueryReader(text, definitions, functions, ColumnNumbers()).query(tree)
    names = [name.lower() for name, _ in query.names]
    twice = next((name for name, _ in query.names if names.count(name.lower()) > 1), None)
    if twice is not None:
        raise text.error(text.place, f"another column is also called {twice!r}: rename it with AS")
    return query


class QueryReader(SelectReader):
    """Reads one statement."""

    def query(self, tree: exp.Expr) -> NamedRelation:
        """Read a SELECT, a UNION, or one of them in parentheses or ISTREAM(...)."""
        while isinstance(tree, exp.Subquery | exp.Paren):
            self._define(tree)
            tree = tree.this
        self._define(tree)
        match tree:
            case exp.Select():
                return self._select(tree)
            case exp.SetOperation():
                return self._set_operation(tree)
        if called(tree) in _STREAMS and len(tree.expressions) == 1:
            return self._streamed(self.query(tree.expressions[0]), str(called(tree)))
        raise self._text.error(tree, "a query must be a SELECT")

    def _define(self, tree: exp.Expr) -> None:
        clause = tree.args.get("with_") or tree.args.get("with")
        if clause is None:
            return
        if clause.args.get("recursive"):
            raise self._text.error(clause, "WITH RECURSIVE is not supported")
        for each in clause.expressions:
            known = dict(self._definitions)
            names = each.args["alias"].columns
            self._definitions[each.alias.lower()] = ViewText(each.this, self._text, known, names)

    def _select(self, tree: exp.Select) -> NamedRelation:
        tree = with_named_windows(tree, self._text)
        for argument, (word, message) in _REFUSED.items():
            found = tree.args.get(argument)
            if found:
                first = found[0] if isinstance(found, list) else found
                raise self._text.error(self._text.keyword(word) or first, message)
        stream = called(tree.expressions[0]) if len(tree.expressions) == 1 else None
        if stream in _STREAMS:
            tree = tree.copy()
            tree.set("expressions", tree.expressions[0].expressions)
            return self._streamed(self._select(tree), stream)
        aggregated = bool(
            tree.args.get("group")
            or tree.args.get("having")
            or any(self.is_aggregate(each) for each in tree.expressions)
        )
        brackets = self._window_of(tree, aggregated=aggregated)
        query = self.rows_of(tree, windowed=brackets is not None)
        query = self.where(query, tree.args.get("where"))
        if brackets is not None:
            query = self._in_brackets(query, brackets)
            aggregated = True
        items = self.items(tree, query.scope, grouped=aggregated)
        qualify = tree.args.get("qualify")
        if qualify is not None:
            qualify = self.qualified(qualify, query.scope, items)
        if aggregated:
            query = self.grouped(query, tree, items, implied=brackets is not None)
            self._check_partition(query)
        else:
            query = self.projected(query, items, tree)
        query = self.where(query, qualify)
        if (distinct := tree.args.get("distinct")) is not None:
            if distinct.args.get("on"):
                raise self._text.error(
                    self._text.keyword("DISTINCT") or distinct,
                    "DISTINCT ON is not supported: write ROW_NUMBER() OVER (PARTITION BY ...) AS n "
                    "and WHERE n = 1 around it",
                )
            query = self.distinct(query)
        return self.limited(query, tree)

    def _streamed(self, query: NamedRelation, word: str) -> NamedRelation:
        return replace(query, relation=Streamed(query.relation, _STREAMS[word]))

    # -- FROM ------------------------------------------------------------------------------

    def rows_of(self, tree: exp.Select, *, windowed: bool = False) -> NamedRelation:
        """Read FROM and its joins; the window of the one stream is read later."""
        clause = tree.args.get("from_") or tree.args.get("from")
        if clause is None:
            place = self._text.place if tree.parent is None else tree
            raise self._text.error(place, "the query reads nothing: add FROM and a name")
        query = self._source(clause.this, windowed=windowed)
        for each in tree.args.get("joins") or ():
            query = self._join(query, each)
        return query

    def _source(self, node: exp.Expr, *, windowed: bool = False) -> NamedRelation:
        alias = node.args.get("alias")
        found = self._relation(node, windowed=windowed)
        return found if alias is None else self._with_names(found, alias.columns)

    def _with_names(self, query: NamedRelation, names: Sequence[exp.Expr]) -> NamedRelation:
        """Give the columns of a relation other names, if there are any."""
        shown = [each for each in query.scope.entries if each.starred]
        if not names:
            return query
        if len(names) != len(shown):
            raise self._text.error(
                names[0], f"{len(names)} names for {len(shown)} columns: {query.scope.names}"
            )
        entries = tuple(
            replace(each, name=name.name) for each, name in zip(shown, names, strict=True)
        )
        return replace(query, scope=replace(query.scope, entries=entries))

    def _relation(self, node: exp.Expr, *, windowed: bool) -> NamedRelation:
        alias = node.alias or None
        if isinstance(node, exp.Subquery):
            inner = node.this
            if isinstance(inner, exp.Table):
                return self._called(self._source(inner), alias)
            query = self.inside().query(node)
            return self._called(query, alias or "")
        if not isinstance(node, exp.Table):
            raise self._text.error(
                node, "FROM is followed by a name, a query in parentheses, or a window"
            )
        for argument in ("sample", "pivots", "laterals"):
            if node.args.get(argument):
                raise self._text.error(node, "only an alias may follow the name of a table")
        if isinstance(node.this, exp.Identifier):
            query = self._called(self._named(node), alias or node.name)
            if BRACKETS in node.meta and not windowed:
                query = self._lasting(query, read_brackets(self._text, node.meta[BRACKETS]))
            return query
        if called(node.this) in _STREAMS:
            return self._called(self.inside().query(node.this), alias or "")
        return self._windowed(node.this, alias)

    def _called(self, query: NamedRelation, alias: str | None) -> NamedRelation:
        return NamedRelation(query.relation, query.scope.called(alias))

    def _named(self, node: exp.Table) -> NamedRelation:
        """Read a source, a view or a query of WITH."""
        name = ".".join(part.name for part in node.parts)
        found = self._definitions.get(name.lower())
        if found is None:
            known = sorted(
                each.name if not isinstance(each, ViewText) else key
                for key, each in self._definitions.items()
            )
            hint = guess(name, known) or "."
            given = f"Given: {known}" if known else f"Pass it: ice.sql(text, {name}=stream)"
            first, last = (self._text.place_of(each) for each in (node.parts[0], node.parts[-1]))
            place = TextSpan(first.start, last.end)
            raise self._text.error(place, f"there is no table {name!r}{hint} {given}")
        if isinstance(found, ViewText):
            inside = QueryReader(found.text, found.names, self._functions, self._numbers)
            return inside._with_names(inside.query(found.tree), found.columns)
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
        table, *given = node.expressions or [exp.null()]
        keys = [*table.meta.get(PARTITION, ())]
        while keys and given and isinstance(given[0], exp.Column):
            keys.append(given.pop(0))
        descriptor, *lengths = given or [exp.null()]
        if not isinstance(table, exp.Column) or called(descriptor) != "descriptor":
            raise self._text.error(
                node, f"{window} is called like {window}(TABLE t, DESCRIPTOR(time), INTERVAL '10' "
                "SECOND)",
            )  # fmt: skip
        of = table.name
        query = self._called(self._named(exp.Table(this=table.this.copy())), of)
        time = resolved(descriptor.expressions[0], [query.scope], self._text)
        partition = [resolved(each, [query.scope], self._text).name for each in keys]
        if keys and window != "SESSION":
            raise self._text.error(
                keys[0], f"{window} does not depend on keys: leave PARTITION BY out, and GROUP BY"
            )
        kind = read_window(node, lengths, self._text)
        windowed = self.with_window(query, kind, time, node, partition)
        return self._called(windowed, alias or of)

    def _join(self, left: NamedRelation, node: exp.Join) -> NamedRelation:
        if node.args.get("method"):
            raise self._text.error(node, f"{node.args['method']} JOIN is not supported: write ON")
        right = self._source(node.this)
        side, kind = (node.side or "").upper(), (node.kind or "").upper()
        sort = kind.lower() if kind in ("SEMI", "ANTI") else side.lower() or "inner"
        both = left.scope.and_(right.scope)
        on = parts_of(self.row_expression(node.args["on"], both)) if node.args.get("on") else []
        used = []
        for name in node.args.get("using") or ():
            column = exp.Column(this=name.copy())
            used.append([resolved(column, [each.scope], self._text) for each in (left, right)])
            on.append(exp.EQ(this=used[-1][0], expression=used[-1][1]))
        kept, other = (right, left) if sort == "right" else (left, right)
        word = "left" if sort == "right" else sort
        place = self._text.place_of(node)
        relation = Join(kept.relation, other.relation, word, tuple(on), place)
        if sort in ("semi", "anti"):
            return NamedRelation(relation, left.scope)
        return self._used(NamedRelation(relation, both), used, sort)

    def _used(
        self, query: NamedRelation, used: Sequence[Sequence[exp.Expr]], sort: str
    ) -> NamedRelation:
        """Let one column stand for those of both sides of a join that USING names."""
        names = {each.column: each.name for each in query.scope.entries}
        first: list[ScopedColumn] = []
        made: dict[str, exp.Expr] = {}
        for sides in used:
            column, name = sides[sort == "right"].name, names[sides[0].name]
            if sort == "full":
                column = self._numbers.new(name)
                values = [each.copy() for each in sides]
                made[column] = exp.Anonymous(this="coalesce", expressions=values)
            first.append(ScopedColumn(None, name, column))
        behind = {each.name for sides in used for each in sides}
        rest = (
            replace(each, starred=False, is_used=True) if each.column in behind else each
            for each in query.scope.entries
        )
        relation = query.relation
        if made:
            relation = Project(relation, {**{e: reference(e) for e in relation.columns}, **made})
        return NamedRelation(relation, replace(query.scope, entries=(*first, *rest)))

    # -- windows in brackets ---------------------------------------------------------------

    def _window_of(self, tree: exp.Select, *, aggregated: bool) -> Brackets | None:
        """Return the window of a SELECT from one stream; none if it says how long rows last."""
        clause = tree.args.get("from_") or tree.args.get("from")
        if clause is None or BRACKETS not in clause.this.meta or tree.args.get("joins"):
            return None
        brackets = read_brackets(self._text, clause.this.meta[BRACKETS])
        window = brackets.window
        if window is None or (isinstance(window, Frame) and window.peers):
            return None
        lasts = isinstance(window, Frame) and window.rows is None and window.slide is None
        return brackets if aggregated or not lasts else None

    def _time(self, query: NamedRelation, place: TextSpan) -> str:
        time = time_of(query.relation)
        if time is None:
            raise self._text.error(
                place,
                "a window in brackets follows a stream: this has no time, or is computed from "
                "several rows",
            )
        return time

    def _in_brackets(self, query: NamedRelation, brackets: Brackets) -> NamedRelation:
        """Apply the window of the one stream of a SELECT."""
        window, place = brackets.window, brackets.place
        assert window is not None
        start = end = self._numbers.new("window_start")
        if not isinstance(window, Frame):
            end = self._numbers.new("window_end")
        partition = []
        for name, where in zip(brackets.partition, brackets.places, strict=True):
            named = exp.to_identifier(name)
            named.meta.update(start=where.start, end=where.end - 1)
            column = resolved(exp.Column(this=named), [query.scope], self._text)
            partition.append(column.name)
        time = self._time(query, place)
        table = WindowTable(query.relation, window, time, start, end, place, tuple(partition))
        return NamedRelation(table, replace(query.scope, windows=(table,)))

    def _check_partition(self, query: NamedRelation) -> None:
        """Refuse PARTITION BY beside other groups."""
        groups = next(each for each in walk(query.relation) if isinstance(each, Grouped))
        kinds = (WindowTable, Grouped)
        table = next((each for each in walk(groups.input) if isinstance(each, kinds)), None)
        if not isinstance(table, WindowTable) or not table.partition:
            return
        own = (table.start, table.end)
        keys = [each for each in groups.keys.values() if each.name not in own]
        same = {each.name for each in keys if isinstance(each, exp.Column)}
        if groups.sets is not None or len(same) != len(keys) or same != set(table.partition):
            scan = next(each for each in walk(table) if isinstance(each, Scan))
            names = {column: name for name, column in scan.named.items()}
            spelled = [names.get(each, each) for each in table.partition]
            raise self._text.error(
                table.place,
                "PARTITION BY divides the events, so results must be grouped alike: "
                f"write GROUP BY {', '.join(spelled)}",
            )

    def _lasting(self, query: NamedRelation, brackets: Brackets) -> NamedRelation:
        """Apply brackets to a table of a join, or to one whose rows are not aggregated."""
        window, place = brackets.window, brackets.place
        if window is None:
            return query
        time = self._time(query, place)
        if not isinstance(window, Frame):
            node = exp.Anonymous(this="window")
            node.meta.update(start=place.start, end=place.end - 1)
            return self.with_window(query, window, reference(time), node)
        if window.rows is not None or window.range is None or window.slide is not None:
            raise self._text.error(
                place,
                "[ROWS n] and slides count the rows of one stream that are aggregated: in a join "
                "write [RANGE 1 HOUR], [NOW] or [UNBOUNDED]",
            )
        return replace(query, relation=Lasting(query.relation, window.range))

    # -- UNION, INTERSECT, EXCEPT ----------------------------------------------------------

    def _set_operation(self, tree: exp.SetOperation) -> NamedRelation:
        parts = [self.inside().query(each) for each in (tree.this, tree.expression)]
        word = tree.key.upper()
        place = self._text.keyword(word) or tree
        lengths = [len(part.names) for part in parts]
        if len(set(lengths)) > 1:
            raise self._text.error(place, f"the queries of {word} have {lengths} columns")
        if isinstance(tree, exp.Union):
            query = self._union(parts)
            query = self.distinct(query) if tree.args.get("distinct") else query
            return self.limited(query, tree)
        if not tree.args.get("distinct"):
            raise self._text.error(place, f"{word} ALL is not supported: write {word}")
        return self.limited(self._in_both(parts, negated=isinstance(tree, exp.Except)), tree)

    def _union(
        self, parts: Sequence[NamedRelation], marks: Sequence[tuple[int, ...]] = ((), ())
    ) -> NamedRelation:
        """Return the rows of two queries, each with numbers of its own in hidden columns."""
        names = [name for name, _ in parts[0].names]
        hidden = [f"mark {place}" for place in range(len(marks[0]))]
        aligned = []
        for part, numbers in zip(parts, marks, strict=True):
            items: dict[str, exp.Expr] = {self._numbers.new(n): reference(c) for n, c in part.names}
            items |= {self._numbers.new("mark"): exp.Literal.number(each) for each in numbers}
            aligned.append(Project(part.relation, items))
        columns = tuple(self._numbers.new(name) for name in (*names, *hidden))
        entries = tuple(
            ScopedColumn(None, name, column, starred=name not in hidden)
            for name, column in zip((*names, *hidden), columns, strict=True)
        )
        return NamedRelation(UnionAll(tuple(aligned), columns), ColumnScope(entries))

    def _in_both(self, parts: Sequence[NamedRelation], *, negated: bool) -> NamedRelation:
        """Return the different rows of one query that another has too, or has not.

        Rows are grouped rather than joined, because NULL is equal to NULL here.
        """
        union = self._union(parts, ((1, 0), (0, 1)))
        distinct = self.distinct(union)
        groups = distinct.relation
        assert isinstance(groups, Grouped)
        marks = [each.column for each in union.scope.entries if not each.starred]
        calls = {self._numbers.new("rows"): AggregateCall("sum", (mark,)) for mark in marks}
        none = exp.Literal.number(0)
        one, other = (reference(name) for name in calls)
        met = (
            exp.EQ(this=other, expression=none) if negated else exp.GT(this=other, expression=none)
        )
        conditions = (exp.GT(this=one, expression=none.copy()), met)
        return replace(distinct, relation=Filter(replace(groups, calls=calls), conditions))
