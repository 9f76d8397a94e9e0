"""Text to expressions, and errors that point into it."""

from __future__ import annotations

import pytest

from icestream.core.errors import DefinitionError
from icestream.sql.expressions.compile import parse


@pytest.mark.parametrize(
    ("text", "message", "marked"),
    [
        ("a +", "something is missing", "+"),
        ("(a", "Expecting", "a"),
        ("a b c", "out of place", "c"),
        ("a, b", "write one expression", "b"),
        ("sum(a) over ()", "cannot contain this", "sum(a"),
        ("a + [1]", "cannot contain this", "1"),
        ("cast(a as map<int, int>)", "cannot be cast to MAP", "a"),
        ("m[0]", "name of a struct's field", "m[0"),
        ("interval 1 month + a", "months and years are not supported", "interval 1 month + a"),
        ("interval n days", "multiply one by a column", "n"),
        ("a in (select 1)", "IN takes a list", "a in (select 1"),
        ("extract(second from a)", r"second\(", "a"),
        ("300Y", "not a valid TINYINT", "300Y"),
        ("cast(a as decimal(40, 2))", "1 to 38 digits", "a as decimal(40, 2"),
        ("1" * 39, "at most 38 digits", "1" * 39),
    ],
)
def test_errors_point_at_the_place(text: str, message: str, marked: str) -> None:
    with pytest.raises(DefinitionError, match=message) as refused:
        parse(text)
    _, line, mark = str(refused.value).splitlines()
    assert line[mark.index("^") : mark.rindex("^") + 1] == marked


def test_places_are_found_on_later_lines() -> None:
    with pytest.raises(DefinitionError) as refused:
        parse("a\n + ) b")
    assert str(refused.value).splitlines()[1:] == ["   + ) b", "     ^"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there is no expression"),
        ("'abc", "never closed"),
        ("a; b", "without a semicolon"),
        ("a from t", "no other part of a query"),
        ("a where b", "no other part of a query"),
        ("*", "only in a list of results"),
        ("s.*", "name the fields"),
        ("exists(select 1)", "cannot contain this"),
    ],
)
def test_what_is_no_expression_is_refused(text: str, message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "a = b < c", "a < b = c", "a || b + c", "a - b || c", "a | b & c",
        "a < b between 1 and 2", "a = b not in (1)", "a <> b like 'x'",
    ],
)  # fmt: skip
def test_parentheses_are_asked_for_where_readers_differ(text: str) -> None:
    with pytest.raises(DefinitionError, match="put parentheses around one"):
        parse(text)
    for clear in ("a = (b < c)", "(a || b) + c", "a | b | c", "a = (b is null)", "a = not b"):
        parse(clear)
    assert parse("a = b is null") == parse("(a = b) is null")


def test_columns_named_like_words_of_sql_stand_in_backticks() -> None:
    with pytest.raises(DefinitionError, match="a column of this name is written `inner`"):
        parse("a + inner")
    assert parse("a + `inner`").name == "(a + `inner`)"


def test_aliases_and_names() -> None:
    assert parse("r1 * r2 AS product").name == "product"
    assert parse("a `two words`").name == "two words"
    assert parse("User").name == "User"
    assert parse("s.Field").name == "Field"
    assert parse("A*2").name == "(A * 2)"
