"""Errors that point into a text."""

from __future__ import annotations

from icestream.core.text_errors import TextSpan, error_at, guess


def test_errors_point_at_the_place() -> None:
    text = "SELECT a,\n\tb + missing\nFROM s"
    start = text.index("missing")
    place = TextSpan(start, start + 7)
    assert str(error_at(text, place, "it is not there")).splitlines() == [
        "it is not there",
        "   b + missing",
        "       ^^^^^^^",
    ]
    assert str(error_at(text, place, "it is not there", numbered=True)).splitlines() == [
        "it is not there",
        "  line 2:  b + missing",
        "               ^^^^^^^",
    ]


def test_a_mark_stays_on_its_line() -> None:
    message = str(error_at("ab\ncd", TextSpan(1, 5), "wrong")).splitlines()
    assert message == ["wrong", "  ab", "   ^"]


def test_a_place_outside_of_the_text_is_shown_at_its_ends() -> None:
    for place, mark in ((TextSpan(-3, 1), "  ^"), (TextSpan(9, 9), "    ^")):
        assert str(error_at("ab", place, "wrong")).splitlines() == ["wrong", "  ab", mark]


def test_long_lines_are_shown_around_the_place() -> None:
    text = "x" * 300 + "HERE" + "y" * 300
    _, line, mark = str(error_at(text, TextSpan(300, 304), "wrong")).splitlines()
    start = mark.index("^")
    assert line[start : start + mark.count("^")] == "HERE"
    assert len(line) < 120


def test_guesses_are_close_or_none() -> None:
    assert guess("PRISE", ["volume", "Price"]) == "; did you mean 'Price'?"
    assert guess("quux", ["volume", "Price"]) == ""
