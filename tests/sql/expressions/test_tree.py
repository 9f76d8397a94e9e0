"""The one text of an expression."""

from __future__ import annotations

import pickle

import pytest

from icestream.sql.expressions.compile import parse

SPELLINGS = [
    ("rating>3 AND item IS NOT NULL", "(Rating > 3) and not (ITEM is null)"),
    ("Coalesce( a,1 )", "coalesce(`a`, 1)"),
    ("a != b", "a <> b"),
    ("a == b", "a = b"),
    ("!a", "NOT a"),
    ("a between 1 and 2", "a >= 1 and a <= 2"),
    ("if(a, b, c)", "case when a then b else c end"),
    ("case a when 1 then 2 end", "case when a = 1 then 2 end"),
    ("s['x']", "s.x"),
    ("a::int", "cast(a as INT)"),
    ("int(a)", "cast(a as integer)"),
    ("a || b", "concat(a, b)"),
    ("interval 90 minutes", "interval '01:30' hour to minute"),
    ("interval 1 week", "interval 7 days"),
    ("trim(both 'x' from a)", "trim('x', a)"),
    ("a /* note */ + 1 -- note", "a+1"),
    ("1e3", "1000D"),
    ("extract(year from a)", "year(a)"),
]
TEXTS = [
    *(text for pair in SPELLINGS for text in pair),
    "1.", "0.05", "-1L", "5S", "-128Y", "2147483648", "9223372036854775808", "1.5F", "-a", "- -1",
    "`inner` + `From`", "date + timestamp",
    "user - index", "a not like 'x' escape '/'", r"s = 'it\'s\n'", "'it''s'", "a <=> null",
    "try_cast(a as double)",
    "a not in (1, 'x', null)", "case when a then 1 end", "`a b`.`c``d`", "struct(a, b).c",
    "timestamp '2024-01-01'", "interval '1.5' second", "a is true", "~a & b", "(a | b) ^ c",
    "true or null",
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), SPELLINGS)
def test_equal_expressions_have_one_text(one: str, other: str) -> None:
    a, b = parse(one), parse(other)
    assert str(a) == str(b)
    assert a == b
    assert hash(a) == hash(b)


@pytest.mark.parametrize("text", TEXTS)
def test_the_text_reads_back_as_the_same_expression(text: str) -> None:
    expression = parse(text)
    assert parse(str(expression)) == expression
    assert str(parse(str(expression))) == str(expression)


def test_different_expressions_differ() -> None:
    texts = ["1", "1L", "1.0", "1e0", "'1'", "true", "1.00", "1S"]
    assert len({parse(text) for text in texts}) == len(texts)
    assert len({str(parse(text)) for text in texts}) == len(texts)
    assert parse("a") != parse("a AS b")
    assert parse("a - b") != parse("b - a")


def test_expressions_travel() -> None:
    expression = parse("cast(a as decimal(10, 2)) + 1.5 AS b")
    assert pickle.loads(pickle.dumps(expression)) == expression
