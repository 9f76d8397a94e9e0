"""Columns and functions, known and unknown."""

from __future__ import annotations

import pytest

from icestream.core.errors import DefinitionError
from icestream.sql.relations.names import Functions
from tests.fixtures.cql_statements import Description, NameScope, describe

SCOPE = NameScope(
    {"Stock": ["at", "Symbol", "price", "Price per item", "pair", "date"]},
    Functions(
        frozenset(["spread"]),
        ["upper", "date_trunc"],
        lambda name: name in ("upper", "date_trunc", "transform"),
    ),
)


def read(text: str) -> Description:
    [statement] = describe(text, SCOPE)
    return statement


@pytest.mark.parametrize(
    "text",
    [
        "SELECT Symbol, sum(price) AS total FROM Stock [ROWS 5] GROUP BY Symbol",
        "select SYMBOL, SUM(PRICE) as total from stock [ROWS 5] group by symbol",
        "SELECT Stock.symbol, sum(stock.price) AS total FROM Stock [ROWS 5] GROUP BY STOCK.Symbol",
        "SELECT q.symbol, sum(q.price) AS total FROM Stock AS q [ROWS 5] GROUP BY symbol",
        "SELECT q.symbol, sum(price) AS total FROM Stock [ROWS 5] q GROUP BY q.Symbol",
        "SELECT q.`symbol`, sum(`price`) AS total FROM `Stock` [ROWS 5] AS q GROUP BY Symbol",
    ],
)
def test_columns_are_the_same_in_any_case(text: str) -> None:
    assert read(text) == read("SELECT symbol, sum(price) total FROM Stock [ROWS 5] GROUP BY symbol")


def test_columns_are_written_as_the_stream_spells_them() -> None:
    statement = read("SELECT max(SYMBOL), min(DATE) FROM Stock [ROWS 5] WHERE AT IS NOT NULL")
    assert [each.arguments for each in statement.aggregates.values()] == [("Symbol",), ("`date`",)]
    assert statement.where == "NOT at IS NULL"


def test_exact_spelling_comes_first() -> None:
    scope = NameScope({"s": ["a", "A"]})
    [statement] = describe("SELECT sum(a) AS x, sum(A) AS y FROM s [ROWS 5]", scope)
    assert [each.arguments for each in statement.aggregates.values()] == [("a",), ("A",)]


def test_fields_and_odd_names_are_columns_too() -> None:
    statement = read(
        "SELECT sum(pair.low.x) AS low, max(stock.pair.high) AS high, min(`price PER item`) AS m "
        "FROM Stock [ROWS 5]"
    )
    assert [each.arguments for each in statement.aggregates.values()] == [
        ("pair.low.x",),
        ("pair.high",),
        ("`Price per item`",),
    ]


def test_parameters_of_lambdas_are_no_columns() -> None:
    statement = read("SELECT max(transform(pair.xs, x -> x + price)) AS m FROM Stock [ROWS 5]")
    [found] = statement.aggregates.values()
    assert found.arguments == ("transform(pair.xs, x -> x + price)",)


#: a statement, the message, and the words it points at
UNKNOWN = {
    "SELECT sum(prise) FROM Stock [ROWS 5]": (
        "there is no column 'prise'; did you mean 'price'? The columns are", "prise"
    ),
    "SELECT sum(q.prise) FROM Stock [ROWS 5] q": ("did you mean 'price'?", "prise"),
    "SELECT sum(quantity) FROM Stock [ROWS 5]": (
        "there is no column 'quantity'. The columns are ['at', 'Symbol'", "quantity"
    ),
    "SELECT sum(price) FROM Stock [ROWS 5] WHERE symbl = 'x'": ("mean 'Symbol'?", "symbl"),
    "SELECT sum(price) FROM Stock [ROWS 5] GROUP BY symbl": ("mean 'Symbol'?", "symbl"),
    "SELECT symbl, sum(price) FROM Stock [ROWS 5]": ("mean 'Symbol'?", "symbl"),
    "SELECT sum(price) FROM Stock [ROWS 5] HAVING totl > 1": ("no column 'totl'", "totl"),
    "SELECT sum(price) FROM Stock [PARTITION BY Simbol ROWS 5]": ("mean 'Symbol'?", "Simbol"),
    "SELECT summ(price) FROM Stock [ROWS 5]": (
        "there is no function 'summ'; did you mean 'sum'?", "summ"
    ),
    "SELECT spred(price) FROM Stock [ROWS 5]": ("did you mean 'spread'?", "spred"),
    "SELECT max(uper(symbol)) FROM Stock [ROWS 5]": ("did you mean 'upper'?", "uper"),
    "SELECT sum(price) FROM Stock [ROWS 5] WHERE zzz(price)": ("no function 'zzz'", "zzz"),
    "SELECT sum(price) FROM Stok [ROWS 5]": (
        "there is no table 'Stok'; did you mean 'Stock'? Given: ['Stock']", "Stok"
    ),
    "SELECT sum(price) FROM calls [ROWS 5]": ("no table 'calls'. Given: ['Stock']", "calls"),
    "SELECT sum(price) FROM db.Stock [ROWS 5]": ("there is no table 'db.Stock'", "db.Stock"),
}  # fmt: skip


@pytest.mark.parametrize("text", UNKNOWN)
def test_unknown_names_come_with_a_guess(text: str) -> None:
    message, words = UNKNOWN[text]
    with pytest.raises(DefinitionError) as refused:
        read(text)
    problem, line, mark = str(refused.value).splitlines()
    assert message in problem
    start = mark.index("^")
    assert line[start : start + mark.count("^")] == words


def test_without_streams_the_error_says_how_to_give_them() -> None:
    with pytest.raises(DefinitionError, match=r"Pass it: ice.sql\(text, s=stream\)"):
        describe("SELECT count(*) FROM s [ROWS 5]", NameScope({}))
