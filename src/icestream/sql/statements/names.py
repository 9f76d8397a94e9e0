"""Names in a statement: the columns of the stream and the functions of Spark.

Idea: columns are first rewritten to the spelling of the stream, without the stream's name as a
qualifier. Then two expressions are the same if their texts are equal.

Invariants:
1. An error about an unknown name suggests the closest known name
   (`test_unknown_names_come_with_a_guess`).
2. Case and the stream's name make no difference (`test_columns_are_the_same_in_any_case`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from icestream.core.errors import DefinitionError
from icestream.core.text_errors import TextSpan, guess
from icestream.sql.statements.aggregates import ABSENT, NAMES, called
from icestream.sql.statements.dialect import Cql, written
from icestream.sql.statements.tokens import Text


@dataclass(frozen=True)
class NameScope:
    """The names that a text may use."""

    #: columns of each stream
    streams: Mapping[str, Sequence[str]]
    #: names of the user's own aggregates
    functions: Collection[str] = ()
    #: well-known functions of Spark, for suggestions
    scalars: Collection[str] = ()
    #: returns whether Spark has a function
    exists: Callable[[str], bool] = lambda name: True


@dataclass(frozen=True)
class Names:
    """The names of one statement."""

    text: Text
    scope: NameScope
    stream: str
    #: the statement's names for the stream
    callings: tuple[str, ...]

    @property
    def columns(self) -> Sequence[str]:
        """Return the columns of the stream."""
        return self.scope.streams[self.stream]

    def spelling(self, name: str) -> str | None:
        """Return a column in the stream's spelling: an exact match, or one in another case."""
        if name in self.columns:
            return name
        return next((each for each in self.columns if each.lower() == name.lower()), None)

    def as_written(self, spelling: str) -> str:
        """Return a column of the stream as expressions contain it."""
        return written(self.tidy(exp.column(spelling)))

    def tidy(self, tree: exp.Expr) -> exp.Expr:
        """Return a tree in which columns of the stream have one spelling."""
        return tree.transform(self._tidied)

    def _tidied(self, node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Column) or isinstance(node.this, exp.Star):
            return node
        parts = [_quoted_where_needed(part) for part in node.parts]
        if len(parts) > 1 and parts[0].name.lower() in self.callings:
            parts = parts[1:]
        spelling = self.spelling(parts[0].name)
        if spelling is None:
            return node if len(parts) == len(node.parts) else _path(parts)
        parts[0] = _quoted_where_needed(parts[0], spelling)
        return _path(parts)

    def event_expression(self, tree: exp.Expr) -> str:
        """Return an expression over the columns of one event, for Spark."""
        for node in tree.walk():
            self.check_form(node)
            name = called(node)
            if self._is_aggregate(name):
                raise self.text.error(
                    node, f"{name} is an aggregate, not allowed here: aggregates are computed "
                    "over windows, and conditions on them go into HAVING"
                )  # fmt: skip
            if isinstance(node, exp.Column) and self.spelling(node.parts[0].name) is None:
                raise self.unknown_column(node, node.parts[0].name)
        return written(tree)

    def check_form(self, node: exp.Expr) -> None:
        """Refuse what is not allowed in any expression of a statement."""
        if isinstance(node, exp.Window):
            raise self.text.error(
                node, "OVER is not supported: write the window in brackets after the stream's name"
            )
        if isinstance(node, exp.Query):
            raise self.text.error(
                node, "nested queries are not supported: start the inner one, write its rows to a "
                "table and read that as a stream"
            )  # fmt: skip
        if isinstance(node, exp.Star) or isinstance(node.this, exp.Star):
            raise self.text.error(node, "* is not supported: name the keys and aggregates you want")
        if isinstance(node, exp.DataType) and node.is_type("time"):
            raise self.text.error(
                node, "the type TIME cannot be used here: use strings or timestamps"
            )
        if isinstance(node, exp.Anonymous):
            self._check_function(node)

    def _check_function(self, node: exp.Anonymous) -> None:
        name = node.name.lower()
        if self._is_aggregate(name) or isinstance(node.parent, exp.Dot):
            return
        if not self.scope.exists(name):
            known = (*NAMES, *self.scope.functions, *self.scope.scalars)
            raise self.text.error(node, f"there is no function {node.name!r}{guess(name, known)}")

    def _is_aggregate(self, name: str | None) -> bool:
        own = [each.lower() for each in self.scope.functions]
        return name is not None and (name in NAMES or name in ABSENT or name in own)

    def unknown_column(
        self, where: exp.Expr | TextSpan, name: str, others: Collection[str] = ()
    ) -> DefinitionError:
        """Return the error for an unknown column."""
        known = [*self.columns, *others]
        hint = guess(name, known) or "."
        return self.text.error(where, f"there is no column {name!r}{hint} The columns are {known}")


def _quoted_where_needed(part: exp.Expr, spelling: str | None = None) -> exp.Expr:
    """Return an identifier in the canonical form of all its spellings."""
    name = part.name if spelling is None else spelling
    plain = (
        re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) and name.upper() not in Cql.Tokenizer.KEYWORDS
    )
    copy = part.copy()
    copy.set("this", name)
    copy.set("quoted", not plain)
    return copy


def _path(parts: Sequence[exp.Expr]) -> exp.Expr:
    """Return a column, or a field inside one."""
    path: exp.Expr = exp.Column(this=parts[0])
    for part in parts[1:]:
        path = exp.Dot(this=path, expression=part)
    return path
