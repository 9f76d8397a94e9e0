"""Every kind of window, aggregate and output mode, with what stands in front and behind, in SQL.

Idea: a cell of the matrix is a query of the API and the same query in DuckDB's SQL, composed of
the same parts. The plan is made by the API over a batch that Spark projects, and runs in one
process, in any number of batches, with disorder and restarts.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

import icestream as ice
from icestream.api.functions import AggregateExpression
from icestream.core.times import MINUS_INFINITY
from icestream.operators.dataflow.results import CHANGE, HOLDING
from icestream.plan.events.dataflow import Dataflow
from icestream.plan.nodes.queries import TIME
from icestream.runtime.local import LocalQuery
from icestream.runtime.tables.current_table import CurrentTable
from icestream.runtime.version.settings import Settings
from tests.fixtures.plans import QuickFiles

SECOND = 1_000_000
#: further than any event is out of order
SLACK = "20 seconds"
START = 60 * SECOND


def events(seed: int, count: int = 90) -> pa.Table:
    """Return events at different times, with nulls."""
    dice = np.random.default_rng(seed)
    times = START + 1000 * np.sort(dice.choice(40_000, count, replace=False))
    nulls = dice.random((3, count)) < 0.1
    return pa.table(
        {
            "t": pa.array(times),
            "k": pa.array(dice.integers(0, 4, count), mask=nulls[0]),
            "item": pa.array(dice.integers(0, 50, count)),
            "x": pa.array(dice.integers(1, 20, count) / 2, mask=nulls[1]),
            "name": pa.array(dice.choice(["a", "bb", "", "dé"], count), mask=nulls[2]),
        }
    )


@dataclass(frozen=True)
class Part:
    """A part of a query: how it is called, and SQL over a table in the place of {0}."""

    make: Callable[..., Any]
    sql: str
    #: the same, if rows are written once or with their changes
    history: str = ""


def _windowed(start: str, end: str, more: str = "") -> str:
    return f"SELECT {start} AS s, {end} AS e, * FROM ({{0}}) {more}"


_TUMBLING = _windowed("t // 2000000 * 2000000", "s + 2000000")
_SMALL = f"""SELECT e - 1 AS t, k, count(*) AS item, sum(x) AS x, max(name) AS name
    FROM ({_TUMBLING}) GROUP BY s, e, k"""


def _small(a: ice.Stream) -> ice.Result:
    found = a.window("2 seconds").groupBy("k").agg(
        ice.count().alias("item"), ice.sum("x").alias("x"), ice.max("name").alias("name")
    )  # fmt: skip
    return found


def _paired(a: ice.Stream, b: ice.Stream) -> Any:
    others = b.events().select("k", "item AS other")
    joined = a.events().select("k", "item", "x", "name")
    return joined.join(others, on="k", within="1 second")


FRONTS = {
    "source": Part(lambda a, _b: a, "SELECT * FROM a"),
    "window": Part(lambda a, _b: _small(a), _SMALL.format("SELECT * FROM a")),
    "join": Part(
        _paired,
        "SELECT greatest(a.t, b.t) AS t, a.k, a.item, a.x, a.name FROM a JOIN b ON a.k = b.k"
        " AND abs(a.t - b.t) <= 1000000",
    ),
    "top": Part(
        lambda a, _b: (
            _small(a)
            .events()
            .groupApply("window", lambda group: group.top(2, by=["x", "k"]))
            .select("k", "item", "x", "name")
        ),
        f"SELECT * FROM ({_SMALL.format('SELECT * FROM a')}) QUALIFY row_number() OVER"
        " (PARTITION BY t ORDER BY x DESC NULLS LAST, k DESC NULLS LAST) <= 2",
    ),
    "latestBy": Part(
        lambda a, _b: a.events().select("k", "item", "x", "name").untilNext("k"),
        "SELECT lead(t) OVER (PARTITION BY k ORDER BY t) - 1 AS t, k, item, x, name FROM a"
        " QUALIFY t IS NOT NULL",
    ),
}
WINDOWS = {
    "tumbling": Part(
        lambda rows: rows.window("5 seconds", startTime="1 second"),
        _windowed("(t - 1000000) // 5000000 * 5000000 + 1000000", "s + 5000000"),
    ),
    "sliding": Part(
        lambda rows: rows.window("6 seconds", "2 seconds"),
        _windowed("t // 2000000 * 2000000 - n * 2000000", "s + 6000000", ", range(3) r(n)"),
    ),
    "cumulative": Part(
        lambda rows: rows.cumulative("6 seconds", "2 seconds"),
        _windowed("t // 6000000 * 6000000", "s + (n + 1) * 2000000", ", range(3) r(n) WHERE t < e"),
    ),
    "session": Part(
        lambda rows: rows.session("1 second"),
        """SELECT min(t) OVER g AS s, max(t) OVER g + 1000000 AS e, * FROM (
            SELECT *, sum(fresh) OVER (PARTITION BY k ORDER BY t, item, x) AS number FROM (
                SELECT *, CASE WHEN t - lag(t) OVER (PARTITION BY k ORDER BY t, item, x) <= 1000000
                    THEN 0 ELSE 1 END AS fresh FROM ({0}))) WINDOW g AS (PARTITION BY k, number)""",
    ),
}
AGGREGATES: dict[str, tuple[Callable[[], AggregateExpression], str]] = {
    "count": (ice.count, "count(*)"),
    "sum": (lambda: ice.sum("x"), "sum(x)"),
    "avg": (lambda: ice.avg("x"), "avg(x)"),
    "variance": (lambda: ice.var_pop("x"), "var_pop(x)"),
    "max": (lambda: ice.max("item"), "max(item)"),
    "least name": (lambda: ice.min("name"), "min(name)"),
    "distinct": (lambda: ice.count_distinct("name"), "count(DISTINCT name)"),
    "set": (
        lambda: ice.collect_set("name"),
        "coalesce(list_sort(list(DISTINCT name) FILTER (name IS NOT NULL)), [])",
    ),
    "median": (lambda: ice.percentile("x", 0.5), "quantile_cont(x, 0.5)"),
    "sketch": (lambda: ice.approx_count_distinct("item"), "count(DISTINCT item)"),
}


def _heading(rows: ice.Result) -> str:
    return rows.columns[0]


def _joined(rows: ice.Result, again: ice.Result) -> Any:
    other = again.withColumnRenamed("v", "w")
    return rows.join(other, on=[_heading(rows), "k"]).select(_heading(rows), "k", "v", "w")


#: what follows the rows (s, e, k, v) of windows
BEHINDS = {
    "nothing": Part(lambda rows, _again: rows, "SELECT (s, e), k, v FROM ({0})"),
    "window": Part(
        lambda rows, _again: (
            rows.window("10 seconds")
            .groupBy("k")
            .agg(ice.count().alias("n"), ice.count("v").alias("c"))
        ),
        "SELECT ((e - 1) // 10000000 * 10000000, (e - 1) // 10000000 * 10000000 + 10000000), k,"
        " count(*), count(v) FROM ({0}) GROUP BY ALL",
    ),
    "aggregate": Part(
        lambda rows, _again: rows.groupBy("k").agg(
            ice.count().alias("n"), ice.count("v").alias("c")
        ),
        "SELECT k, count(*), count(v) FROM ({0}) GROUP BY k",
        # a row for each instant at which the answer changes; the last one holds for ever
        "SELECT DISTINCT k, count(*) OVER w, count(v) OVER w FROM ({0})"
        " WINDOW w AS (PARTITION BY k ORDER BY e)"
        " QUALIFY {2} OR e < max(e) OVER (PARTITION BY k)",
    ),
    "top": Part(
        lambda rows, _again: rows.events().groupApply(
            _heading(rows), lambda group: group.top(1, by="k")
        ),
        "SELECT (s, e), k, v FROM ({0}) QUALIFY"
        " row_number() OVER (PARTITION BY s, e ORDER BY k DESC NULLS LAST) = 1",
    ),
    "join": Part(_joined, "SELECT (s, e), k, v, w FROM ({0}) JOIN ({1}) USING (s, e, k)"),
    "union": Part(
        lambda rows, again: rows.where("k > 1").union(again.where("k <= 1")),
        "SELECT (s, e), k, v FROM ({0}) WHERE k > 1"
        " UNION ALL SELECT (s, e), k, w FROM ({1}) WHERE k <= 1",
    ),
}
MODES = ("append", "update", "changes", "now")


@dataclass(frozen=True)
class Cell:
    """A query of the matrix."""

    front: str
    window: str
    aggregate: str
    behind: str
    mode: str

    def make(self, a: ice.Stream, b: ice.Stream) -> Any:
        """Return the query over two streams."""
        rows = FRONTS[self.front].make(a, b)
        rows = rows if isinstance(rows, ice.Stream | ice.Result) else ice.stream(rows)
        aggregate = AGGREGATES[self.aggregate][0]().alias("v")
        made = WINDOWS[self.window].make(rows).groupBy("k").agg(aggregate)
        again = WINDOWS[self.window].make(rows).groupBy("k").agg(aggregate)
        return BEHINDS[self.behind].make(made, again)

    @property
    def sql(self) -> str:
        """Return the same in SQL over `a` and `b`, columns t, k, item, x, name."""
        assigned = WINDOWS[self.window].sql.format(FRONTS[self.front].sql)
        value = AGGREGATES[self.aggregate][1]
        inside = f"FROM ({assigned}) WHERE s <= t AND t < e GROUP BY s, e, k"
        rows = f"SELECT s, e, k, {value} AS v {inside}"
        behind = BEHINDS[self.behind]
        text = behind.sql if self.mode in HOLDING else behind.history or behind.sql
        return text.format(rows, rows.replace(" AS v ", " AS w "), self.mode == "changes")

    @property
    def of_closed_windows(self) -> bool:
        """Return whether mode `changes` has rows of closed windows whose groups changed."""
        fixed = ("count", "sum", "avg", "variance", "max")
        plain = self.front == "source" and self.behind == "nothing" and self.window != "session"
        return self.mode == "changes" and plain and self.aggregate in fixed

    @property
    def refused(self) -> str:
        """Return why the query is refused; nothing if it is not."""
        if self.mode == "update" and self.window == "session" and self.behind == "nothing":
            return "a session that grows"
        return ""


def answer(sql: str, a: pa.Table, b: pa.Table) -> Counter[Any]:
    """Return the rows of a query over events."""
    with duckdb.connect() as database:
        database.register("a", a)
        database.register("b", b)
        found = database.execute(sql).fetchall()
    return Counter(tuple(map(shown, row)) for row in found)


def shown(value: Any) -> Any:
    """Return a value in the form in which answers are compared."""
    if isinstance(value, dict):
        return tuple(map(shown, value.values()))
    if isinstance(value, list | tuple):
        return tuple(map(shown, value))
    if isinstance(value, float):
        return round(value, 6)
    return int(value.timestamp() * 1e6 + 0.5) if hasattr(value, "timestamp") else value


@dataclass(frozen=True)
class Query:
    """A query that is not in the matrix."""

    make: Callable[[ice.Stream, ice.Stream], Any]
    sql: str
    mode: str = "now"


class Run:
    """A query of the API over two tables, run in one process."""

    def __init__(
        self,
        spark: SparkSession,
        cell: Any,
        a: pa.Table,
        b: pa.Table,
        folder: Path,
        slack: str = SLACK,
    ) -> None:
        """Plan the query, and read what it would read of all events."""
        streams = [
            ice.stream(_frame(spark, each), "ts", slack, name=name)
            for name, each in (("a", a), ("b", b))
        ]
        writer = cell.make(*streams).writeStream.outputMode(cell.mode)
        built = writer._built
        self.plan = writer._planned(built.plan, [cell.mode])
        rows = built.events.toArrow()
        self.batch = rows.cast(pa.schema(list(self.plan.batch_schema))).combine_chunks()
        self.mode, self._folder = cell.mode, folder
        self.found: list[pa.Table] = []
        #: the watermark before the batch of each event of the only source, by its time
        self.watermarks: dict[int, int] = {}
        self._open()

    def _open(self) -> None:
        root, local = (os.path.join(self._folder, name) for name in ("checkpoint", "local"))
        settings = Settings(root=root, local=local, budget=32 << 20, shards=2)
        self.query = LocalQuery(self.plan, settings, QuickFiles())
        self.table = CurrentTable(QuickFiles(), f"{root}/now/0", part_bytes=2000, runs=2)

    @property
    def _replaces(self) -> bool:
        return isinstance(self.plan, Dataflow) and self.plan.views[0].mode == "now"

    def play(self, batches: int, dice: np.random.Generator, restarts: bool = True) -> None:
        """Run all events, out of order by up to three seconds."""
        times = self.batch.column(TIME).cast(pa.int64()).to_numpy()
        order = np.argsort(times + dice.integers(0, 3 * SECOND, len(times)), kind="stable")
        cuts = [0, *np.sort(dice.integers(0, len(times) + 1, batches - 1)), len(times)]
        for number, (first, last) in enumerate(pairwise(cuts)):
            rows = self.batch.take(pa.array(order[first:last])).combine_chunks()
            committed = self.query.driver.last
            reached = MINUS_INFINITY if committed is None else committed.watermark
            self.watermarks |= dict.fromkeys(times[order[first:last]].tolist(), reached)
            self._take(self.query.feed([[rows.to_batches()[0]]] if len(rows) else [[]]))
            if restarts and number % 7 == 3:
                self.query.close()
                self._open()

    def flush(self) -> None:
        """Make all rows final."""
        self._take(self.query.flush())

    def _take(self, found: pa.Table) -> None:
        self.found.append(found)
        if self._replaces:
            view = self.plan.views[0]
            assert self.query.driver.last is not None
            version = self.query.driver.last.version
            for _ in range(2):  # a version may be delivered twice
                self.table.apply(version, [found], self.plan.results(view), view.key)

    def rows(self) -> Counter[Any]:
        """Return the rows: of the table, or those that were written."""
        tables = list(self.table.read(0)) if self._replaces else self.found
        dropped = ("lifetime", CHANGE)
        found: Counter[Any] = Counter()
        if self.mode == "update" and self.plan.views[0].key:
            return self._newest(self.plan.views[0].key)
        for table in tables:
            for row in table.to_pylist():
                sign = row.get(CHANGE, 1) if "lifetime" in row else 1
                found[tuple(shown(v) for n, v in row.items() if n not in dropped)] += sign
        return +found

    def _newest(self, key: tuple[str, ...]) -> Counter[Any]:
        """Return the last row of each key, of which a version has one."""
        newest: dict[Any, Any] = {}
        for table in self.found:
            written = {shown([row[name] for name in key]): row for row in table.to_pylist()}
            assert len(written) == table.num_rows
            newest |= written
        return Counter(tuple(map(shown, row.values())) for row in newest.values())


def _frame(spark: SparkSession, rows: pa.Table) -> Any:
    times = rows.column("t").cast(pa.timestamp("us", "UTC"))
    return spark.createDataFrame(rows.drop_columns(["t"]).append_column("ts", times))
