"""Statements as data: what goes to events, what goes to rows, and under which names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from icestream.core.errors import DefinitionError
from icestream.plan.windows.frame import Frame
from icestream.sql.relations.tree import TimeWindow
from icestream.sql.statements.aggregates import AggregateCall
from tests.fixtures.cql_statements import Description, NameScope, describe

SECOND = 1_000_000
HOUR = 3600 * SECOND

SCOPE = NameScope(
    {
        "calls": ["timestamp", "serviceId", "waitTime", "busyTime"],
        "Stock": ["Time", "Symbol", "Price", "Volume"],
    }
)


def read(text: str) -> Description:
    [statement] = describe(text, SCOPE)
    return statement


def shown(statement: Description) -> dict[str, str]:
    return dict(statement.columns)


def test_an_average_over_the_last_hour_every_second() -> None:
    assert read("SELECT AVG(waitTime)\nFROM calls [RANGE 1 HOUR SLIDE 1 SECOND]") == Description(
        stream="calls",
        window=TimeWindow("hop", HOUR, SECOND),
        where=None,
        keys={},
        sets=None,
        aggregates={"AVG(waitTime)": AggregateCall("avg", ("waitTime",))},
        having=None,
        columns={"window": "`window`", "AVG(waitTime)": "`AVG(waitTime)`"},
    )


def test_statistics_of_the_last_day_by_service() -> None:
    statement = read(
        """SELECT COUNT(*),
        SUM(busyTime),
        AVG(busyTime)
        FROM calls [RANGE 24 HOURS SLIDE 10 SECONDS]
        GROUP BY serviceId"""
    )
    assert statement.window == TimeWindow("hop", 24 * HOUR, 10 * SECOND)
    assert statement.keys == {"serviceId": "serviceId"}
    assert list(statement.aggregates.values()) == [
        AggregateCall("count", ()),
        AggregateCall("sum", ("busyTime",)),
        AggregateCall("avg", ("busyTime",)),
    ]
    assert list(shown(statement)) == ["window", "COUNT(*)", "SUM(busyTime)", "AVG(busyTime)"]


def test_the_price_weighted_by_volume_at_every_event() -> None:
    statement = read(
        "SELECT Symbol, SUM(Volume*Price)/SUM(Volume)\nFROM Stock [RANGE 1 HOUR]\n\nGROUP BY Symbol"
    )
    assert statement.window == Frame(range=HOUR)
    assert statement.aggregates == {
        "sum(Volume * Price)": AggregateCall("sum", ("Volume * Price",)),
        "sum(Volume)": AggregateCall("sum", ("Volume",)),
    }
    assert shown(statement) == {
        "time": "`time`",
        "Symbol": "`Symbol`",
        "SUM(Volume*Price)/SUM(Volume)": "`sum(Volume * Price)` / `sum(Volume)`",
    }


def test_one_average_over_windows_of_three_lengths() -> None:
    statements = describe(
        """SELECT AVG(waitTime)
        FROM calls [RANGE 1 HOUR];
        SELECT AVG(waitTime)
        FROM calls [RANGE 6 HOURS];
        SELECT AVG(waitTime)
        FROM calls [RANGE 12 HOURS];""",
        SCOPE,
    )
    windows = [Frame(range=hours * HOUR) for hours in (1, 6, 12)]
    assert [each.window for each in statements] == windows
    assert {tuple(each.aggregates.values()) for each in statements} == {
        (AggregateCall("avg", ("waitTime",)),)
    }


def test_aggregates_are_computed_once() -> None:
    statement = read(
        "SELECT sum(price) / count(*) AS mean, SUM(Stock.Price) AS total, AVG(price), mean(Price) "
        "AS m FROM Stock [ROWS 5] HAVING count(1) > 3 AND total > 2"
    )
    assert statement.aggregates == {
        "total": AggregateCall("sum", ("Price",)),
        "count(*)": AggregateCall("count", ()),
        "AVG(price)": AggregateCall("avg", ("Price",)),
    }
    assert shown(statement)["mean"] == "`total` / `count(*)`"
    assert shown(statement)["m"] == "`AVG(price)`"
    assert statement.having == "`count(*)` > 3 AND (`total`) > 2"


def test_conditions_on_events_and_on_rows_are_kept_apart() -> None:
    statement = read(
        "SELECT Symbol, max(Price) AS price FROM Stock [TUMBLE 1 HOUR] "
        "WHERE price > 0 AND lower(symbol) <> 'x' GROUP BY Symbol HAVING price > 9 OR symbol = 'y'"
    )
    assert statement.where == "Price > 0 AND lower(Symbol) <> 'x'"
    assert statement.having == "(`price`) > 9 OR `Symbol` = 'y'"


def test_an_alias_in_having_is_the_whole_expression() -> None:
    statement = read(
        "SELECT max(Price) - min(Price) AS spread FROM Stock [ROWS 9] HAVING spread * 2 > 1"
    )
    assert statement.having == "(`max(Price)` - `min(Price)`) * 2 > 1"


@pytest.mark.parametrize(
    ("window", "select", "expected"),
    [
        ("TUMBLE 1 HOUR", "count(*) n", ["window", "n"]),
        ("TUMBLE 1 HOUR", "count(*) n, window", ["n", "window"]),
        ("TUMBLE 1 HOUR", "window.start, count(*) n", ["start", "n"]),
        ("TUMBLE 1 HOUR", "count(*) n, WINDOW_END", ["n", "WINDOW_END"]),
        ("TUMBLE 1 HOUR", "date_format(window_start, 'HH') AS h, count(*) n", ["h", "n"]),
        ("SESSION 1 HOUR", "count(*) n", ["session_window", "n"]),
        ("SESSION 1 HOUR", "session_window.end, count(*) n", ["end", "n"]),
        ("SESSION 1 HOUR", "window_start, count(*) n", ["window_start", "n"]),
        ("CUMULATE 1 DAY STEP 1 HOUR", "count(*) n", ["window", "n"]),
        ("ROWS 5", "count(*) n", ["time", "n"]),
        ("ROWS 5", "count(*) n, time AS at", ["n", "at"]),
    ],
)
def test_the_window_comes_first_unless_it_is_selected(
    window: str, select: str, expected: list[str]
) -> None:
    assert list(shown(read(f"SELECT {select} FROM calls [{window}]"))) == expected


def test_names_of_the_window_are_fields_of_its_column() -> None:
    text = "SELECT window_start, window.end, count(*) FROM calls [TUMBLE 1 HOUR]"
    assert list(shown(read(text)).values())[:2] == ["`window`.start", "`window`.end"]
    having = read("SELECT count(*) FROM calls [SESSION 1 HOUR] HAVING window_start > '2024'").having
    assert having == "`session_window`.start > '2024'"


def test_inside_of_aggregates_names_are_those_of_the_event() -> None:
    statement = read("SELECT max(time), time AS at FROM Stock [ROWS 5]")
    assert statement.aggregates == {"max(time)": AggregateCall("max", ("`Time`",))}
    assert shown(statement)["at"] == "`time`"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SELECT window_start FROM calls [ROWS 5]", "rows of this window have 'time' instead"),
        ("SELECT time, max(waitTime) FROM calls [TUMBLE 1 HOUR]", "have 'window' instead"),
        ("SELECT window.start FROM calls [SESSION 1 HOUR]", "have 'session_window' instead"),
        ("SELECT Symbol, max(Price) FROM Stock [ROWS 5]", r"GROUP BY, or .* max\(Symbol\)"),
        ("SELECT max(Price) FROM Stock [ROWS 5] HAVING price > 1", "'Price' has many values"),
        ("SELECT max(Price) + Volume AS x FROM Stock [ROWS 5]", "'Volume' has many values"),
        ("SELECT max(Price) a, min(Price) A FROM Stock [ROWS 5]", "rename it with AS"),
        ("SELECT max(Price) AS time, min(Price) FROM Stock [ROWS 5]", "rename it with AS"),
        ("SELECT sum(Price) FROM Stock [ROWS 5] WHERE sum(Price) > 1", "go into HAVING"),
    ],
)
def test_what_a_row_cannot_show_is_refused(text: str, message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        read(text)


def test_keys_alone_show_the_groups_there_are() -> None:
    statement = read("SELECT Symbol FROM Stock [TUMBLE 1 HOUR] GROUP BY Symbol")
    assert statement.aggregates == {"count": AggregateCall("count", ())}
    assert list(shown(statement)) == ["window", "Symbol"]


def test_columns_that_hold_keys_and_aggregates_have_names_of_their_own() -> None:
    statement = read(
        "SELECT max(Price) AS symbol, min(Price) AS grouping_id FROM Stock [TUMBLE 1 HOUR] "
        "GROUP BY Symbol"
    )
    assert [*statement.keys] == ["Symbol"]
    assert list(statement.aggregates) == ["max(Price)", "min(Price)"]
    assert shown(statement)["symbol"] == "`max(Price)`"


def test_later_statements_are_told_by_their_own_lines() -> None:
    with pytest.raises(DefinitionError) as refused:
        describe("SELECT count(*) FROM calls [ROWS 1];\nSELECT nothing FROM calls [ROWS 1]", SCOPE)
    assert str(refused.value).splitlines()[1:] == [
        "  line 2: SELECT nothing FROM calls [ROWS 1]",
        "                 ^^^^^^^",
    ]


def test_events_counted_by_a_column_are_grouped_by_it() -> None:
    statement = read("SELECT max(price) FROM Stock [PARTITION BY symbol ROWS 5] GROUP BY SYMBOL")
    assert statement.window == Frame(rows=5)
    assert statement.partition == ("Symbol",)


@pytest.mark.parametrize(
    "clause", ["", "GROUP BY Price", "GROUP BY Symbol, Price", "GROUP BY CUBE(Symbol)"]
)
def test_events_counted_by_a_column_and_grouped_by_others_are_refused(clause: str) -> None:
    with pytest.raises(DefinitionError, match="write GROUP BY Symbol"):
        read(f"SELECT max(price) FROM Stock [PARTITION BY symbol ROWS 5] {clause}")


SESSIONS = (
    "SELECT Symbol, count(*) AS n FROM TABLE(SESSION(TABLE Stock{}, DESCRIPTOR(Time), "
    "INTERVAL '5' MINUTE)) GROUP BY {}, window_start, window_end"
)


@pytest.mark.parametrize(
    ("keys", "groups"),
    [
        ("Symbol", "Symbol"),
        ("(Symbol)", "SYMBOL"),
        ("(Symbol, Price)", "Price, Symbol"),
        ("Symbol, Price", "Symbol, Price"),
    ],
)
def test_sessions_may_name_the_columns_that_they_are_grouped_by(keys: str, groups: str) -> None:
    named = read(SESSIONS.format(f" PARTITION BY {keys}", groups))
    plain = read(SESSIONS.format("", groups))
    assert named == replace(plain, partition=named.partition)


@pytest.mark.parametrize(
    ("call", "groups", "message"),
    [
        (" PARTITION BY Price", "Symbol", "write GROUP BY Price"),
        (" PARTITION BY Symbol", "Symbol, Price", "write GROUP BY Symbol"),
        (" PARTITION BY Simbol", "Symbol", "mean 'Symbol'"),
        (" PARTITION BY", "Symbol", "PARTITION BY is followed by columns"),
        (" PARTITION BY ()", "Symbol", "PARTITION BY is followed by columns"),
    ],
)
def test_sessions_of_other_columns_than_groups_are_refused(
    call: str, groups: str, message: str
) -> None:
    text = SESSIONS.format(call, groups)
    with pytest.raises(DefinitionError, match=message):
        read(text)
    with pytest.raises(DefinitionError, match="TUMBLE does not depend on keys"):
        read(text.replace("SESSION", "TUMBLE").replace(call, " PARTITION BY Symbol"))


def test_types_that_would_change_on_the_way_are_refused() -> None:
    with pytest.raises(DefinitionError, match="the type TIME cannot be used"):
        read("SELECT max(CAST(Symbol AS TIME)) FROM Stock [ROWS 5]")


@pytest.mark.parametrize("text", ["AS", "ELSE SELECT sum(price) FROM Stock"])
def test_what_is_no_statement_at_all_is_refused(text: str) -> None:
    with pytest.raises(DefinitionError, match="this is not a statement; start with SELECT"):
        read(text)
