"""GROUP BY and the sets it stands for."""

from __future__ import annotations

import pytest

from icestream.core.errors import DefinitionError
from tests.fixtures.cql_statements import Description, NameScope, describe

SCOPE = NameScope({"s": ["ts", "a", "b", "c", "d"]})


def grouped(clause: str, select: str = "COUNT(*)") -> Description:
    [statement] = describe(f"SELECT {select} FROM s [TUMBLE 1 HOUR] GROUP BY {clause}", SCOPE)
    return statement


def sets(clause: str) -> list[str] | None:
    statement = grouped(clause)
    if statement.sets is None:
        return None
    return ["".join([*statement.keys.values()][i] for i in chosen) for chosen in statement.sets]


SETS: dict[str, list[str]] = {
    "ROLLUP(a, b, c)": ["abc", "ab", "a", ""],
    "ROLLUP((a, b), c)": ["abc", "ab", ""],
    "a, b WITH ROLLUP": ["ab", "a", ""],
    "CUBE(a, b)": ["ab", "a", "b", ""],
    "a, b WITH CUBE": ["ab", "a", "b", ""],
    "CUBE(a, (b, c))": ["abc", "a", "bc", ""],
    "GROUPING SETS ((a, b), a, (c), ())": ["ab", "a", "c", ""],
    "a, ROLLUP(b, c)": ["abc", "ab", "a"],
    "ROLLUP(a), CUBE(b)": ["ab", "a", "b", ""],
    "GROUPING SETS ((a), (b)), c": ["ac", "bc"],
    "a, b GROUPING SETS ((b), (a, b), ())": ["b", "ab", ""],
    "GROUPING SETS (ROLLUP(a, b), (c))": ["ab", "a", "", "c"],
}


@pytest.mark.parametrize("clause", SETS)
def test_grouping_sets_are_expanded(clause: str) -> None:
    assert sets(clause) == SETS[clause]


def test_a_plain_list_has_no_sets() -> None:
    statement = grouped("a, (b, c), a")
    assert [*statement.keys.values()] == ["a", "b", "c"]
    assert statement.sets is None


def test_nothing_may_be_grouped_by() -> None:
    assert grouped("()").keys == {}


def test_a_set_asked_for_twice_is_refused() -> None:
    with pytest.raises(DefinitionError, match="the same set of columns twice"):
        sets("GROUPING SETS (ROLLUP(a), ())")


@pytest.mark.parametrize(
    "clause", ["1, 2", "day, B", "upper(a), s.b", "ALL", "window_start, 1, window.end, window, 2"]
)
def test_keys_may_be_named_by_position_alias_or_expression(clause: str) -> None:
    statement = grouped(clause, "UPPER(a) AS day, b, COUNT(*)")
    assert statement.keys == {"day": "upper(a)", "b": "b"}
    assert [*statement.columns.values()][1:3] == ["`day`", "`b`"]


def test_all_are_the_items_about_events() -> None:
    select = "a, upper(b) AS u, 1 AS one, date_format(window_start, 'HH') AS h, sum(c) + 1 AS t"
    assert [*grouped("ALL", select).keys] == ["a", "u"]


def test_keys_are_found_inside_of_expressions() -> None:
    statement = grouped("a + b, c", "(A + B) * 2 AS twice, concat(c, '!') AS loud, COUNT(*)")
    assert [*statement.columns.values()][1:3] == [
        "(`a + b`) * 2",
        "concat(`c`, '!')",
    ]


def test_rows_tell_their_grouping() -> None:
    statement = grouped("ROLLUP(a, b)", "grouping_id() AS id, grouping(a) AS of_all, COUNT(*)")
    assert [*statement.columns.values()][1:3] == [
        "`grouping_id`",
        "CAST(CAST(`grouping_id` IN (3) AS INT) AS TINYINT)",
    ]


BAD = {
    "3": "there is no column at 3: SELECT has 1",
    "z": "there is no column 'z'",
    "sum(a)": "sum is an aggregate, not allowed here",
    "1": "count is an aggregate, not allowed here",
}


@pytest.mark.parametrize("clause", BAD)
def test_what_cannot_be_grouped_by_is_refused(clause: str) -> None:
    with pytest.raises(DefinitionError, match=BAD[clause]):
        grouped(clause)


def test_grouping_needs_sets_and_keys() -> None:
    with pytest.raises(DefinitionError, match="needs GROUPING SETS, ROLLUP or CUBE"):
        grouped("a", "grouping(a), COUNT(*)")
    with pytest.raises(DefinitionError, match="called with one of the keys"):
        grouped("ROLLUP(a)", "grouping(b), COUNT(*)")
