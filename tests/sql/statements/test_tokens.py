"""Statements of a text, and errors that point into it."""

from __future__ import annotations

import pytest

from icestream.core.errors import DefinitionError
from icestream.core.text_errors import TextSpan
from icestream.sql.statements.tokens import statements


def test_statements_end_at_semicolons() -> None:
    texts = statements("SELECT 1; ;\nSELECT 2;")
    assert [text.slice(text.place) for text in texts] == ["SELECT 1", "SELECT 2"]


def test_strings_and_comments_are_not_read_as_syntax() -> None:
    whole = """SELECT ';[' -- ; [
        FROM "a;b" /* ;[ */ ; SELECT `x;y`"""
    assert len(statements(whole)) == 2


@pytest.mark.parametrize("whole", ["", "  ", ";;", "-- nothing"])
def test_a_text_without_statements_is_refused(whole: str) -> None:
    with pytest.raises(DefinitionError, match="there is no statement; write for example SELECT"):
        statements(whole)


@pytest.mark.parametrize("opening", ["'", '"', "`", "/*"])
def test_what_is_never_closed_is_shown_where_it_opens(opening: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        statements(f"SELECT 'it' -- isn't\n, x {opening} FROM s")
    assert str(refused.value).splitlines() == [
        "this is opened but never closed",
        f"  line 2: , x {opening} FROM s",
        "              " + "^" * len(opening),
    ]


def test_errors_give_the_line_in_the_whole_text() -> None:
    _, text = statements("SELECT 1;\nSELECT a,\n\tb + missing\nFROM s")
    start = text.whole.index("missing")
    error = text.error(TextSpan(start, start + 7), "it is not there")
    assert str(error).splitlines() == [
        "it is not there",
        "  line 3:  b + missing",
        "               ^^^^^^^",
    ]


def test_keywords_are_found_outside_of_parentheses_and_strings() -> None:
    [text] = statements("SELECT f(LIMIT), 'LIMIT', `LIMIT` FROM s LIMIT 3")
    place = text.keyword("LIMIT")
    assert place is not None
    assert text.whole[place.start :] == "LIMIT 3"
    assert text.keyword("ORDER") is None
