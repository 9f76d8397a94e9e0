from __future__ import annotations

import pytest
import sqlglot
from sqlglot import exp

from icestream.sql.statements.dialect import Cql, column, written

CALLS = (
    "to_char(x, '99G999')",
    "instr(a, 'b', 1, 2)",
    "parse_json(x)",
    "to_timestamp(x, 'y')",
    "nvl(a, b)",
    "date_add(day, 3)",
    "struct(a, b)",
    "transform(xs, x -> x + y)",
    "log(x)",
    "regexp_replace(x, '\\\\d+', '#')",
    "unheard_of(1, 'a', b)",
    "max_by(a, b, 3)",
    "listagg(x)",
    "percentile(x, 0.5, y)",
)


@pytest.mark.parametrize("text", CALLS)
def test_functions_are_written_as_they_were_read(text: str) -> None:
    assert written(sqlglot.parse_one(text, dialect=Cql)) == text


def test_comments_are_not_written() -> None:
    assert written(sqlglot.parse_one("a /* of b */ + 1", dialect=Cql)) == "a + 1"


def test_calls_are_the_same_in_any_case() -> None:
    upper, lower = (sqlglot.parse_one(text, dialect=Cql) for text in ("F(x)", "f(x)"))
    assert written(upper) == written(lower) == "f(x)"


def test_columns_of_any_name_can_be_written() -> None:
    assert written(column("sum(`a b`)")) == "`sum(``a b``)`"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("'it''s'", "it's"),
        ("''''", "'"),
        ("'''x'''", "'x'"),
        ('"say ""hi"""', 'say "hi"'),
        (r"'a\\''b'", "a\\'b"),
        (r"'\"'", '"'),
        ("\"it''s\"", "it''s"),
        ("'a\"'", 'a"'),
    ],
)
def test_quotes_in_texts_may_be_doubled_as_in_spark(text: str, value: str) -> None:
    (tree,) = Cql().parse(f"SELECT {text}")
    assert isinstance(tree, exp.Select)
    assert tree.selects[0].this == value


def test_what_is_no_query_prints_nothing(caplog: pytest.LogCaptureFixture) -> None:
    sqlglot.parse_one("CREATE VIEW b SLIDE SELECT 1", read=Cql)
    assert caplog.records == []
