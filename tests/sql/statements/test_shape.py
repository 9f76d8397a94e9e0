"""The outer form of statements, and the clauses that are refused."""

from __future__ import annotations

import pytest

from icestream.core.errors import DefinitionError
from icestream.sql.statements.names import NameScope
from icestream.sql.statements.windows import RowsWindow
from tests.fixtures.cql_statements import describe

SCOPE = NameScope({"s": ["ts", "a", "b", "xs"], "t": ["ts", "a"]})

#: a statement, what it is told to do, and the words that points at
REFUSED: dict[str, tuple[str, str]] = {
    "SELECT * FROM s [ROWS 5]": ("name the keys and aggregates", "*"),
    "SELECT s.*, count(*) FROM s [ROWS 5]": ("name the keys and aggregates", "s.*"),
    "SELECT DISTINCT a FROM s [ROWS 5] GROUP BY a": ("in GROUP BY", "DISTINCT"),
    "SELECT count(*) FROM s [ROWS 5] ORDER BY a": ("when you read them", "ORDER BY"),
    "SELECT count(*) FROM s [ROWS 5] SORT BY a": ("when you read them", "SORT BY"),
    "SELECT count(*) FROM s [ROWS 5] LIMIT 3": ("use HAVING, or approx_top_k", "LIMIT"),
    "SELECT count(*) FROM s [ROWS 5], t [ROWS 5]": (r"a.union\(b\)", ","),
    "SELECT count(*) FROM s [ROWS 5] JOIN t [ROWS 5] ON s.a = t.a": ("one stream", "JOIN"),
    "SELECT count(*) FROM s [ROWS 5] LEFT JOIN t ON s.a = t.a": ("one stream", "LEFT"),
    "SELECT count(*) FROM s [ROWS 5] UNION ALL SELECT 1": ("cannot be combined", "UNION"),
    "SELECT count(*) FROM s [ROWS 5] LATERAL VIEW explode(xs) x": ("explode in", "LATERAL"),
    "SELECT count(*) FROM s [ROWS 5] QUALIFY a > 1": ("HAVING", "QUALIFY"),
    "WITH q AS (SELECT 1) SELECT count(*) FROM q [ROWS 5]": ("separate statements", "WITH"),
    "INSERT INTO q SELECT count(*) FROM s [ROWS 5]": ("must be a SELECT", "INSERT"),
    "FROM s [ROWS 5] SELECT count(*)": ("must be a SELECT", "FROM"),
    "SELECT count(*) FROM (SELECT 1 AS n) [ROWS 5]": ("name of a stream", "1 AS n"),
    "SELECT count((SELECT 1 AS n)) FROM s [ROWS 5]": ("nested queries", "1 AS n"),
    "SELECT count(*) FROM s [ROWS 5] WHERE a IN (SELECT b FROM t)": ("nested queries", "b FROM t"),
    "SELECT sum(a) OVER (PARTITION BY b) FROM s [ROWS 5]": ("in brackets", "sum(a"),
    "SELECT count(*) FROM s": (r"needs a window: s \[RANGE 1 HOUR SLIDE 1 MINUTE\]", "s"),
    "SELECT count(*) FROM s WHERE xs[0] = 1": ("needs a window", "s"),
    "SELECT count(*) FROM s [ROWS 5": ("never closed", "["),
    "SELECT count(*)": ("add FROM", "SELECT count(*)"),
    "SELECT count(*), FROM s [ROWS 5]": ("next to this comma", ","),
    "SELECT , count(*) FROM s [ROWS 5]": ("next to this comma", ","),
    "SELECT sum(a FROM s [ROWS 5]": (r"Expecting \)", "FROM"),
    "SELECT count(*) FROM s [ROWS 5] WHERE": ("missing or out of place", "WHERE"),
    "SELECT count(*) n m FROM s [ROWS 5]": ("missing or out of place", "m"),
    "SELECT 1 FROM s [ROWS 5]": ("nothing is aggregated", "1"),
}  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_not_done_is_refused(text: str) -> None:
    message, words = REFUSED[text]
    with pytest.raises(DefinitionError, match=message) as refused:
        describe(text, SCOPE)
    _, line, mark = str(refused.value).splitlines()
    start = mark.index("^")
    assert line[start : start + mark.count("^")].startswith(words)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT count(*) AS n FROM s[ROWS 5]",
        "SELECT count(*) AS n FROM s [ROWS 5] AS q",
        "SELECT count(*) AS n FROM s AS q [ROWS 5]",
        "SELECT count(*) AS n FROM s q\n[ -- the last\n ROWS 5]",
        "SELECT /* ] */ count(*) AS n FROM s /* [ */ [ROWS 5] -- done",
    ],
)
def test_the_window_follows_the_stream_or_its_alias(text: str) -> None:
    [statement] = describe(text, SCOPE)
    assert statement.window == RowsWindow(5)


def test_brackets_elsewhere_are_elements_of_arrays() -> None:
    [statement] = describe(
        "SELECT sum(xs[0]) AS n, a IS DISTINCT FROM b AS other FROM s [ROWS 5] "
        "WHERE xs[1] > 0 GROUP BY a, b HAVING count(xs[2]) > 1",
        SCOPE,
    )
    assert [each.arguments for each in statement.aggregates.values()] == [("xs[0]",), ("xs[2]",)]
    assert statement.columns[2].expression == "`a` IS DISTINCT FROM `b`"
    assert statement.window == RowsWindow(5)
