"""The outer form of a statement: SELECT items FROM one stream with one window, and nothing else.

Idea: the brackets after the stream's name are not SQL. They are found among the tokens, blanked out
of the text that sqlglot parses, and read by `windows`. Clauses that have no meaning on a stream, or
that Icestream expresses differently, are refused here with what to write instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import Token, TokenType, exp

from icestream.core.errors import DefinitionError
from icestream.core.text_errors import TextSpan, guess
from icestream.sql.statements.tokens import Text, with_depth
from icestream.sql.statements.windows import Window, parse_window

_TWO_STREAMS = (
    "a statement with a window in brackets reads one stream: combine streams with the same columns "
    "with a.union(b), and write joins without brackets, of TUMBLE(TABLE s, DESCRIPTOR(time), ...)"
)
_ON_A_TABLE = "write the rows to a table and do it when you read them"
#: arguments of sqlglot's SELECT: the keywords they start with, and what to do instead
_REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "with": (("WITH",), "WITH is not supported: write separate statements with ';' between them"),
    "hint": (("SELECT",), "hints have no effect here: remove them"),
    "distinct": (
        ("DISTINCT",), "the rows of a window are already distinct: name the columns in GROUP BY"
    ),
    "joins": (("JOIN", "CROSS", "LEFT", "RIGHT", "FULL", "INNER", ","), _TWO_STREAMS),
    "laterals": (("LATERAL",), "LATERAL is not supported: explode in Spark before ice.stream"),
    "qualify": (("QUALIFY",), "QUALIFY is not supported: conditions on rows go into HAVING"),
    "windows": (("WINDOW",), "write the window in brackets after the stream's name"),
    "order": (("ORDER",), f"rows are emitted window by window, without an order: {_ON_A_TABLE}"),
    "sort": (("SORT",), f"rows are emitted window by window, without an order: {_ON_A_TABLE}"),
    "cluster": (("CLUSTER",), "CLUSTER BY is not supported: use writeStream.partitionBy(...)"),
    "distribute": (
        ("DISTRIBUTE",), "DISTRIBUTE BY is not supported: use writeStream.partitionBy(...)"
    ),
    "limit": (
        ("LIMIT",),
        "a stream does not end, so LIMIT has no meaning: use HAVING, or approx_top_k for the most "
        "frequent values",
    ),
    "offset": (("OFFSET",), f"OFFSET is not supported: {_ON_A_TABLE}"),
}  # fmt: skip

_AFTER_FROM = (
    TokenType.WHERE, TokenType.GROUP_BY, TokenType.HAVING, TokenType.ORDER_BY, TokenType.LIMIT,
    TokenType.UNION, TokenType.INTERSECT, TokenType.EXCEPT, TokenType.QUALIFY,
)  # fmt: skip


@dataclass(frozen=True)
class SelectItem:
    """One element of the SELECT list."""

    expression: exp.Expr
    alias: str | None
    #: its place, including the alias
    place: TextSpan


@dataclass(frozen=True)
class StatementShape:
    """The parts of a statement."""

    tree: exp.Select
    #: the name of the stream as given
    stream: str
    #: the statement's names for it, in lower case
    callings: tuple[str, ...]
    window: Window
    window_place: TextSpan
    #: places of the columns of PARTITION BY
    partition_places: tuple[TextSpan, ...]
    items: tuple[SelectItem, ...]


def read_shape(text: Text, streams: Sequence[str]) -> StatementShape:
    """Read the shape of a statement: take its outer form apart."""
    brackets = window_brackets(text)
    tree = text.parse([TextSpan(place.start - 1, place.end + 1) for place in brackets])
    select = _checked(text, tree)
    table = _table(text, select)
    stream = _stream(text, table, streams)
    if not brackets:
        raise text.error(
            table.this,
            f"the stream needs a window: {table.name} [RANGE 1 HOUR SLIDE 1 MINUTE], or "
            f"{table.name} [RANGE 1 HOUR] for a result per event",
        )
    window, partition_places = parse_window(text, brackets[0])
    alias = (table.alias.lower(),) if table.alias else ()
    return StatementShape(
        select,
        stream,
        alias or (table.name.lower(),),
        window,
        brackets[0],
        partition_places,
        _items(text, select),
    )


def window_brackets(text: Text) -> list[TextSpan]:
    """Return the contents of the brackets between FROM and the next clause."""
    places: list[TextSpan] = []
    opened: Token | None = None
    before: Token | None = None
    is_inside = False
    for token, depth in with_depth(text.tokens):
        if depth == 0 and token.token_type is TokenType.FROM:
            is_inside = before is None or before.token_type is not TokenType.DISTINCT
        elif depth == 0 and token.token_type in _AFTER_FROM:
            is_inside = False
        elif is_inside and depth == 0 and token.token_type is TokenType.L_BRACKET:
            opened = token
        elif opened is not None and depth == 0 and token.token_type is TokenType.R_BRACKET:
            places.append(TextSpan(opened.end + 1, token.start))
            opened = None
        before = token
    if opened is not None:
        raise text.error(opened, "this bracket is never closed")
    return places


def _checked(text: Text, tree: exp.Expr) -> exp.Select:
    """Return the tree if it is a SELECT without unsupported clauses."""
    if isinstance(tree, exp.SetOperation):
        raise text.error(
            text.keyword("UNION", "INTERSECT", "EXCEPT", "MINUS") or text.place,
            "statements cannot be combined: union the streams with a.union(b), or write the rows "
            "of both statements to one table",
        )
    if not isinstance(tree, exp.Select) or text.tokens[0].token_type is not TokenType.SELECT:
        first = text.tokens[0]
        if first.token_type is TokenType.WITH:
            raise text.error(first, _REFUSED["with"][1])
        raise text.error(first, "a statement must be a SELECT")
    for argument, (words, message) in _REFUSED.items():
        if tree.args.get(argument) or tree.args.get(f"{argument}_"):
            raise text.error(text.keyword(*words) or text.place, message)
    return tree


def _table(text: Text, select: exp.Select) -> exp.Table:
    clause = select.args.get("from_") or select.args.get("from")
    if clause is None:
        raise text.error(text.place, "the statement reads no stream: add FROM and a name")
    table = clause.this
    if not isinstance(table, exp.Table) or not isinstance(table.this, exp.Identifier):
        raise text.error(
                table, "FROM is followed by the name of a stream; nested queries and table "
            "functions are not supported"
        )  # fmt: skip
    for argument in ("sample", "pivots", "joins", "laterals", "version", "when"):
        if table.args.get(argument):
            raise text.error(table.this, "only a window may follow the stream's name")
    return table


def _stream(text: Text, table: exp.Table, streams: Sequence[str]) -> str:
    name = table.name
    if table.args.get("db"):
        raise text.error(table, _unknown_stream(".".join(p.name for p in table.parts), streams))
    if name in streams:
        return name
    alike = [each for each in streams if each.lower() == name.lower()]
    if len(alike) != 1:
        raise text.error(table.this, _unknown_stream(name, streams))
    return alike[0]


def _unknown_stream(name: str, streams: Sequence[str]) -> str:
    if not streams:
        return f"no streams were given: ice.sql(text, {name}=stream)"
    return f"there is no stream {name!r}{guess(name, streams) or '.'} Given: {list(streams)}"


def _items(text: Text, select: exp.Select) -> tuple[SelectItem, ...]:
    """Pair the expressions of the SELECT list with their places in the text."""
    runs: list[list[Token]] = [[]]
    for token, depth in with_depth(text.tokens[1:]):
        if depth == 0 and token.token_type is TokenType.FROM and not _is_distinct_from(runs[-1]):
            break
        if depth == 0 and token.token_type is TokenType.COMMA:
            runs.append([])
        else:
            runs[-1].append(token)
    places = [TextSpan(run[0].start, run[-1].end + 1) for run in runs if run]
    if len(places) != len(runs) or len(places) != len(select.expressions):
        raise _misplaced_comma(text, runs)
    return tuple(
        SelectItem(node.unalias(), node.alias or None, place)
        for node, place in zip(select.expressions, places, strict=True)
    )


def _is_distinct_from(run: Sequence[Token]) -> bool:
    return bool(run) and run[-1].token_type is TokenType.DISTINCT


def _misplaced_comma(text: Text, runs: Sequence[Sequence[Token]]) -> DefinitionError:
    empty = next((i for i, run in enumerate(runs) if not run), 0)
    place = text.keyword(",") if empty == 0 else _behind(runs[empty - 1][-1])
    return text.error(place or text.place, "an expression is missing next to this comma")


def _behind(token: Token) -> TextSpan:
    return TextSpan(token.end + 1, token.end + 2)
