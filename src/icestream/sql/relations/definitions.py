"""What a statement may name: streams, tables, views and functions; and what it becomes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from icestream.sql.relations.names import ColumnScope
from icestream.sql.relations.tree import Relation
from icestream.sql.statements.tokens import Text


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
