"""A statement as pure data, in the terms of the fluent API.

Idea: every expression of a statement is evaluated in one of two places. Expressions in WHERE, GROUP
BY and inside aggregates are about one event and go to Spark unchanged. Expressions in SELECT and
HAVING are about a group of a window: there, keys and aggregates are replaced by the columns that
hold them, and the rest is arithmetic over the result rows.

Invariants:
1. An aggregate that appears several times is computed once (`test_aggregates_are_computed_once`).
2. Unsupported syntax is refused, with what to do instead (`test_what_is_not_done_is_refused`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import sqlglot
from sqlglot import exp

from icestream.core.errors import DefinitionError
from icestream.core.text_errors import TextSpan
from icestream.sql.statements.aggregates import AggregateCall, CallReader, called
from icestream.sql.statements.dialect import Cql, column, written
from icestream.sql.statements.grouping import read_grouping
from icestream.sql.statements.names import Names, NameScope
from icestream.sql.statements.shape import read_shape
from icestream.sql.statements.tokens import Text
from icestream.sql.statements.windows import RowsWindow, Window, heading


@dataclass(frozen=True)
class Named:
    """An expression and the name of the column that holds its value."""

    name: str
    expression: str
    place: TextSpan = field(default=TextSpan(0, 1), compare=False, repr=False)


@dataclass(frozen=True)
class Condition:
    """A Boolean expression."""

    expression: str
    place: TextSpan = field(default=TextSpan(0, 1), compare=False, repr=False)


@dataclass(frozen=True)
class Description:
    """What a statement computes."""

    stream: str
    window: Window
    #: condition on events
    where: Condition | None
    keys: tuple[Named, ...]
    #: sets of keys to group by, by position; None for one grouping by all of them
    sets: tuple[tuple[int, ...], ...] | None
    #: aggregates under the names of the columns that hold them
    aggregates: Mapping[str, AggregateCall]
    #: condition on result rows
    having: Condition | None
    #: columns of the final rows, over keys, aggregates and the window
    columns: tuple[Named, ...]
    text: Text = field(compare=False, repr=False)
    #: place of the window in the text
    window_place: TextSpan = field(default=TextSpan(0, 1), compare=False, repr=False)


def described(text: Text, scope: NameScope) -> Description:
    """Read one statement."""
    return _Reader(text, scope).statement()


class _Reader:
    """Reads one statement."""

    def __init__(self, text: Text, scope: NameScope) -> None:
        self._text = text
        self._shape = read_shape(text, list(scope.streams))
        self._names = Names(text, scope, self._shape.stream, self._shape.callings)
        self._heading = heading(self._shape.window)
        users = frozenset(name.lower() for name in scope.functions)
        self._calls = CallReader(text, users, self._names.event_expression)
        #: the SELECT list without aliases, with columns in one spelling
        self._items = [self._names.tidy(item.expression) for item in self._shape.items]
        self._titles = [self._title(place) for place in range(len(self._items))]
        self._taken = {self._heading, "grouping_id"}
        #: names of key columns, by the text of the keys
        self._keys: dict[str, str] = {}
        self._has_sets = False
        self._aggregates: dict[str, AggregateCall] = {}
        self._shows_window = False

    def statement(self) -> Description:
        """Return the description of the statement."""
        tree, items = self._shape.tree, self._shape.items
        where = self._where()
        keys, sets = self._grouping()
        columns = [
            Named(title, self._over_rows(node), item.place)
            for title, node, item in zip(self._titles, self._items, items, strict=True)
        ]
        if not self._shows_window:
            columns.insert(0, self._first_column())
        having = self._having(tree.args.get("having"))
        if not self._aggregates:
            self._count_at_least(keys)
        self._check_titles(columns)
        return Description(
            self._shape.stream,
            self._window(keys, sets),
            where,
            keys,
            sets,
            self._aggregates,
            having,
            tuple(columns),
            self._text,
            self._shape.window_place,
        )

    # -- clauses ---------------------------------------------------------------------------

    def _title(self, place: int) -> str:
        """Return the name of a column: its alias, the column's own name, or its text."""
        item, node = self._shape.items[place], self._items[place]
        if item.alias:
            return item.alias
        return _own_name(node) or self._text.slice(item.place)

    def _window(self, keys: tuple[Named, ...], sets: object) -> Window:
        """Return the window, with the columns of PARTITION BY in the stream's spelling."""
        window, places = self._shape.window, self._shape.partition_places
        if not isinstance(window, RowsWindow) or not places:
            return window
        spelled = []
        for name, place in zip(window.partition_by, places, strict=True):
            spelling = self._names.spelling(name)
            if spelling is None:
                raise self._names.unknown_column(place, name)
            spelled.append(spelling)
        partition = sorted(self._names.as_written(name) for name in spelled)
        if sets is not None or sorted(key.expression for key in keys) != partition:
            raise self._text.error(
                TextSpan(places[0].start, places[-1].end),
                "PARTITION BY counts events per partition, so results must be grouped alike: "
                f"write GROUP BY {', '.join(spelled)}",
            )
        return replace(window, partition_by=tuple(spelled))

    def _where(self) -> Condition | None:
        clause = self._shape.tree.args.get("where")
        if clause is None:
            return None
        condition = self._names.tidy(clause.this)
        text = self._names.event_expression(condition)
        return Condition(text, self._text.place_of(condition))

    def _having(self, clause: exp.Having | None) -> Condition | None:
        if clause is None:
            return None
        condition = self._names.tidy(clause.this)
        aliases = {
            item.alias.lower(): node
            for item, node in zip(self._shape.items, self._items, strict=True)
            if item.alias
        }
        text = self._over_rows(condition, aliases)
        return Condition(text, self._text.place_of(condition))

    def _grouping(self) -> tuple[tuple[Named, ...], tuple[tuple[int, ...], ...] | None]:
        group = self._shape.tree.args.get("group")
        if group is not None and group.args.get("all"):
            group = exp.Group(expressions=[each for each in self._items if self._is_key(each)])
        nodes, sets = read_grouping(group, self._resolved_keys, self._text)
        keys = []
        for node in nodes:
            text = self._names.event_expression(node)
            name = self._free_name(self._title_of(text) or _own_name(node), text)
            self._keys[text] = name
            keys.append(Named(name, text, self._text.place_of(node)))
        self._has_sets = sets is not None
        return tuple(keys), sets

    def _resolved_keys(self, node: exp.Expr) -> list[exp.Expr]:
        """Return the key that an element of GROUP BY means; none for columns of the window."""
        if isinstance(node, exp.Literal) and not node.is_string:
            node = self._item_at(node)
        node = self._names.tidy(node)
        if not isinstance(node, exp.Column):
            return [node]
        name = node.parts[0].name
        if self._names.spelling(name) is not None:
            return [node]
        if self._window_column(node) is not None:
            return []
        for title, item in zip(self._titles, self._items, strict=True):
            if title.lower() == name.lower():
                return [item]
        raise self._names.unknown_column(node, name)

    def _item_at(self, position: exp.Literal) -> exp.Expr:
        count = len(self._items)
        place = int(position.this) if str(position.this).isdecimal() else 0
        if not 1 <= place <= count:
            raise self._text.error(position, f"there is no column at {place}: SELECT has {count}")
        return self._items[place - 1]

    # -- expressions over result rows ------------------------------------------------------

    def _over_rows(self, tree: exp.Expr, aliases: Mapping[str, exp.Expr] | None = None) -> str:
        """Return an expression over the columns that hold keys, aggregates and the window."""
        return written(tree.transform(lambda node: self._held(node, aliases or {})))

    def _held(self, node: exp.Expr, aliases: Mapping[str, exp.Expr]) -> exp.Expr:
        """Return the column that holds the value of a node, or the node itself to descend into."""
        key = self._keys.get(written(node)) if not isinstance(node, exp.Literal) else None
        if key is not None:
            return column(key)
        if self._calls.is_aggregate(node):
            return column(self._aggregate(node))
        if called(node) in ("grouping", "grouping_id"):
            return self._grouping_function(node)
        self._names.check_form(node)
        if not isinstance(node, exp.Column):
            return node
        window = self._window_column(node)
        if window is not None:
            self._shows_window = True
            return window
        if node.name.lower() in aliases and len(node.parts) == 1:
            inner = aliases[node.name.lower()]
            return exp.paren(inner.transform(lambda each: self._held(each, {})))
        raise self._ungrouped(node)

    def _aggregate(self, node: exp.Expr) -> str:
        """Return the name of the column that holds an aggregate, adding it if there is none."""
        call = self._calls.read(node)
        for name, other in self._aggregates.items():
            if call == other:
                return name
        text = written(node)
        name = self._free_name(self._title_of(text), text)
        self._aggregates[name] = call
        return name

    def _window_column(self, node: exp.Column) -> exp.Expr | None:
        """Return the expression for a column of the window, or None."""
        names = [part.name.lower() for part in node.parts]
        if names == [self._heading]:
            return column(self._heading)
        if self._heading == "time":
            return None
        for end in ("start", "end"):
            if names in ([self._heading, end], [f"window_{end}"]):
                return exp.Dot(this=column(self._heading), expression=exp.to_identifier(end))
        return None

    def _first_column(self) -> Named:
        return Named(self._heading, written(column(self._heading)), self._shape.window_place)

    def _grouping_function(self, node: exp.Expr) -> exp.Expr:
        """Return the expression for the grouping of a row, or for whether it omits a key."""
        name = called(node)
        if not self._has_sets:
            raise self._text.error(node, f"{name} needs GROUPING SETS, ROLLUP or CUBE")
        if name == "grouping_id":
            return column("grouping_id")
        keys = list(self._keys)
        asked = [written(each) for each in node.expressions]
        if len(asked) != 1 or asked[0] not in keys:
            raise self._text.error(node, f"grouping must be called with one of the keys: {keys}")
        bit = len(keys) - 1 - keys.index(asked[0])
        text = f"CAST(shiftright(`grouping_id`, {bit}) & 1 AS TINYINT)"
        return sqlglot.parse_one(text, dialect=Cql)

    def _ungrouped(self, node: exp.Column) -> DefinitionError:
        name = node.parts[0].name
        if self._names.spelling(name) is not None:
            return self._text.error(
                node,
                f"{name!r} has many values in a group: add it to GROUP BY, or aggregate it, for "
                f"example max({name}) or last({name})",
            )
        if name.lower() in _WINDOW_NAMES:
            return self._text.error(node, f"rows of this window have {self._heading!r} instead")
        return self._names.unknown_column(node, name, [self._heading])

    # -- names -----------------------------------------------------------------------------

    def _free_name(self, wanted: str, text: str) -> str:
        """Return an unused name for a column of the result rows."""
        number = 1
        name = wanted or text
        while name.lower() in self._taken:
            name = text if number == 1 else f"{text} #{number}"
            number += 1
        self._taken.add(name.lower())
        return name

    def _title_of(self, text: str) -> str:
        """Return the name under which an expression itself is selected; empty if it is not."""
        pairs = zip(self._titles, self._items, strict=True)
        return next((title for title, item in pairs if written(item) == text), "")

    def _is_key(self, node: exp.Expr) -> bool:
        """Return whether GROUP BY ALL groups by an item, one over columns of events alone."""
        names = [each.parts[0].name for each in node.find_all(exp.Column)]
        is_of_events = bool(names) and all(self._names.spelling(name) for name in names)
        return is_of_events and not any(self._calls.is_aggregate(each) for each in node.walk())

    def _count_at_least(self, keys: tuple[Named, ...]) -> None:
        """Add a count to a statement without aggregates, so that it returns its groups."""
        if not keys:
            raise self._text.error(
                self._shape.items[0].place,
                "nothing is aggregated: select an aggregate such as COUNT(*), or GROUP BY columns",
            )
        self._aggregates[self._free_name("count", "count(*)")] = AggregateCall("count", ())

    def _check_titles(self, columns: list[Named]) -> None:
        seen: set[str] = set()
        for each in columns:
            if each.name.lower() in seen:
                raise self._text.error(
                    each.place,
                    f"another column is also called {each.name!r}: rename it with AS",
                )
            seen.add(each.name.lower())


#: columns that windows of some kind have
_WINDOW_NAMES = ("window", "session_window", "window_start", "window_end", "time")


def _own_name(node: exp.Expr) -> str:
    """Return the name of a column or of a field; empty for other expressions."""
    if isinstance(node, exp.Dot):
        return str(node.expression.name)
    return str(node.name) if isinstance(node, exp.Column) else ""
