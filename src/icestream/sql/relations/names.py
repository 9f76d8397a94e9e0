"""Names of statements: what they stand for, and columns, resolved by scope.

Idea: a scope lists the columns that a clause sees, each with the names under which it may be
called: its own, and that of its relation. Resolving replaces a name by the column itself.

Invariants:
1. A name that stands for two columns is refused (`test_a_name_of_two_columns_is_ambiguous`).
2. An unknown name comes with the closest known one (`test_unknown_columns_come_with_a_guess`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from sqlglot import exp

from icestream.core.errors import DefinitionError
from icestream.core.text_errors import guess
from icestream.sql.relations.tree import Relation, WindowTable
from icestream.sql.statements.tokens import Text


@dataclass(frozen=True)
class ScopedColumn:
    """A column and the name under which a clause may call it."""

    #: lower-case name of its relation; None if it has none
    relation: str | None
    name: str
    column: str
    #: whether `*` includes it
    starred: bool = True
    #: whether `*` has a column of USING instead, and only that of its relation includes it
    is_used: bool = False


@dataclass(frozen=True)
class ColumnScope:
    """The columns that a clause sees."""

    entries: tuple[ScopedColumn, ...]
    #: the windows that rows belong to
    windows: tuple[WindowTable, ...] = ()

    def and_(self, other: ColumnScope) -> ColumnScope:
        return ColumnScope(self.entries + other.entries, self.windows + other.windows)

    def called(self, relation: str | None) -> ColumnScope:
        """Return the columns under the name of a relation."""
        if relation is None:
            return self
        return ColumnScope(
            tuple(
                replace(each, relation=relation.lower()) for each in self.entries if each.starred
            ),
            self.windows,
        )

    def find(self, parts: Sequence[str]) -> tuple[set[str], int]:
        """Return the columns that a dotted name may mean, and how many of its parts it takes."""
        lowered = [part.lower() for part in parts]
        if len(parts) > 1:
            found = {
                each.column
                for each in self.entries
                if each.relation == lowered[0] and each.name.lower() == lowered[1]
            }
            if found:
                return found, 2
        named = [each for each in self.entries if each.name.lower() == lowered[0]]
        named = [each for each in named if not each.is_used] or named
        exact = {each.column for each in named if each.name == parts[0]}
        return exact or {each.column for each in named}, 1

    def own_name(self, node: exp.Expr) -> str:
        """Return the name of a column as its source spells it, or of a field; else nothing."""
        if isinstance(node, exp.Dot):
            return str(node.expression.name)
        if not isinstance(node, exp.Column):
            return ""
        found, used = self.find([part.name for part in node.parts])
        names = [each.name for each in self.entries if each.column in found | {node.name}]
        return names[0] if names and used == len(node.parts) else str(node.parts[-1].name)

    @property
    def names(self) -> list[str]:
        """Return the names that `*` stands for."""
        return [each.name for each in self.entries if each.starred]

    def stars(self, relation: str | None) -> list[ScopedColumn]:
        """Return the columns of `*` or of `relation.*`."""
        if relation is None:
            return [each for each in self.entries if each.starred]
        own = [each for each in self.entries if each.relation == relation.lower()]
        return [each for each in own if each.starred or each.is_used]


class ColumnNumbers:
    """Makes names for columns that nothing else has."""

    def __init__(self) -> None:
        """Start with 1."""
        self._next = count(1)

    def new(self, name: str) -> str:
        plain = re.sub(r"\Ac\d+_", "", re.sub(r"[^A-Za-z0-9_]", "_", name))
        return f"c{next(self._next)}_{plain[:40]}"


def reference(column: str, at: exp.Expr | None = None) -> exp.Column:
    """Return a resolved name: a reference to a column, at the place of another node."""
    made = exp.column(column)
    made.meta["resolved"] = True
    if at is not None:
        spans = [each.meta for each in at.walk() if "start" in each.meta]
        if spans:
            made.meta["start"] = min(each["start"] for each in spans)
            made.meta["end"] = max(each["end"] for each in spans)
    return made


def is_resolved(node: exp.Expr) -> bool:
    """Return whether the name in a node is resolved to a column."""
    return isinstance(node, exp.Column) and "resolved" in node.meta


def is_known(node: exp.Column, scope: ColumnScope) -> bool:
    """Return whether a scope has a column of a name."""
    return is_resolved(node) or bool(scope.find([part.name for part in node.parts])[0])


def resolved(node: exp.Expr, scopes: Sequence[ColumnScope], text: Text) -> exp.Expr:
    """Resolve the names in an expression to columns of the first scope that has them."""

    def change(each: exp.Expr) -> exp.Expr:
        if not isinstance(each, exp.Column) or is_resolved(each) or each.find(exp.Star):
            return each
        return _column(each, scopes, text)

    return node.transform(change)


def _column(node: exp.Column, scopes: Sequence[ColumnScope], text: Text) -> exp.Expr:
    parts = [part.name for part in node.parts]
    for scope in scopes:
        found, used = scope.find(parts)
        if len(found) > 1:
            raise _ambiguous(node, scope, text)
        if found:
            path: exp.Expr = reference(found.pop(), node)
            for part in node.parts[used:]:
                path = exp.Dot(this=path, expression=part.copy())
            return path
    raise unknown_column(node, scopes[0], text)


def unknown_column(
    node: exp.Column, scope: ColumnScope, text: Text, heading: str | None = None
) -> DefinitionError:
    """Return the error for a name that no column has, nor the window, whose column may be named."""
    relations = {each.relation for each in scope.entries if each.relation}
    qualifier = node.parts[0].name.lower() if len(node.parts) > 1 else None
    if qualifier is not None and qualifier not in relations:
        hint = guess(qualifier, relations) or "."
        return text.error(
            node,
            f"there is no table {node.parts[0].name!r} here{hint} FROM has {sorted(relations)}",
        )
    known = _names(each for each in scope.entries if qualifier in (None, each.relation))
    known += [heading] if heading else []
    hint = guess(node.parts[-1].name, known) or "."
    return text.error(
        node.parts[-1], f"there is no column {node.parts[-1].name!r}{hint} The columns are {known}"
    )


def _ambiguous(node: exp.Column, scope: ColumnScope, text: Text) -> DefinitionError:
    name = node.parts[-1].name
    choices = [
        f"{each.relation}.{each.name}"
        for each in scope.entries
        if each.name.lower() == name.lower() and each.relation
    ]
    return text.error(node, f"{name!r} may mean several columns: write {' or '.join(choices)}")


def _names(entries: Iterable[ScopedColumn]) -> list[str]:
    return list(dict.fromkeys(each.name for each in entries if each.starred))


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
    #: where the name came with names for its columns
    columns: Sequence[exp.Expr] = ()


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
