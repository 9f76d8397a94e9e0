"""`ice.sql`: statements become queries.

Idea: a statement becomes a tree of relations (`relations`), which rules simplify and `lowering`
turns into a query. Views and WITH are names for queries.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import replace
from functools import cache
from io import StringIO
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from sqlglot import exp

from icestream.api.events import Events
from icestream.api.result import Result
from icestream.api.stream import Stream
from icestream.core.errors import DefinitionError
from icestream.operators.object_aggregates.user_aggregates import UserAggregate
from icestream.sql.lowering.lower import lowered
from icestream.sql.relations.brackets import parse_statement
from icestream.sql.relations.names import Functions, NamedRelation, SourceTable, ViewText
from icestream.sql.relations.read import read_query
from icestream.sql.relations.rules import simplified
from icestream.sql.relations.show import shown
from icestream.sql.relations.tree import bare
from icestream.sql.statements.aggregates import called
from icestream.sql.statements.tokens import Text, statements


def sql(
    text: str,
    /,
    *,
    functions: Mapping[str, UserAggregate] | None = None,
    **tables: Stream | DataFrame,
) -> Any:
    """Make queries from SQL statements over streams and static tables.

        ice.sql("SELECT avg(waitTime) FROM calls [RANGE 1 HOUR SLIDE 1 SECOND]", calls=stream)

    Args:
        text: one statement, or several with `;` between them; `CREATE VIEW` names a query for the
            statements after it, and `EXPLAIN` before a statement returns a text about it.
        functions: user-defined aggregates, by the names the text uses.
        tables: streams (`ice.stream`) and static DataFrames, by the names the text uses.

    Returns:
        What the statement computes; for several statements, a list. It is started with
        `writeStream`: the `Result` of windows over one stream, `Events` for joins, tops and
        aggregates without a window, or a streaming DataFrame if Spark alone can compute it.

    Raises:
        DefinitionError: it shows the place in the text, and what to write instead.

    Examples:
        >>> statement = "SELECT COUNT(*) AS n FROM calls [RANGE 1 HOUR SLIDE 1 MINUTE]"
        >>> ice.sql(statement, calls=calls).columns
        ['window', 'n']
        >>> ice.sql("SELECT agent, COUNT(*) AS n FROM calls GROUP BY agent", calls=calls).columns
        ['agent', 'n']
    """
    given: object = text
    if not isinstance(given, str):
        msg = f"ice.sql takes the text of a statement; got {given!r}"
        raise DefinitionError(msg)
    own = {name.lower(): function for name, function in (functions or {}).items()}
    _check(tables, functions or {})
    session = _Statements(tables, own)
    results = [made for each in statements(text) if (made := session.run(each)) is not None]
    if not results:
        msg = "the text only creates views: add a SELECT that reads them"
        raise DefinitionError(msg)
    return results[0] if len(results) == 1 else results


class _Statements:
    """The statements of one text, which share views."""

    def __init__(
        self, tables: Mapping[str, Stream | DataFrame], own: Mapping[str, UserAggregate]
    ) -> None:
        self._tables = tables
        self._own = own
        self._names: dict[str, SourceTable | ViewText] = {
            name.lower(): _source(name, table) for name, table in tables.items()
        }
        known = [name for name in dir(sf) if name.islower() and not name.startswith("_")]
        frames = [t._parts[0].frame if isinstance(t, Stream) else t for t in tables.values()]
        exists = cache(frames[0].sparkSession.catalog.functionExists) if frames else None
        self._functions = Functions(frozenset(own), known, exists or (lambda name: True))

    def run(self, text: Text) -> Result | Events | DataFrame | str | None:
        """Return what a statement computes; None for a view, a text for EXPLAIN."""
        if text.tokens[0].text.upper() == "EXPLAIN":
            return self._explained(replace(text, tokens=text.tokens[1:]))
        tree = parse_statement(text)
        if isinstance(tree, exp.Create):
            self._create(tree, text)
            return None
        return lowered(self._read(tree, text), text, self._tables, self._own)

    def _read(self, tree: exp.Expr, text: Text) -> NamedRelation:
        if not isinstance(tree, exp.Query) and called(tree) not in ("istream", "dstream"):
            raise text.error(
                text.tokens[0], "a statement must be a SELECT, CREATE VIEW or EXPLAIN SELECT"
            )
        return read_query(tree, text, self._names, self._functions)

    def _create(self, tree: exp.Create, text: Text) -> None:
        if (tree.kind or "").upper() != "VIEW" or not isinstance(tree.expression, exp.Query):
            raise text.error(
                text.tokens[0], "only views can be created: CREATE VIEW v AS SELECT ..."
            )
        name = tree.this
        columns = name.expressions if isinstance(name, exp.Schema) else ()
        view = ViewText(tree.expression, text, dict(self._names), columns)
        # mistakes are reported where the view is defined
        read_query(view.tree, text, self._names, self._functions)
        self._names[(name.this if columns else name).name.lower()] = view

    def _explained(self, text: Text) -> str:
        if not text.tokens:
            msg = "EXPLAIN is followed by a statement"
            raise DefinitionError(msg)
        made = self.run(text)
        if made is None or isinstance(made, str):
            raise text.error(text.tokens[0], "EXPLAIN is followed by a SELECT")
        query = self._read(parse_statement(text), text)
        tree = shown(simplified(query.relation)) + "\n\n"
        if isinstance(made, DataFrame):
            return f"{tree}Spark runs this statement alone.\n"
        printed = StringIO()
        with redirect_stdout(printed):
            made.explain()
        return tree + bare(printed.getvalue())


def _source(name: str, table: Stream | DataFrame) -> SourceTable:
    if isinstance(table, DataFrame):
        return SourceTable(name, tuple(table.columns), None)
    part = table._parts[0]
    spelled = next((c for c in part.frame.columns if c.lower() == part.time.lower()), part.time)
    return SourceTable(name, tuple(part.frame.columns), spelled)


def _check(tables: Mapping[str, object], functions: Mapping[str, object]) -> None:
    for name, table in tables.items():
        if isinstance(table, Stream) or (isinstance(table, DataFrame) and not table.isStreaming):
            continue
        kind = "streaming DataFrame" if isinstance(table, DataFrame) else type(table).__name__
        msg = (
            f"{name} must be a stream or a static DataFrame; got a {kind}. Make a stream from a "
            f"streaming DataFrame: {name}=ice.stream(df, time=...)"
        )
        raise DefinitionError(msg)
    for name, function in functions.items():
        if not isinstance(function, UserAggregate):
            msg = f"function {name} must be an ice.UserAggregate; got {type(function).__name__}"
            raise DefinitionError(msg)
