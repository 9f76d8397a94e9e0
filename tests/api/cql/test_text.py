"""Statements of a text, and errors that point into it."""

from __future__ import annotations

import pytest

from icestream.api.cql.text import Place, error_at, guess, statements
from icestream.core.errors import DefinitionError


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
        "this is opened and never closed",
        f"  line 2: , x {opening} FROM s",
        "              " + "^" * len(opening),
    ]


def test_errors_point_at_the_place() -> None:
    text = "SELECT a,\n\tb + missing\nFROM s"
    start = text.index("missing")
    error = error_at(text, Place(start, start + 7), "it is not there")
    assert str(error).splitlines() == [
        "it is not there",
        "  line 2:  b + missing",
        "               ^^^^^^^",
    ]


def test_a_mark_stays_on_its_line() -> None:
    told = str(error_at("ab\ncd", Place(1, 5), "wrong")).splitlines()
    assert told == ["wrong", "  line 1: ab", "           ^"]


def test_long_lines_are_shown_around_the_place() -> None:
    text = "x" * 300 + "HERE" + "y" * 300
    _, line, mark = str(error_at(text, Place(300, 304), "wrong")).splitlines()
    start = mark.index("^")
    assert line[start : start + mark.count("^")] == "HERE"
    assert len(line) < 120


def test_guesses_are_close_or_none() -> None:
    assert guess("PRISE", ["volume", "Price"]) == "; did you mean 'Price'?"
    assert guess("quux", ["volume", "Price"]) == ""


def test_keywords_are_found_outside_of_parentheses_and_strings() -> None:
    [text] = statements("SELECT f(LIMIT), 'LIMIT', `LIMIT` FROM s LIMIT 3")
    place = text.keyword("LIMIT")
    assert place is not None
    assert text.whole[place.start :] == "LIMIT 3"
    assert text.keyword("ORDER") is None
