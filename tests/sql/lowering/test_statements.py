"""Statements over several streams beside DuckDB over the same rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import icestream as ice
from icestream.core.errors import DefinitionError
from icestream.operators.dataflow.steps import Stateful
from icestream.runtime.ingest.source import sources_of
from icestream.sql.lowering import in_spark
from icestream.sql.lowering.in_spark import copied, with_copies
from icestream.sql.lowering.lower import Lowering
from tests.fixtures.sql_cases import SAME, WINDOWED
from tests.fixtures.sql_runs import by_duckdb, ran_here, streams_of, table_here

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


#: the ones of every run; the others are slow
FIRST = (
    "not in with nulls", "rows not in a query", "functions over frames", "the rows after",
    "frames of rows that change",
    "a key twice, and rows counted by a key beside different values",
    "grouping sets", "queries about each row", "conditions with or", "rows of one", "qualify",
    "groups of all rows", "the first of each group", "a static table",
    "a static table behind groups",
    "sums of a join by its key", "frames in lower case", "columns with other names",
    "columns of USING", "columns of either side of USING", "a full join by USING",
    "two joins by USING", "a right join in the order in which it is written",
    "numbers of rows beside other frames",
    "columns left out of a star", "columns left out of one side",
    "sets of grouping after their keys",
    "windows from an instant on", "a join of windows from an instant on",
    "the window of groups, called again", "a field of a key",
    "a time-bounded left join with a condition", "a time-bounded full join", "a join of windows",
    "a chain of time-bounded left joins",
)  # fmt: skip
CASES = {**{name: (text, text) for name, text in SAME.items()}, **WINDOWED}


def marked(name: str) -> Any:
    return pytest.param(name, marks=() if name in FIRST else pytest.mark.slow, id=name)


@pytest.mark.parametrize("name", [marked(name) for name in CASES])
def test_oracle_statements(name: str, sources: dict[str, Any], tmp_path: Path) -> None:
    text, other = CASES[name]
    query = ice.sql(text, **sources)
    assert ran_here(query, tmp_path) == by_duckdb(other, TABLES)


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", CASES)
def test_oracle_statements_are_tables_in_mode_now(
    name: str, sources: dict[str, Any], tmp_path: Path
) -> None:
    text, other = CASES[name]
    assert table_here(ice.sql(text, **sources), tmp_path) == by_duckdb(other, TABLES)


@pytest.mark.parametrize("name", ["the first of all", "a time-bounded full join"])
def test_oracle_rows_of_an_instant_stay_in_a_table(
    name: str, sources: dict[str, Any], tmp_path: Path
) -> None:
    text, other = CASES[name]
    assert table_here(ice.sql(text, **sources), tmp_path) == by_duckdb(other, TABLES)


def test_oracle_both_forms_of_windows(sources: dict[str, Any], tmp_path: Path) -> None:
    text, _ = CASES["spark's windows"]
    grid, events = ice.sql(text, **sources), ice.sql(f"SELECT DISTINCT * FROM ({text})", **sources)
    assert isinstance(grid, ice.Result)
    assert isinstance(events, ice.Events)
    assert ran_here(grid, tmp_path) == ran_here(events, tmp_path)


@pytest.mark.parametrize(
    "windows",
    [
        "TUMBLE(TABLE a, DESCRIPTOR(ts), INTERVAL '20' SECONDS)",
        "HOP(TABLE a, DESCRIPTOR(ts), INTERVAL '20' SECONDS, INTERVAL '30' SECONDS)",
        "CUMULATE(TABLE a, DESCRIPTOR(ts), INTERVAL '10' SECONDS, INTERVAL '30' SECONDS)",
    ],
)
def test_oracle_copies_in_windows_are_the_same_anywhere(
    windows: str, sources: dict[str, Any], tmp_path: Path
) -> None:
    text = f"""
        SELECT x.start, x.word, x.most, y.n FROM (
            SELECT window_start AS start, window_end AS end, word, max(v) AS most
            FROM TABLE({windows}) GROUP BY window_start, window_end, word) x
        JOIN (SELECT window_end AS end, count(*) AS n FROM TABLE({windows})
            GROUP BY window_start, window_end) y
        ON x.end = y.end AND x.most < y.n
    """
    behind = ice.sql(text, **sources)
    assert "copies in windows" in str(behind._built("changes").plan.edges)
    rows = ran_here(behind, tmp_path, disorder=3)
    with mock.patch.object(in_spark, "with_copies", lambda *given: copied(with_copies(*given))):
        before = ice.sql(text, **sources)
    assert "copies in windows" not in str(before._built("changes").plan.edges)
    assert rows == ran_here(before, tmp_path)
    assert max(row[3] for row in rows) > 20


@pytest.mark.parametrize("name", ["a join of windows", "the first of each window"])
def test_oracle_final_rows_of_windows_are_panes(
    name: str, sources: dict[str, Any], tmp_path: Path
) -> None:
    text, other = CASES[name]
    query = ice.sql(text, **sources)
    steps = str(query._built("append").plan.describe())
    assert "panes of" in steps
    assert "copies in windows" not in steps
    assert "copies in windows" in str(query._built("changes").plan.describe())
    rows = ran_here(query, tmp_path, mode="append", disorder=5, batches=7)
    assert rows == by_duckdb(other, TABLES)


@pytest.mark.parametrize(
    ("windows", "starts"),
    [
        (
            "HOP(TABLE a, DESCRIPTOR(ts), INTERVAL '5' SECONDS, INTERVAL '20' SECONDS)",
            "unnest(generate_series(time_bucket(INTERVAL 5 SECOND, ts) - INTERVAL 15 SECOND,"
            " time_bucket(INTERVAL 5 SECOND, ts), INTERVAL 5 SECOND))",
        ),
        (
            "TUMBLE(TABLE a, DESCRIPTOR(ts), INTERVAL '20' SECONDS)",
            "time_bucket(INTERVAL 20 SECOND, ts)",
        ),
    ],
)
def test_oracle_every_call_in_panes_of_statements(
    windows: str, starts: str, sources: dict[str, Any], tmp_path: Path
) -> None:
    calls = """count(*) AS n, sum(v) FILTER (WHERE k > 1) AS s, min(word) AS least,
        count(DISTINCT word) AS words, avg(v) AS mean"""
    text = f"""SELECT DISTINCT e, k, n, s, least, words, mean FROM (
        SELECT window_end AS e, k, {calls} FROM TABLE({windows}) WHERE v <> 2
        GROUP BY window_start, window_end, k)"""
    other = f"""SELECT start + INTERVAL 20 SECOND, k, {calls} FROM (
        SELECT *, {starts} AS start FROM a WHERE v <> 2) GROUP BY start, k"""
    query = ice.sql(text, **sources)
    assert "panes of" in str(query._built("append").plan.describe())
    rows = ran_here(query, tmp_path, mode="append", disorder=7, batches=9)
    assert rows == by_duckdb(other, TABLES)


def test_oracle_ranks_of_rows_at_the_same_time(spark: SparkSession, tmp_path: Path) -> None:
    micros = np.asarray(TABLES["a"]["ts"].cast(pa.int64()))
    times = pa.array(micros // (4 * SECOND) * 4 * SECOND).cast(pa.timestamp("us", "UTC"))
    tables = {"c": TABLES["a"].set_column(0, "ts", times)}
    over = "OVER (PARTITION BY k ORDER BY ts)"
    text = f"""SELECT k, v, RANK() {over} AS r, 10 * DENSE_RANK() {over} AS d,
        NTH_VALUE(ts, 3) {over} AS third FROM c"""
    query = ice.sql(text, **streams_of(spark, tables, "ts"))
    assert ran_here(query, tmp_path) == by_duckdb(text, tables)


def test_statements_without_state_are_sparks(sources: dict[str, Any]) -> None:
    query = ice.sql(
        "SELECT upper(word) AS w, title FROM a JOIN t ON k = key WHERE soundex(word) = 'I200'",
        **sources,
    )
    assert isinstance(query, DataFrame)
    assert query.columns == ["w", "title"]


def test_a_stream_that_is_read_twice_is_sent_once(sources: dict[str, Any], tmp_path: Path) -> None:
    text = "SELECT x.v, y.word FROM a x JOIN a y ON x.k = y.v"
    query = ice.sql(text, **sources)
    assert len(query._built("changes").plan.sources) == 1
    assert ran_here(query, tmp_path) == by_duckdb(text, TABLES)


def test_simple_conditions_leave_files_to_the_tasks(spark: SparkSession, tmp_path: Path) -> None:
    schema = "ts timestamp, k int, word string"
    streams: dict[str, Any] = {}
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        frame = spark.readStream.schema(schema).parquet(str(folder))
        streams[name] = ice.stream(frame, time="ts")
    text = "SELECT a.k, b.word FROM a JOIN b ON a.k = b.k WHERE a.k > {} AND b.word IN ('x', 'y')"
    query = ice.sql(text.format("3"), **streams)
    assert sources_of(query._built("changes").events) is not None
    assert "where (k > 3)" in str(query._built("changes").plan.describe())
    query = ice.sql(text.format("length(a.word)"), **streams)
    assert sources_of(query._built("changes").events) is None


@pytest.mark.parametrize("of_files", [True, False])
def test_oracle_columns_are_the_same_wherever_they_are_computed(
    of_files: bool, sources: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lowering, "_is_of_files", lambda *_: of_files)
    text = """
        SELECT {minute} AS minute, k, count(*) FILTER (WHERE v < 4 OR v IS NULL) AS few,
            count(DISTINCT v) FILTER (WHERE word IN ('ice', 'Fog')) AS n, max(word) AS w
        FROM (SELECT * FROM a WHERE v <> 5) GROUP BY {minute}, k
    """
    query = ice.sql(text.format(minute="DATE_FORMAT(ts, 'HH:mm')"), **sources)
    described = str(query._built("changes").plan.describe()).lower()
    assert ("date_format(" in described) == of_files
    here = "strftime(ts AT TIME ZONE 'UTC', '%H:%M')"
    assert ran_here(query, tmp_path) == by_duckdb(text.format(minute=here), TABLES)


def test_oracle_fields_of_structs_are_aggregated(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lowering, "_is_of_files", lambda *_: True)
    frame = spark.createDataFrame(TABLES["a"])
    frame = frame.selectExpr("ts", "word", "named_struct('k', k, 'v', v, 'word', word) AS a")
    text = """
        SELECT word, max(a.v) AS m, min(a.word) AS w, count(*) FILTER (WHERE a.v > 3) AS n,
            count_if(a.v = 2 AND a.k > 1) AS two FROM a GROUP BY word
    """
    query = ice.sql(text, a=ice.stream(frame, time="ts", slack="1 second"))
    assert ran_here(query, tmp_path) == by_duckdb(text, TABLES)


def test_answers_that_are_joined_in_their_group_are_rows_by_its_key(
    sources: dict[str, Any],
) -> None:
    text = "SELECT k, min(word) AS w, max(v) AS m, count(DISTINCT v) AS d FROM a GROUP BY k"
    plan = ice.sql(text, **sources)._built("now").plan
    assert plan.views[0].key == ("k",)
    assert len(plan.components) == 1


def test_oracle_counts_and_sums_beside_distinct_ones(
    sources: dict[str, Any], tmp_path: Path
) -> None:
    text = """
        SELECT word, count(*) AS n, count(v) AS v, sum(v) AS s, avg(k) AS a, count(DISTINCT k) AS d,
            count(*) FILTER (WHERE v > 3) AS f, count(DISTINCT k) FILTER (WHERE v > 3) AS e,
            count(DISTINCT v) AS g, max(v) AS m
        FROM {} GROUP BY word
    """
    # rows of a stream, and rows that leave again
    for rows in ("a", "(SELECT word, k, max(v) AS v FROM a GROUP BY word, k)"):
        query = ice.sql(text.format(rows), **sources)
        assert ran_here(query, tmp_path) == by_duckdb(text.format(rows), TABLES)


def test_equal_queries_run_once(sources: dict[str, Any]) -> None:
    counts = "(SELECT k, count(*) AS n FROM a GROUP BY k)"
    text = f"SELECT x.k FROM {counts} x JOIN (SELECT max(n) AS n FROM {counts}) y ON x.n = y.n"
    plan = ice.sql(text, **sources)._built("changes").plan
    assert len(plan.sources) == 1


def test_sums_of_a_join_by_its_key_make_no_pairs(sources: dict[str, Any]) -> None:
    built = ice.sql(SAME["sums of a join by its key"], **sources)._built("changes")
    steps = [step for steps in built.plan.components for step in steps]
    texts = [step.text for step in steps if isinstance(step, Stateful)]
    assert any("of pairs" in text for text in texts)
    assert not any(text.startswith("join") for text in texts)


@pytest.mark.sample(20)
@pytest.mark.parametrize("name", SAME)
def test_a_statement_has_the_same_plan_whenever_it_is_made(
    name: str, sources: dict[str, Any]
) -> None:
    made = [ice.sql(SAME[name], **sources) for _ in range(2)]
    if not isinstance(made[0], DataFrame):
        one, other = (each.writeStream._built.plan.describe() for each in made)
        assert one == other


#: statements with brackets, and the same for DuckDB
BRACKETS = {
    "a join of what is there": (
        "SELECT a.k, a.v, b.v AS w FROM a [NOW] JOIN b [RANGE 5 SECONDS] ON a.k = b.k",
        """SELECT a.k, a.v, b.v FROM a JOIN b ON a.k = b.k AND b.ts <= a.ts
           AND b.ts > a.ts - INTERVAL 5 SECOND""",
    ),
    "rows that are not there": (
        "SELECT a.k, a.v FROM a [NOW] LEFT ANTI JOIN b [RANGE 5 SECONDS] ON a.k = b.k",
        """SELECT a.k, a.v FROM a ANTI JOIN b ON a.k = b.k AND b.ts <= a.ts
           AND b.ts > a.ts - INTERVAL 5 SECOND""",
    ),
    "all rows": (
        "SELECT k, count(*) AS n FROM a [UNBOUNDED] GROUP BY k",
        "SELECT k, count(*) FROM a GROUP BY k",
    ),
    "rows that enter": (
        "ISTREAM(SELECT max(v) AS m FROM a [UNBOUNDED])",
        """SELECT m FROM (SELECT max(v) OVER (ORDER BY ts) AS m, ts FROM a)
           QUALIFY m IS DISTINCT FROM lag(m) OVER (ORDER BY ts)""",
    ),
    "rows that leave": (
        "SELECT DSTREAM(k, v) FROM a [RANGE 5 SECONDS]",
        "SELECT k, v FROM a",
    ),
    "windows of sets": (
        """SELECT window_end AS e, k, grouping(k) AS g, count(*) AS n FROM a [TUMBLE 10 SECONDS]
           GROUP BY CUBE(k)""",
        """SELECT time_bucket(INTERVAL 10 SECOND, ts) + INTERVAL 10 SECOND AS e, k, grouping(k),
           count(*) FROM a GROUP BY e, CUBE(k)""",
    ),
}


@pytest.mark.parametrize("name", BRACKETS)
def test_oracle_brackets(name: str, sources: dict[str, Any], tmp_path: Path) -> None:
    text, other = BRACKETS[name]
    assert ran_here(ice.sql(text, **sources), tmp_path) == by_duckdb(other, TABLES)


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
    "SELECT k, ROW_NUMBER() OVER (ORDER BY v) AS n FROM a": ("needs a condition", "ROW_NUMBER"),
    "SELECT NTH_VALUE(v, 2) OVER (ORDER BY ts ROWS 2 PRECEDING) AS n FROM a": (
        "begins with UNBOUNDED PRECEDING",
        "NTH_VALUE",
    ),
    "SELECT k, SUM(v) OVER (ORDER BY v) AS n FROM a": ("OVER follows the time", "SUM(v)"),
    "SELECT m, SUM(m) OVER (ORDER BY m) AS s FROM (SELECT max(v) AS m FROM a GROUP BY k)": (
        "rows of a join, an aggregate or a top may change",
        "SUM(m)",
    ),
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
