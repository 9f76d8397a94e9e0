"""Relations: how statements are read, rewritten and shown."""

from __future__ import annotations

import pytest
from sqlglot import exp

from icestream.core.errors import DefinitionError
from icestream.sql.relations.brackets import parse_statement
from icestream.sql.relations.conditions import parts_of
from icestream.sql.relations.names import Functions, NamedRelation, SourceTable
from icestream.sql.relations.read import read_query
from icestream.sql.relations.rules import simplified
from icestream.sql.relations.show import shown
from icestream.sql.relations.times import time_bounds
from icestream.sql.relations.tree import Join, Scan, walk
from icestream.sql.statements.dialect import Cql, written
from icestream.sql.statements.tokens import statements

SOURCES = {
    "a": SourceTable("a", ("ts", "k", "v", "until"), "ts"),
    "b": SourceTable("b", ("ts", "k", "w"), "ts"),
    "t": SourceTable("t", ("key", "title"), None),
}


def read(text: str) -> NamedRelation:
    (statement,) = statements(text)
    return read_query(parse_statement(statement), statement, SOURCES, Functions())


def lines(text: str) -> list[str]:
    return shown(simplified(read(text).relation)).splitlines()


def test_a_source_that_is_read_twice_has_two_sets_of_columns() -> None:
    query = read("SELECT x.k, y.k AS l FROM a x JOIN a y ON x.v = y.v")
    scans = [each for each in walk(query.relation) if isinstance(each, Scan)]
    assert len(scans) == 2
    assert not set(scans[0].columns) & set(scans[1].columns)


def test_conditions_are_split_at_and() -> None:
    node = Cql().parse("SELECT (x > 1 AND y BETWEEN 2 AND 3) AND (z = 1 OR w = 2)")[0]
    assert isinstance(node, exp.Select)
    assert [written(part) for part in parts_of(node.expressions[0])] == [
        "x > 1",
        "y >= 2",
        "y <= 3",
        "z = 1 OR w = 2",
    ]


def test_conditions_move_to_where_their_columns_are() -> None:
    assert lines("SELECT a.v FROM a, b WHERE a.k = b.k AND a.v > 1 AND b.w > a.v AND b.w < 9") == [
        "select v",
        "  inner join on left.k = right.k AND w > v   "
        "[state: all rows of both sides; nothing bounds it]",
        "    filter v > 1",
        "      stream a: k, v",
        "    filter w < 9",
        "      stream b: k, w",
    ]


def test_conditions_on_keys_move_below_aggregates() -> None:
    text = "SELECT k, n FROM (SELECT k, count(*) AS n FROM a GROUP BY k) WHERE k > 2 AND n > 3"
    assert lines(text) == [
        "select k, count AS n",
        "  filter count > 3",
        "    group by k: count(*)   [state: a row for each group; nothing bounds it]",
        "      filter k > 2",
        "        stream a: k",
    ]


def test_conditions_on_the_right_of_a_left_join_stay_above_it() -> None:
    assert lines("SELECT a.v FROM a LEFT JOIN b ON a.k = b.k AND b.w > 1 WHERE b.w IS NULL") == [
        "select v",
        "  filter w IS NULL",
        "    left join on left.k = right.k   [state: all rows of both sides; nothing bounds it]",
        "      stream a: k, v",
        "      filter w > 1",
        "        stream b: k, w",
    ]


def test_a_condition_on_the_rank_becomes_the_count_of_a_top() -> None:
    ranked = "SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY v DESC) AS n FROM a"
    for condition, count in (("n <= 3", 3), ("n < 3", 2), ("n = 1", 1), ("4 >= n", 4)):
        (_, top, _) = lines(f"SELECT v FROM ({ranked}) WHERE {condition}")
        assert top.startswith(f"  top {count} by v DESC for each k")


def test_tables_are_joined_with_the_stream_they_are_about() -> None:
    assert lines("SELECT a.v, title FROM a JOIN b ON a.k = b.k JOIN t ON t.key = b.w") == [
        "select v, title",
        "  inner join on left.k = right.k   [state: all rows of both sides; nothing bounds it]",
        "    stream a: k, v",
        "    inner join on key = w   [in Spark]",
        "      stream b: k, w",
        "      table t: key, title",
    ]


def test_columns_that_nothing_reads_are_not_stored() -> None:
    (_, scan) = lines("SELECT v FROM (SELECT *, v + 1 AS more FROM a)")
    assert scan == "  stream a: v"


def bounds(condition: str) -> tuple[int, int, str | None, int | None] | None:
    query = read(f"SELECT a.v FROM a JOIN b ON a.k = b.k AND {condition}")
    (join,) = [each for each in walk(query.relation) if isinstance(each, Join)]
    found = time_bounds(join)
    if found is None:
        return None
    high = None if found.high is None else written(found.high).split("_", 1)[1]
    return found.point, found.low, high, found.length


SECOND = 1_000_000


def test_conditions_on_times_bound_lifetimes() -> None:
    assert bounds("b.ts BETWEEN a.ts AND a.until") == (1, 0, "until", None)
    assert bounds("a.ts <= b.ts AND b.ts <= a.ts + INTERVAL '5' SECOND") == (
        1, 0, "ts + INTERVAL '5000000' MICROSECOND", 5 * SECOND,
    )  # fmt: skip
    assert bounds("a.ts - INTERVAL '2' SECOND < b.ts AND b.ts < a.ts") == (
        0, 1, "ts + INTERVAL '1999999' MICROSECOND", 2 * SECOND - 1,
    )  # fmt: skip
    assert bounds("a.ts = b.ts") == (1, 0, "ts", 0)
    assert bounds("b.ts > a.ts") == (1, 1, None, None)
    assert bounds("a.v > b.w") is None
    assert bounds("b.ts < a.until") is None


REFUSED = {
    "SELECT k FROM a ORDER BY k": "a stream is not sorted: write ORDER BY",
    "SELECT k FROM a LIMIT 3": "LIMIT needs ORDER BY",
    "SELECT k FROM a EXCEPT ALL SELECT k FROM b": "EXCEPT ALL is not supported: write EXCEPT",
    "SELECT k FROM a INTERSECT SELECT k, w FROM b": r"queries of INTERSECT have \[1, 2\] columns",
    "SELECT k, sum(v) OVER (ORDER BY ts DESC) AS s FROM a": "ORDER BY the time of the stream",
    "SELECT ntile(4) OVER (ORDER BY ts) AS s FROM a": "ntile is not a function over frames",
    """SELECT sum(v) OVER (ORDER BY ts ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING) AS s
        FROM a""": "a frame ends with CURRENT ROW",
    """SELECT sum(v) OVER (ORDER BY ts RANGE BETWEEN 5 PRECEDING AND CURRENT ROW) AS s
        FROM a""": "RANGE is followed by an interval",
    "SELECT sum(v) OVER w AS s FROM a": r"no window is called 'w': write WINDOW w AS",
    "SELECT sum(v) OVER late AS s FROM a WINDOW later AS (ORDER BY ts)": "did you mean 'later'",
    "SELECT sum(v) OVER (w ORDER BY ts) AS s FROM a WINDOW w AS (PARTITION BY k)": "write OVER w",
    """SELECT sum(v) OVER w AS s FROM a
        WINDOW w AS (ORDER BY ts), W AS (ORDER BY ts)""": "another window is also called 'W'",
    "SELECT k FROM a WHERE ROW_NUMBER() OVER (ORDER BY v) < 3": "goes around the query",
    "SELECT k FROM a WHERE count(*) > 1": "conditions on them go into HAVING",
    "SELECT k, v FROM a GROUP BY k": "'v' has many values in a group: add it to GROUP BY",
    "SELECT k FROM a WHERE v > (SELECT w FROM b)": "must have one column and one row",
    "SELECT k FROM a WHERE k IN (SELECT k, w FROM b)": "the query of IN must have one column",
    "SELECT k FROM a WHERE (k, v) IN (SELECT k FROM b)": "the query of IN must have 2 columns",
    "SELECT k FROM a WHERE v > 1 OR k NOT IN (SELECT k FROM b)": "write EXISTS or NOT EXISTS",
    "SELECT k, k IN (SELECT k FROM b) AS m FROM a": "write EXISTS or NOT EXISTS",
    "SELECT k, (SELECT max(w) FROM b WHERE b.k < a.k) AS m FROM a": "by equality alone",
    "SELECT a.k, b.k FROM a JOIN b ON a.v = b.w": "another column is also called 'k': rename it",
    "SELECT k FROM a UNION ALL SELECT k, w FROM b": r"have \[1, 2\] columns",
    "SELECT DISTINCT ON (k) k, v FROM a": "DISTINCT ON is not supported",
    "SELECT k FROM a WHERE EXISTS (SELECT max(w) FROM b)": "EXISTS takes a SELECT without aggr",
    "SELECT k, count(*) AS n FROM a GROUP BY k ORDER BY count(*) LIMIT 3": "order by that name",
    "SELECT k FROM a ORDER BY 2 LIMIT 3": "there is no column at 2: SELECT has 1",
    "SELECT v FROM a JOIN b FOR SYSTEM_TIME AS OF a.ts ON a.k = b.k": "needs a static table",
    "SELECT count(*) AS n FROM TUMBLE(a, INTERVAL '1' SECOND)": "TUMBLE is called like",
    "SELECT count(*) AS n FROM a GROUP BY window(ts, 'soon')": "write an interval here",
    "WITH RECURSIVE r AS (SELECT k FROM a) SELECT k FROM r": "RECURSIVE is not supported",
    "SELECT k FROM range(5)": "this is no table",
    "SELECT * EXCEPT (z) FROM a": "there is no column 'z'",
    "SELECT * REPLACE (1 AS v) FROM a": r"only EXCEPT may follow \*",
    "SELECT x FROM a AS q(x, y)": r"2 names for \d columns: \['ts', 'k'",
    "SELECT k FROM a ORDER BY k LIMIT 3 PERCENT": "LIMIT is followed by a number",
    "SELECT lag(v) IGNORE NULLS OVER (ORDER BY ts) AS s FROM a": "LAG counts all rows: remove IGN",
    """SELECT count(*) AS n FROM a
        GROUP BY window(ts, '9 seconds', '3 seconds', '4 seconds')""": "shorter than their step",
    "SELECT count(*) AS n FROM a GROUP BY window(ts, '9 seconds', '3 seconds', v)": "an interval",
}  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_what_relations_cannot_express_is_refused(text: str) -> None:
    with pytest.raises(DefinitionError, match=REFUSED[text]) as refused:
        read(text)
    assert "^" in str(refused.value)


def test_a_name_of_two_columns_is_ambiguous() -> None:
    with pytest.raises(DefinitionError, match=r"'k' may mean several columns: write a.k or b.k"):
        read("SELECT k FROM a JOIN b ON a.v = b.w")


def test_unknown_columns_come_with_a_guess() -> None:
    with pytest.raises(DefinitionError, match=r"no column 'untl'; did you mean 'until'\?"):
        read("SELECT untl FROM a")
    with pytest.raises(DefinitionError, match=r"no table 'c' here. FROM has \['a', 'b'\]"):
        read("SELECT c.k FROM a JOIN b ON a.k = b.k")
