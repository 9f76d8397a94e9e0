"""Results go on as streams: windows, joins and aggregates of each other, in every mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import icestream as ice
from icestream.core.errors import DefinitionError
from tests.suites.composition import (
    AGGREGATES,
    BEHINDS,
    FRONTS,
    MODES,
    SECOND,
    WINDOWS,
    Cell,
    Query,
    Run,
    answer,
    events,
)

pytestmark = pytest.mark.spark

CELLS = [
    Cell(front, window, aggregate, behind, mode)
    for front in FRONTS
    for window in WINDOWS
    for aggregate in AGGREGATES
    for behind in BEHINDS
    for mode in MODES
]


@pytest.mark.sample(8)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("behind", BEHINDS)
@pytest.mark.parametrize("aggregate", AGGREGATES)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("front", FRONTS)
def test_oracle_every_kind_of_window_composes_as_in_sql(
    front: str,
    window: str,
    aggregate: str,
    behind: str,
    mode: str,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    cell = Cell(front, window, aggregate, behind, mode)
    number = CELLS.index(cell)
    a, b = events(number), events(number + 1_000_000, 40)
    if cell.refused:
        with pytest.raises(DefinitionError, match=cell.refused):
            Run(spark, cell, a, b, tmp_path)
        return
    run = Run(spark, cell, a, b, tmp_path)
    run.play((1, 9, 90)[number % 3], np.random.default_rng(number))
    run.flush()
    found, wanted = run.rows(), answer(cell.sql, a, b)
    if cell.of_closed_windows:
        # groups that became empty are there as well, and groups that did not change are not
        assert {row for row in found - wanted if row[2]} == set()
        assert cell.window != "tumbling" or not wanted - found
        return
    assert found == wanted
    assert len(wanted) > 0


def matched(how: str) -> Query:
    """Return a join by match, and the same in SQL."""
    kinds = {"semi": "SEMI", "anti": "ANTI"}
    columns = "a.k, a.item" if how in kinds else "coalesce(a.k, b.k), a.item, b.item"
    return Query(
        lambda a, b: (
            a.events()
            .select("k", "item")
            .join(
                b.events().select("k", "item AS other"),
                "k",
                how=how,
                within=("-1 second", "2 seconds"),
            )
        ),
        f"SELECT {columns} FROM a {kinds.get(how, how)} JOIN b ON a.k = b.k"
        " AND b.t - a.t BETWEEN -1000000 AND 2000000",
    )


_FRAME = "SELECT t, k, sum(x) OVER (PARTITION BY k ORDER BY t RANGE BETWEEN 4999999 PRECEDING"
#: what the matrix lacks
QUERIES = {
    **{f"{how} join by match": matched(how) for how in ("inner", "left", "full", "semi", "anti")},
    "newest row of a window per event": Query(
        lambda a, _b: a.window("5 seconds", slide="event").groupBy("k").agg(
            ice.sum("x"), ice.max("item"), ice.last("item")
        ),
        "SELECT max(t), k, sum(x), max(item), arg_max(item, t) FROM (SELECT *,"
        " max(t) OVER (PARTITION BY k) AS m FROM a) WHERE t > m - 5000000 GROUP BY k",
    ),
    "last rows of each key": Query(
        lambda a, _b: a.rows(3, partitionBy="k").agg(ice.first("item")),
        "SELECT max(t), k, arg_min(item, t) FROM (SELECT * FROM a QUALIFY row_number()"
        " OVER (PARTITION BY k ORDER BY t DESC) <= 3) GROUP BY k",
    ),
    "last rows of each key within a range": Query(
        lambda a, _b: a.rows(3, partitionBy="k", range="2 seconds").agg(
            ice.collect_list("item"), ice.sum("x")
        ),
        "SELECT max(t), k, list(item ORDER BY t), sum(x) FROM (SELECT *, max(t) OVER (PARTITION BY"
        " k) AS m FROM a QUALIFY row_number() OVER (PARTITION BY k ORDER BY t DESC) <= 3) WHERE"
        " t > m - 2000000 GROUP BY k",
    ),
    "last rows of the stream": Query(
        lambda a, _b: a.rows(9).groupBy("k").agg(ice.avg("x")),
        "SELECT max(t), k, avg(x) FROM (SELECT * FROM a ORDER BY t DESC LIMIT 9) GROUP BY k",
    ),
    "grouping sets": Query(
        lambda a, _b: a.window("5 seconds").groupingSets([["k"], ["name"], []], "k", "name").agg(
            ice.count(), ice.max("name")
        ),
        "SELECT (s, s + 5000000), k, name, grouping(k, name), count(*), max(nm) FROM (SELECT *,"
        " t // 5000000 * 5000000 AS s, name AS nm FROM a) GROUP BY GROUPING SETS ((s, k),"
        " (s, name), (s))",
    ),
    "first events": Query(
        lambda a, _b: a.events().select("k", "item").dropDuplicates("k"),
        "SELECT k, arg_min(item, t) FROM a GROUP BY k",
    ),
    "newest pair of a join": Query(
        lambda a, b: a.events()
        .select("k", "unix_micros(ts) AS at")
        .join(b.events().select("k", "unix_micros(ts) AS other"), "k", within="2 seconds")
        .select("k", "greatest(at, other) AS newest")
        .untilNext("k"),
        "SELECT a.k, max(greatest(a.t, b.t)) FROM a JOIN b ON a.k = b.k"
        " AND abs(a.t - b.t) <= 2000000 GROUP BY a.k",
    ),
    "window over rows per event": Query(
        lambda a, _b: a.window("5 seconds", slide="event").groupBy("k").agg(ice.sum("x").alias("v"))
        .window("10 seconds").groupBy("k").agg(ice.max("v")),
        "SELECT (t // 10000000 * 10000000, t // 10000000 * 10000000 + 10000000), k, max(v) FROM ("
        f"{_FRAME} AND CURRENT ROW) AS v FROM a) GROUP BY ALL",
        "append",
    ),
    "windows behind a join that waits for partners": Query(
        lambda a, b: ice.stream(matched("left").make(a, b)).window("6 seconds", "2 seconds")
        .groupBy("k").agg(ice.count("other").alias("n"), ice.sum("item")),
        "SELECT (s, s + 6000000), k, count(other), sum(item) FROM (SELECT a.k, a.item, b.item AS"
        " other, a.t // 2000000 * 2000000 - n * 2000000 AS s FROM range(3) r(n), a LEFT JOIN b ON"
        " a.k = b.k AND b.t - a.t BETWEEN -1000000 AND 2000000) GROUP BY s, k",
        "append",
    ),
    "aggregate behind columns over frames": Query(
        lambda a, _b: a.over(
            ice.sum("x").alias("v"), partitionBy="k", range=5 * SECOND - 1
        ).forever().groupBy("k").agg(ice.max("v")),
        f"SELECT k, max(v) FROM ({_FRAME} AND CURRENT ROW) AS v FROM a) GROUP BY k",
    ),
    "window of windows of windows": Query(
        lambda a, _b: a.window("2 seconds").groupBy("k").count().window("4 seconds").groupBy("k")
        .agg(ice.max("count").alias("m")).session("5 seconds").agg(ice.sum("m")),
        "SELECT (min(e - 1), max(e - 1) + 5000000), sum(m) FROM (SELECT *, sum(fresh) OVER (ORDER"
        " BY e, k) AS number FROM (SELECT *, CASE WHEN e - lag(e) OVER (ORDER BY e, k) <= 5000000"
        " THEN 0 ELSE 1 END AS fresh FROM (SELECT (t // 4000000 + 1) * 4000000 AS e, k, max(c) AS m"
        " FROM (SELECT (t // 2000000 + 1) * 2000000 - 1 AS t, k, count(*) AS c FROM a GROUP BY ALL)"
        " GROUP BY ALL))) GROUP BY number",
    ),
}  # fmt: skip


@pytest.mark.sample(4)
@pytest.mark.parametrize("batches", [1, 9, 90])
@pytest.mark.parametrize("name", QUERIES)
def test_oracle_every_kind_of_window_is_in_the_table_while_it_is_open(
    name: str, batches: int, spark: SparkSession, tmp_path: Path
) -> None:
    query, a, b = QUERIES[name], events(batches), events(1000 + batches, 40)
    run = Run(spark, query, a, b, tmp_path)
    run.play(batches, np.random.default_rng(batches))
    if name in ("first events", "newest pair of a join", "aggregate behind columns over frames"):
        run.flush()  # these read final rows
    elif query.mode == "append":
        run.flush()
    assert run.rows() == answer(query.sql, a, b)


@pytest.mark.parametrize("batches", [9, 40])
def test_late_events_change_no_window_that_is_closed(
    batches: int, spark: SparkSession, tmp_path: Path
) -> None:
    def late(a: ice.Stream, _b: ice.Stream) -> Any:
        return a.window("3 seconds", "1 second").groupBy("k").agg(ice.min("name").alias("v"))

    for mode in ("now", "append"):
        a = events(batches, 200)
        run = Run(spark, Query(late, "", mode), a, a, tmp_path / mode, slack="0 seconds")
        run.play(batches, np.random.default_rng(batches), restarts=mode == "now")
        run.flush()
        reached = pa.array([run.watermarks[each] for each in a.column("t").to_pylist()])
        sql = (
            "SELECT (s, s + 3000000), k, min(name) FROM (SELECT *, t // 1000000 * 1000000 - n *"
            " 1000000 AS s FROM a, range(3) r(n)) WHERE s + 3000000 > reached GROUP BY s, k"
        )
        assert run.rows() == answer(sql, a.append_column("reached", reached), a)


@pytest.mark.parametrize("mode", ["append", "now"])
def test_oracle_objects_of_all_events_are_read_by_windows(
    mode: str, spark: SparkSession, tmp_path: Path
) -> None:
    query = Query(
        lambda a, _b: (
            a.window("4 seconds", "2 seconds")
            .agg(ice.max("name").alias("m"), ice.count_distinct("k").alias("d"))
            .window("10 seconds")
            .agg(ice.min("m"), ice.sum("d"))
        ),
        "SELECT (s, s + 10000000), min(m), sum(d) FROM (SELECT (w * 2000000 + 3999999) // 10000000"
        " * 10000000 AS s, max(name) AS m, count(DISTINCT k) AS d FROM (SELECT *, t // 2000000 - n"
        " AS w FROM a, range(2) r(n)) GROUP BY w) GROUP BY s",
        mode,
    )
    a = events(3)
    run = Run(spark, query, a, a, tmp_path)
    run.play(5, np.random.default_rng(3))
    run.flush()
    assert run.rows() == answer(query.sql, a, a)


@pytest.mark.parametrize("columns", ["k, window.end AS e, v", "v"])
def test_oracle_open_windows_that_do_not_show_their_key_are_a_table(
    columns: str, spark: SparkSession, tmp_path: Path
) -> None:
    query = Query(
        lambda a, _b: (
            a.window("6 seconds", "2 seconds")
            .groupBy("k")
            .agg(ice.sum("x").alias("v"))
            .selectExpr(*columns.split(", "))
        ),
        f"SELECT {columns.replace('window.end', 's + 6000000')} FROM (SELECT s, k, sum(x) AS v"
        " FROM (SELECT *, t // 2000000 * 2000000 - n * 2000000 AS s FROM a, range(3) r(n))"
        " GROUP BY ALL)",
    )
    a = events(4)
    run = Run(spark, query, a, a, tmp_path)
    run.play(9, np.random.default_rng(4))
    assert run.rows() == answer(query.sql, a, a)


@pytest.mark.parametrize("columns", ["w, k, names", "names"])
def test_oracle_rows_with_lists_wait_until_they_are_final(
    columns: str, spark: SparkSession, tmp_path: Path
) -> None:
    query = Query(
        lambda a, _b: (
            a.window("4 seconds")
            .groupBy("k")
            .agg(ice.collect_list("name").alias("names"))
            .events()
            .groupApply("window", lambda group: group.top(1, by="k"))
            .select("window AS w", "k", "names")
            .select(*columns.split(", "))
        ),
        f"SELECT {columns} FROM (SELECT (s, s + 4000000) AS w, k, s, coalesce(list(name ORDER BY t)"
        " FILTER (name IS NOT NULL), []) AS names FROM (SELECT *, t // 4000000 * 4000000 AS s"
        " FROM a) GROUP BY ALL) QUALIFY"
        " row_number() OVER (PARTITION BY s ORDER BY k DESC NULLS LAST) = 1",
        "append",
    )
    a = events(3)
    run = Run(spark, query, a, a, tmp_path)
    run.play(5, np.random.default_rng(3))
    run.flush()
    assert run.rows() == answer(query.sql, a, a)


def test_few_cells_of_the_matrix_are_refused() -> None:
    assert sum(bool(cell.refused) for cell in CELLS) <= len(CELLS) // 20
