"""Statements over several streams beside DuckDB over the same rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import icestream as ice
from icestream.core.errors import DefinitionError
from tests.fixtures.sql_runs import by_duckdb, ran_here, streams_of

pytestmark = pytest.mark.spark

SECOND = 1_000_000
START = 1_700_000_000 * SECOND


def _tables() -> dict[str, pa.Table]:
    dice = np.random.default_rng(5)
    tables = {}
    for name, count in (("a", 120), ("b", 90)):
        times = START + np.sort(dice.integers(0, 60 * SECOND, count))
        keys = dice.integers(0, 7, count)
        values = dice.integers(0, 9, count)
        tables[name] = pa.table(
            {
                "ts": pa.array(times).cast(pa.timestamp("us", "UTC")),
                "k": pa.array([None if key == 6 else int(key) for key in keys], pa.int64()),
                "v": pa.array([None if value == 8 else int(value) for value in values], pa.int64()),
                "until": pa.array(times + dice.integers(0, 9 * SECOND, count)).cast(
                    pa.timestamp("us", "UTC")
                ),
                "word": [["ice", "sea", "Fog", None][i] for i in dice.integers(0, 4, count)],
            }
        )
    tables["t"] = pa.table({"key": [0, 1, 2, 3], "title": ["zero", "one", "two", None]})
    return tables


TABLES = _tables()


@pytest.fixture(scope="module")
def sources(spark: SparkSession) -> dict[str, Any]:
    return streams_of(spark, TABLES, "ts")


#: statements in both dialects; the second is DuckDB's if it differs
SAME = {
    "an inner join": "SELECT a.k, a.v, b.v AS w FROM a JOIN b ON a.k = b.k AND a.v < b.v",
    "a left join": """
        SELECT a.k, a.v, x.v AS w FROM a LEFT JOIN (SELECT * FROM b WHERE v > 5) x
        ON a.k = x.k AND a.v = 3
    """,
    "a full join": """
        SELECT x.k, y.k AS l FROM (SELECT DISTINCT k FROM a WHERE v > 6) x
        FULL JOIN (SELECT DISTINCT k FROM b WHERE v < 1) y ON x.k = y.k
    """,
    "in": "SELECT k, v FROM a WHERE v IN (SELECT v FROM b WHERE k = 2)",
    "not in with nulls": "SELECT k, v FROM a WHERE v NOT IN (SELECT v FROM b WHERE k = 2)",
    "not in without nulls": """
        SELECT k, v FROM a WHERE v NOT IN (SELECT v FROM b WHERE k = 2 AND v IS NOT NULL)
    """,
    "not in nothing": "SELECT k, v FROM a WHERE v NOT IN (SELECT v FROM b WHERE v > 100)",
    "exists": """
        SELECT k, v FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.k = a.k AND b.v = a.v AND b.v > 2)
    """,
    "not exists": "SELECT k, v FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE b.v = a.v)",
    "a scalar query": """
        SELECT k, v FROM a WHERE v > (SELECT avg(v) FROM b) AND k IS NOT NULL
    """,
    "groups of all rows": """
        SELECT k, count(*) AS n, count(v) AS m, sum(v) AS s, min(word) AS first, max(word) AS last,
            count(DISTINCT v) AS d, count(DISTINCT v) FILTER (WHERE word = 'ice') AS e
        FROM a GROUP BY k
    """,
    "having": """
        SELECT k, max(v) + count(*) AS x FROM a GROUP BY k
        HAVING count(*) > (SELECT count(*) / 10 FROM a) AND k IS NOT NULL
    """,
    "expressions over groups": """
        SELECT k % 2 AS odd, CASE WHEN count(*) > 40 THEN 'many' ELSE 'few' END AS size
        FROM a WHERE v IS NOT NULL GROUP BY k % 2
    """,
    "distinct": "SELECT DISTINCT k, word FROM a WHERE v > 3",
    "union all": "SELECT k, v FROM a WHERE v > 5 UNION ALL SELECT k, v FROM b WHERE v < 2",
    "groups of a union": """
        SELECT k, count(*) AS n FROM (SELECT k FROM a UNION ALL SELECT k FROM b) GROUP BY k
    """,
    "with": """
        WITH large AS (SELECT k, v FROM a WHERE v > 4), n AS (SELECT k, count(*) AS n FROM large
        GROUP BY k) SELECT n.k, n.n, large.v FROM n JOIN large ON n.k = large.k
    """,
    "the first of each group": """
        SELECT k, v, place FROM (
            SELECT k, v, ROW_NUMBER() OVER (PARTITION BY k ORDER BY v DESC NULLS LAST) AS place
            FROM a) WHERE place <= 3
    """,
    "groups of the first": """
        SELECT word, count(*) AS n FROM (
            SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY ts DESC) AS place FROM b)
        WHERE place = 1 GROUP BY word
    """,
    "the first of all": "SELECT k, ts FROM a ORDER BY ts DESC LIMIT 5",
    "a static table": """
        SELECT a.v, t.title, b.word FROM a JOIN b ON a.k = b.k JOIN t ON t.key = a.k
        WHERE a.v = b.v
    """,
    "a left join with a static table": """
        SELECT k, count(title) AS n FROM a LEFT JOIN t ON key = k GROUP BY k
    """,
    "a time-bounded join": """
        SELECT a.k, a.v, b.v AS w FROM a JOIN b ON a.k = b.k
        AND b.ts BETWEEN a.ts - INTERVAL '2' SECOND AND a.ts + INTERVAL '3' SECOND
    """,
    "a time-bounded left join": """
        SELECT a.k, a.v, b.v AS w FROM a LEFT JOIN b ON a.k = b.k
        AND b.ts >= a.ts - INTERVAL '5' SECOND AND b.ts < a.ts
    """,
    "a join until a column": """
        SELECT a.k, a.v, b.v AS w FROM a JOIN b ON a.k = b.k AND b.ts BETWEEN a.ts AND a.until
    """,
    "a join from before until a column": """
        SELECT a.k, a.v, b.v AS w FROM a JOIN b ON a.k = b.k
        AND b.ts >= a.ts - INTERVAL '4' SECOND AND b.ts <= a.until
    """,
    "a join after": """
        SELECT a.v, b.v AS w FROM a JOIN b ON a.k = b.k AND b.ts > a.ts + INTERVAL '50' SECOND
    """,
}
WINDOWED = {
    "tumbling windows": (
        """SELECT k, count(*) AS n, window_end AS e FROM TUMBLE(TABLE a, DESCRIPTOR(ts),
           INTERVAL '10' SECOND) GROUP BY k, window_start, window_end""",
        """SELECT k, count(*), time_bucket(INTERVAL 10 SECOND, ts) + INTERVAL 10 SECOND AS e FROM a
           GROUP BY k, e""",
    ),
    "spark's windows": (
        """SELECT k, window.start AS s, sum(v) AS t FROM a WHERE v > 0
           GROUP BY k, window(ts, '10 seconds') HAVING sum(v) > 3""",
        """SELECT k, time_bucket(INTERVAL 10 SECOND, ts) AS s, sum(v) FROM a WHERE v > 0
           GROUP BY k, s HAVING sum(v) > 3""",
    ),
    "cumulating windows of windows": (
        """SELECT n, count(*) AS windows FROM (SELECT k, count(*) AS n, window_end FROM
           TABLE(CUMULATE(TABLE a, DESCRIPTOR(ts), INTERVAL '5' SECOND, INTERVAL '20' SECOND))
           GROUP BY k, window_start, window_end) GROUP BY n""",
        """SELECT n, count(*) FROM (SELECT k, e, count(*) AS n FROM (
             SELECT k, unnest(generate_series(time_bucket(INTERVAL 5 SECOND, ts)
               + INTERVAL 5 SECOND, time_bucket(INTERVAL 20 SECOND, ts) + INTERVAL 20 SECOND,
               INTERVAL 5 SECOND)) AS e FROM a) GROUP BY k, e) GROUP BY n""",
    ),
    "a join of windows": (
        """SELECT x.k, x.n, y.m, x.window_end AS e FROM
           (SELECT k, count(*) AS n, window_start, window_end FROM TABLE(TUMBLE(TABLE a,
            DESCRIPTOR(ts), INTERVAL '10' SECOND)) GROUP BY k, window_start, window_end) x
           LEFT JOIN
           (SELECT k, max(v) AS m, window_start, window_end FROM TABLE(TUMBLE(TABLE b,
            DESCRIPTOR(ts), INTERVAL '10' SECOND)) GROUP BY k, window_start, window_end) y
           ON x.k = y.k AND x.window_start = y.window_start AND x.window_end = y.window_end""",
        """WITH x AS (SELECT k, count(*) AS n, time_bucket(INTERVAL 10 SECOND, ts) AS s FROM a
             GROUP BY k, s), y AS (SELECT k, max(v) AS m, time_bucket(INTERVAL 10 SECOND, ts) AS s
             FROM b GROUP BY k, s)
           SELECT x.k, x.n, y.m, x.s + INTERVAL 10 SECOND FROM x
           LEFT JOIN y ON x.k = y.k AND x.s = y.s""",
    ),
    "the first of each window": (
        """SELECT k, n FROM (SELECT k, n, ROW_NUMBER() OVER (PARTITION BY window_end
           ORDER BY n DESC, k) AS place FROM (SELECT k, count(*) AS n, window_end FROM TABLE(HOP(
           TABLE a, DESCRIPTOR(ts), INTERVAL '5' SECOND, INTERVAL '10' SECOND)) WHERE k >= 0
           GROUP BY k, window_end)) WHERE place <= 2""",
        """SELECT k, n FROM (SELECT k, n, row_number() OVER (PARTITION BY s ORDER BY n DESC, k)
           AS place FROM (SELECT k, count(*) AS n, s FROM (SELECT k, unnest(generate_series(
           time_bucket(INTERVAL 5 SECOND, ts) - INTERVAL 5 SECOND, time_bucket(INTERVAL 5 SECOND,
           ts), INTERVAL 5 SECOND)) AS s FROM a) WHERE k >= 0 GROUP BY k, s)) WHERE place <= 2""",
    ),
}
#: the ones of every run; the others are slow
FIRST = (
    "not in with nulls", "groups of all rows", "the first of each group", "a static table",
    "a time-bounded left join", "a join of windows",
)  # fmt: skip
CASES = {**{name: (text, text) for name, text in SAME.items()}, **WINDOWED}


def marked(name: str) -> Any:
    return pytest.param(name, marks=() if name in FIRST else pytest.mark.slow, id=name)


@pytest.mark.parametrize("name", [marked(name) for name in CASES])
def test_oracle_statements(name: str, sources: dict[str, Any], tmp_path: Path) -> None:
    text, other = CASES[name]
    query = ice.sql(text, **sources)
    assert ran_here(query, tmp_path) == by_duckdb(other, TABLES)


def test_oracle_both_forms_of_windows(sources: dict[str, Any], tmp_path: Path) -> None:
    text, _ = CASES["spark's windows"]
    grid, events = ice.sql(text, **sources), ice.sql(f"SELECT DISTINCT * FROM ({text})", **sources)
    assert isinstance(grid, ice.Result)
    assert isinstance(events, ice.Events)
    assert ran_here(grid, tmp_path) == ran_here(events, tmp_path)


def test_statements_without_state_are_sparks(sources: dict[str, Any]) -> None:
    query = ice.sql(
        "SELECT upper(word) AS w, title FROM a JOIN t ON k = key WHERE soundex(word) = 'I200'",
        **sources,
    )
    assert isinstance(query, DataFrame)
    assert query.columns == ["w", "title"]


def test_equal_queries_run_once(sources: dict[str, Any]) -> None:
    counts = "(SELECT k, count(*) AS n FROM a GROUP BY k)"
    text = f"SELECT x.k FROM {counts} x JOIN (SELECT max(n) AS n FROM {counts}) y ON x.n = y.n"
    plan = ice.sql(text, **sources)._built("update").plan
    assert len(plan.sources) == 1


def test_views_are_names_for_queries(sources: dict[str, Any], tmp_path: Path) -> None:
    text = """
        CREATE VIEW large AS SELECT k, v FROM a WHERE v > 4;
        CREATE VIEW counted AS SELECT k, count(*) AS n FROM large GROUP BY k;
        SELECT n FROM counted WHERE k = 1
    """
    expected = by_duckdb("SELECT count(*) FROM a WHERE v > 4 AND k = 1", TABLES)
    assert ran_here(ice.sql(text, **sources), tmp_path) == expected


def test_explain_returns_tree_state_and_plan(sources: dict[str, Any]) -> None:
    text = """EXPLAIN SELECT a.k, b.v FROM a JOIN b ON a.k = b.k
        AND b.ts BETWEEN a.ts AND a.ts + INTERVAL '3' SECOND"""
    lines = ice.sql(text, **sources).splitlines()
    assert lines[0] == "select k, v"
    assert lines[1].endswith("[state: rows of the left side for 3 seconds]")
    assert lines[2:4] == ["    stream a: ts, k", "    stream b: ts, k, v"]
    text = "EXPLAIN SELECT k, count(*) AS n FROM a GROUP BY k"
    assert "nothing bounds it" in ice.sql(text, **sources)


WRONG = {
    "SELECT k FROM c": ("there is no table 'c'", "c"),
    "SELECT a.k FROM a JOIN t ON nope(a.k) = t.key": ("there is no function 'nope'", "nope"),
    "SELECT k FROM a JOIN b ON a.v = b.v": ("'k' may mean several columns: write a.k or b.k", "k"),
    "SELECT soundex(max(word)) AS x, k FROM a GROUP BY k": ("soundex", "soundex(max(word))"),
    "SELECT x.n FROM (SELECT count(*) AS n FROM t) x, a": ("static table", ""),
    "SELECT a.k FROM a LEFT JOIN b ON a.k < b.k": ("needs equal columns", ""),
    "SELECT k, ROW_NUMBER() OVER (ORDER BY v) AS n FROM a": ("needs a condition", "ROW_NUMBER"),
    "SELECT count(*) AS n FROM SESSION(TABLE a, DESCRIPTOR(ts), INTERVAL '1' SECOND) x "
    "JOIN b ON x.k = b.k": ("sessions", "SESSION"),
    "SELECT title FROM t": ("the statement reads no stream", ""),
}


@pytest.mark.parametrize("text", WRONG)
def test_mistakes_are_reported_with_their_place(text: str, sources: dict[str, Any]) -> None:
    message, words = WRONG[text]
    with pytest.raises(DefinitionError, match="(?s)" + message.replace("(", r"\(")) as refused:
        ice.sql(text, **sources)
    _, line, mark = str(refused.value).splitlines()
    assert line[mark.index("^") :].startswith(words)


def test_tables_are_streams_or_static_frames(sources: dict[str, Any]) -> None:
    wrong: Any = "a.parquet"
    with pytest.raises(
        DefinitionError, match="a must be a stream or a static DataFrame; got a str"
    ):
        ice.sql("SELECT k FROM a", a=wrong)
    with pytest.raises(DefinitionError, match="only creates views"):
        ice.sql("CREATE VIEW v AS SELECT k FROM a", **sources)
