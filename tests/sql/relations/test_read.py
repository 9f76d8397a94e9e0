"""The outer form of statements, and the clauses that are refused."""

from __future__ import annotations

import pytest

from icestream.core.errors import DefinitionError
from icestream.plan.windows.frame import Frame
from tests.fixtures.cql_statements import NameScope, describe

SCOPE = NameScope({"s": ["ts", "a", "b", "xs"], "t": ["ts", "a"]})

#: a statement, what it is told to do, and the words that points at
REFUSED: dict[str, tuple[str, str]] = {
    "SELECT * FROM s [ROWS 5]": ("name the keys and aggregates", "*"),
    "SELECT s.*, count(*) FROM s [ROWS 5]": ("name the keys and aggregates", "s.*"),
    "SELECT count(*) FROM s [ROWS 5] ORDER BY a": ("when you read it", "ORDER BY"),
    "SELECT count(*) FROM s [ROWS 5] SORT BY a": ("a stream is not sorted", "SORT BY"),
    "SELECT count(*) FROM s [ROWS 5] LIMIT 3": ("LIMIT needs ORDER BY", "LIMIT"),
    "SELECT count(*) FROM s [ROWS 5], t [NOW]": (r"in a join write \[RANGE", "ROWS 5"),
    "SELECT count(*) FROM s [NOW] JOIN t [ROWS 5] ON s.a = t.a": ("in a join", "ROWS 5"),
    "SELECT count(*) FROM s [RANGE 1 HOUR SLIDE 2 ROWS] LEFT JOIN t ON s.a = t.a": (
        "in a join", "RANGE 1 HOUR SLIDE",
    ),
    "SELECT count(*) FROM s [ROWS 5] UNION ALL SELECT 1": ("add FROM", "1"),
    "SELECT count(*) FROM s [ROWS 5] LATERAL VIEW explode(xs) x": ("explode in", "LATERAL"),
    "SELECT count(*) FROM s [ROWS 5] QUALIFY a > 1": ("'a' has many values", "a"),
    "WITH q AS (SELECT max(a) AS n FROM s) SELECT count(*) FROM q [ROWS 5]": (
        "follows a stream: this has no time", "ROWS 5",
    ),
    "SELECT count(*) FROM (SELECT 1 AS n) [ROWS 5]": ("name of a stream", "["),
    "SELECT count((SELECT 1 AS n)) FROM s [ROWS 5]": ("one column and one row", "1 AS n"),
    "SELECT sum(a) OVER (PARTITION BY b) FROM s [ROWS 5]": ("OVER goes around", "sum(a"),
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
    assert statement.window == Frame(rows=5, partition="stream")


def test_brackets_elsewhere_are_elements_of_arrays() -> None:
    [statement] = describe(
        "SELECT sum(xs[0]) AS n, a IS DISTINCT FROM b AS other FROM s [ROWS 5] "
        "WHERE xs[1] > 0 GROUP BY a, b HAVING count(xs[2]) > 1",
        SCOPE,
    )
    assert [each.arguments for each in statement.aggregates.values()] == [("xs[0]",), ("xs[2]",)]
    assert statement.columns["other"] == "`a` IS DISTINCT FROM `b`"
    assert statement.window == Frame(rows=5, partition="stream")
