from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.lifetimes.window_copies import WINDOW
from icestream.plan.events.dataflow import Dataflow
from icestream.plan.events.queries import compiled
from icestream.plan.nodes.queries import Source
from icestream.plan.windows.grid import Cumulative, Windows
from icestream.runtime.local import LocalQuery
from icestream.runtime.tables.current_table import CurrentTable
from icestream.runtime.version.settings import Settings
from tests.fixtures.dataflow_plans import SECOND, PlanStream
from tests.fixtures.plans import INSTANT, QuickFiles
from tests.suites.dataflow_conformance import open_dataflow

EVENTS = pa.schema(
    [("k", pa.int64()), ("item", pa.int64()), ("x", pa.float64()), ("name", pa.string())]
)
#: events of the second source have other names, except for the key
OTHERS = pa.schema([("k", pa.int64()), ("page", pa.int64()), ("y", pa.float64())])
SLACK = 20 * SECOND


@dataclass(frozen=True)
class Case:
    """A query, and the same in SQL over the events that are alive, `a` and `b`."""

    make: Callable[[PlanStream, PlanStream], PlanStream]
    sql: str
    #: how long events live; None for ever
    life: int | None = None
    #: whether the query looks back, so that it keeps the watermark
    looks_back: bool = False


def grouped(*aggregates: Aggregate) -> Callable[[PlanStream, PlanStream], PlanStream]:
    return lambda a, _b: a.apply(["k"], lambda group: group.agg(*aggregates))


def joined(a: PlanStream, b: PlanStream) -> PlanStream:
    there = a.where("k IS NOT NULL")
    other = b.where("k IS NOT NULL")
    return there.apply(
        ["k"],
        lambda left, right: left.join(right.select("k AS k2", "page"), hidden=["k2"]),
        other,
    )


def ranked(a: PlanStream, _b: PlanStream) -> PlanStream:
    counts = a.apply(["k", "item"], lambda group: group.agg(Aggregate("count", None, "n")))
    return counts.apply(["n"], lambda group: group.agg(Aggregate("count", None, "groups")))


AGGREGATES = {
    "count": (Aggregate("count", None, "v"), "count(*)"),
    "sum": (Aggregate("sum", "x", "v"), "sum(x)"),
    "max": (Aggregate("max", "item", "v"), "max(item)"),
    "least name": (Aggregate("min", "name", "v"), "min(name)"),
    "distinct": (Aggregate("count_distinct", "name", "v"), "count(DISTINCT name)"),
    "set": (
        Aggregate("collect_set", "name", "v"),
        "coalesce(list_sort(list(DISTINCT name) FILTER (name IS NOT NULL)), [])",
    ),
    "median": (
        Aggregate("percentile", "x", "v", parameters=(0.5,)),
        "quantile_cont(x, 0.5)",
    ),
    "last": (Aggregate("last", "item", "v"), "last(item ORDER BY t)"),
    "list": (Aggregate("collect_list", "item", "v"), None),
}
ORDERED = ("last", "list")


def aggregate_cases() -> dict[str, Case]:
    found = {}
    for name, (aggregate, sql) in AGGREGATES.items():
        listed = "coalesce(list(item ORDER BY t) FILTER (item IS NOT NULL), [])"
        text = f"SELECT k, {sql or listed} FROM a GROUP BY k"
        for life in (None, 6 * SECOND):
            case = Case(grouped(aggregate), text, life, name in ORDERED)
            found[f"{name}, {'for ever' if life is None else 'last'}"] = case
    return found


CASES = {
    **aggregate_cases(),
    "where": Case(
        lambda a, b: grouped(Aggregate("sum", "x", "s"))(a, b).where("s > 12").select("k", "s"),
        "SELECT k, sum(x) FROM a GROUP BY k HAVING sum(x) > 12",
        6 * SECOND,
    ),
    "join": Case(joined, "SELECT a.k, item, x, name, page FROM a JOIN b ON a.k = b.k", 4 * SECOND),
    "join for ever": Case(joined, "SELECT a.k, item, x, name, page FROM a JOIN b ON a.k = b.k"),
    "aggregate of a join": Case(
        lambda a, b: joined(a, b).apply(
            ["k", "page"], lambda group: group.agg(Aggregate("sum", "x", "s"))
        ),
        "SELECT a.k, page, sum(x) FROM a JOIN b ON a.k = b.k GROUP BY ALL",
        6 * SECOND,
    ),
    "difference": Case(
        lambda a, b: a.apply(["k"], lambda left, right: left.difference(right), b),
        "SELECT k, item, x, name FROM a"
        " WHERE NOT EXISTS (SELECT 1 FROM b WHERE b.k IS NOT DISTINCT FROM a.k)",
        3 * SECOND,
    ),
    "top": Case(
        lambda a, _b: a.select("k", "x + item / 100.0 AS x").apply(
            ["k"], lambda group: group.top(2, "x")
        ),
        "SELECT k, x + item / 100.0 AS z FROM a QUALIFY"
        " row_number() OVER (PARTITION BY k ORDER BY z DESC NULLS LAST) <= 2",
        8 * SECOND,
    ),
    "union": Case(
        lambda a, b: a.select("k", "item AS what").union(b.select("k", "page AS what")),
        "SELECT k, item FROM a UNION ALL SELECT k, page FROM b",
        2 * SECOND,
    ),
    "counts of counts": Case(
        ranked,
        "SELECT n, count(*) FROM (SELECT k, item, count(*) AS n FROM a GROUP BY ALL) GROUP BY n",
        9 * SECOND,
    ),
}
WINDOWS: dict[str, tuple[Windows | Cumulative, str]] = {
    "tumbling": (
        Windows(5 * SECOND, 5 * SECOND, SECOND),
        "SELECT (t - 1000000) // 5000000 * 5000000 + 1000000 AS s, s + 5000000 AS e, * FROM a",
    ),
    "sliding": (
        Windows(6 * SECOND, 2 * SECOND),
        "SELECT t // 2000000 * 2000000 - n * 2000000 AS s, s + 6000000 AS e, *"
        " FROM a, range(3) r(n)",
    ),
    "cumulative": (
        Cumulative(6 * SECOND, 2 * SECOND),
        "SELECT t // 6000000 * 6000000 AS s, s + (n + 1) * 2000000 AS e, *"
        " FROM a, range(3) r(n) WHERE t < e",
    ),
}


def events(seed: int, count: int = 120) -> pa.Table:
    """Return events of both sources, at different times, some without values."""
    dice = np.random.default_rng(seed)
    times = 60 * SECOND + 1000 * np.sort(dice.choice(40 * 1000, count, replace=False))
    nulls = dice.random((4, count)) < 0.1
    return pa.table(
        {
            "t": pa.array(times),
            "source": pa.array(dice.integers(0, 2, count), pa.int32()),
            "k": pa.array(dice.integers(0, 6, count), mask=nulls[0]),
            "item": pa.array(dice.integers(0, 50, count)),
            "x": pa.array(dice.integers(1, 20, count) / 2, mask=nulls[2]),
            "name": pa.array(dice.choice(["a", "bb", "", "dé"], count), mask=nulls[3]),
        }
    )


def batch_of(flow: Dataflow, rows: pa.Table) -> pa.RecordBatch:
    """Return events as ingest reads them: each source has its own columns."""
    second = rows.column("source").to_numpy() == 1
    columns: list[Any] = [rows.column("t").combine_chunks().cast(flow.time), rows.column("source")]
    for number, schema in enumerate(flow.columns):
        for each in schema:
            name = {"page": "item", "y": "x"}.get(each.name, each.name)
            values = rows.column(name).to_pylist()
            mine = second if number else ~second
            cells = [value if own else None for value, own in zip(values, mine, strict=True)]
            columns.append(pa.array(cells, each.type))
    arrays = [c.combine_chunks() if isinstance(c, pa.ChunkedArray) else c for c in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=flow.batch_schema)


def flow_of(case: Case, mode: str = "now", slack: int = SLACK) -> Dataflow:
    streams = [PlanStream.of(EVENTS), PlanStream.of(OTHERS, 1)]
    streams = [each.forever() if not case.life else each.window(case.life) for each in streams]
    sources = (Source("a", slack), Source("b", slack))
    made = case.make(*streams)
    return compiled(((made.node, mode),), {0: 0, 1: 1}, sources, (EVENTS, OTHERS), INSTANT)


class Asked:
    """A query in mode `now`, whose table is asked after every version."""

    def __init__(self, flow: Dataflow, folder: Path) -> None:
        """Open the query and its table."""
        self.flow, self._folder = flow, folder
        self.written: list[pa.Table] = []
        self._open()

    def _open(self) -> None:
        root = os.path.join(self._folder, "checkpoint")
        local = os.path.join(self._folder, "local")
        settings = Settings(root=root, local=local, budget=32 << 20, shards=2)
        self.query = LocalQuery(self.flow, settings, QuickFiles())
        self.table = CurrentTable(QuickFiles(), f"{root}/now/0", part_bytes=2000, runs=2)

    def restart(self) -> None:
        """Open the query again."""
        self.query.close()
        self._open()

    def feed(self, rows: pa.Table) -> None:
        """Run a batch."""
        view = self.flow.views[0]
        found = self.query.feed([[batch_of(self.flow, rows)]])
        assert self.query.driver.last is not None
        version = self.query.driver.last.version
        for _ in range(2):  # a version may be delivered twice
            self.table.apply(version, [found], self.flow.results(view), view.key)
        self.written.append(found)

    def rows(self) -> Counter[Any]:
        """Return the rows of the table."""
        found = [row for part in self.table.read(0) for row in part.to_pylist()]
        return Counter(tuple(map(shown, row.values())) for row in found)


def shown(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(map(shown, value.values()))
    if isinstance(value, list):
        return tuple(map(shown, value))
    if isinstance(value, float):
        return round(value, 6)
    return int(value.timestamp() * 1e6 + 0.5) if hasattr(value, "timestamp") else value


def expected(sql: str, rows: pa.Table, life: int | None) -> Counter[Any]:
    now = rows.column("t").to_numpy().max()
    ends = np.inf if life is None else life
    alive = rows.filter(pa.array(rows.column("t").to_numpy() + ends > now))
    second = alive.column("source").to_numpy() == 1
    with duckdb.connect() as database:
        database.register("a", alive.filter(pa.array(~second)))
        database.register(
            "b", alive.filter(pa.array(second)).rename_columns(["t", "s", "k", "page", "y", "z"])
        )
        found = database.execute(sql).fetchall()
    return Counter(tuple(map(shown, row)) for row in found)


def cut(rows: pa.Table, batches: int, dice: np.random.Generator) -> list[pa.Table]:
    bounds = np.sort(dice.integers(0, rows.num_rows + 1, batches - 1))
    return [
        rows.slice(first, last - first)
        for first, last in zip([0, *bounds], [*bounds, rows.num_rows], strict=True)
    ]


def shuffled(rows: pa.Table, dice: np.random.Generator) -> pa.Table:
    times = rows.column("t").to_numpy() + dice.integers(0, 3 * SECOND, rows.num_rows)
    return rows.take(pa.array(np.argsort(times, kind="stable")))


@pytest.mark.sample(6)
@pytest.mark.parametrize("batches", [1, 9, 30])
@pytest.mark.parametrize("name", CASES)
def test_oracle_a_table_is_the_query_over_what_is_alive(
    name: str, batches: int, tmp_path: Path
) -> None:
    case, rows, dice = CASES[name], events(7), np.random.default_rng(batches)
    flow = flow_of(case)
    assert flow.forgets_past is not case.looks_back
    asked = Asked(flow, tmp_path)
    came: list[pa.Table] = []
    for number, batch in enumerate(cut(shuffled(rows, dice), batches, dice)):
        asked.feed(batch)
        came.append(batch)
        if batch.num_rows and number % 4 == 0:
            assert asked.rows() == expected(case.sql, pa.concat_tables(came), case.life)
        if number % 5 == 2:
            asked.restart()
    wanted = expected(case.sql, rows, case.life)
    assert asked.rows() == wanted
    assert len(wanted) > 0


@pytest.mark.sample(4)
@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("name", AGGREGATES)
def test_oracle_windows_are_in_the_table_while_they_are_open(
    name: str, windows: str, tmp_path: Path
) -> None:
    kind, assigned = WINDOWS[windows]
    aggregate, sql = AGGREGATES[name]
    made = PlanStream.of(EVENTS).open_windows(kind, ["k"], aggregate)
    flow = compiled(((made.node, "now"),), {0: 0}, (Source("a", SLACK),), (EVENTS,), INSTANT)
    sql = sql or "coalesce(list(item ORDER BY t) FILTER (item IS NOT NULL), [])"
    text = f"SELECT (s, e), k, {sql} FROM ({assigned}) WHERE s <= t AND t < e GROUP BY s, e, k"
    rows, dice = events(11), np.random.default_rng(3)
    rows = rows.set_column(1, "source", pa.array(np.zeros(rows.num_rows, np.int32)))
    asked, came = Asked(flow, tmp_path), []
    for number, batch in enumerate(cut(shuffled(rows, dice), 8, dice)):
        asked.feed(batch)
        came.append(batch)
        if number in (1, 5):
            assert asked.rows() == expected(text, pa.concat_tables(came), None)
            asked.restart()
    assert asked.rows() == expected(text, rows, None)


@pytest.mark.parametrize("life", [None, 6 * SECOND])
def test_bounded_a_version_writes_at_most_the_keys_that_changed(
    life: int | None, tmp_path: Path
) -> None:
    count, sum_ = Aggregate("count", None, "n"), Aggregate("sum", "item", "s")
    flow = flow_of(Case(grouped(count, sum_), "", life))
    asked, dice = Asked(flow, tmp_path), np.random.default_rng(1)
    reached, written = 0, 0
    keys = times = np.zeros(0, np.int64)
    for number, size in enumerate([99_000, 1_000] * 10):
        new = reached + np.sort(dice.integers(1, SECOND * size // 10_000, size))
        chosen = dice.integers(0, 1_000 if size > 1_000 else 50, size)
        keys, times = np.append(keys, chosen), np.append(times, new)
        columns = [new, np.zeros(size, np.int32), chosen, chosen, chosen / 2]
        arrays = [pa.array(each) for each in columns] + [pa.nulls(size, pa.string())]
        arrays += [pa.nulls(size, each.type) for each in OTHERS][: len(flow.batch_schema) - 6]
        arrays[0] = arrays[0].cast(flow.time)
        batch = pa.RecordBatch.from_arrays(arrays, schema=flow.batch_schema)
        found = asked.query.feed([[batch]])
        before, reached = reached, int(new[-1])
        gone = (
            np.zeros(0)
            if life is None
            else keys[(times + life > before) & (times + life <= reached)]
        )
        changed = set(chosen.tolist()) | set(gone.tolist())
        assert set(found.column("k").to_pylist()) <= changed, number
        assert found.num_rows <= len(changed)
        written += found.num_rows
    assert len(keys) == 1_000_000
    assert 10_000 <= written <= 20_000


@pytest.mark.parametrize("seed", range(3))
def test_oracle_a_late_event_fires_its_window_again_until_the_slack_is_over(
    seed: int, tmp_path: Path
) -> None:
    length, slack = 5 * SECOND, 8 * SECOND
    chosen = Aggregate("count", None, "n"), Aggregate("median", "item", "middle")
    made = PlanStream.of(EVENTS).open_windows(Windows(length, length), ["k"], *chosen)
    flow = compiled(((made.node, "now"),), {0: 0}, (Source("a", slack),), (EVENTS,), INSTANT)
    rows, dice = events(seed, 300), np.random.default_rng(seed)
    rows = rows.set_column(1, "source", pa.array(np.zeros(rows.num_rows, np.int32)))
    delay = dice.integers(0, 20 * SECOND, rows.num_rows)
    arrived = np.argsort(rows.column("t").to_numpy() + delay, kind="stable")
    asked, windows = Asked(flow, tmp_path), dict[tuple[int, Any], list[int]]()
    latest, again, late = -slack, 0, 0
    for batch in cut(rows.take(pa.array(arrived)), 12, dice):
        asked.feed(batch)
        open_from, ended = (latest - slack) // length * length, latest
        changed = set()
        for event in batch.to_pylist():
            window = event["t"] // length * length
            if window < open_from:
                late += 1
                continue
            changed.add((window, event["k"]))
            again += window + length <= ended and (window, event["k"]) in windows
            windows.setdefault((window, event["k"]), []).append(event["item"])
            latest = max(latest, event["t"])
        latest = max([latest, *batch.column("t").to_pylist()])
        found = {
            (shown(row[WINDOW])[0], row["k"]): (row["change"], row["n"], row["middle"])
            for row in asked.written[-1].to_pylist()
        }
        assert found == {
            key: (1, len(windows[key]), float(np.median(windows[key]))) for key in changed
        }
    # windows that events had passed fired again, and some events came after the slack
    assert min(again, late) > 5


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", [each for each in CASES if each != "union"])
def test_rows_are_a_function_of_the_events(name: str, tmp_path: Path) -> None:
    found: list[tuple[int, Counter[str]]] = []
    # without slack, in order, the watermark stands where events begin and end
    for slack, batches in ((0, 1), (0, 9), (0, 40), (SLACK, 1), (SLACK, 12), (SLACK, 25)):
        flow = flow_of(CASES[name], "append", slack)
        dice, rows = np.random.default_rng(batches), events(7)
        query = open_dataflow(flow, tmp_path / f"{slack} {batches}")
        arriving = rows if slack == 0 or batches == 1 else shuffled(rows, dice)
        parts = [query.feed([[batch_of(flow, each)]]) for each in cut(arriving, batches, dice)]
        written = pa.concat_tables(parts).to_pylist()
        found.append((slack, Counter(map(repr, written))))
    first = dict(reversed(found))
    for slack, each in found:
        assert each == first[slack]
        assert len(each) > 0


def test_a_version_writes_at_most_the_keys_that_changed(tmp_path: Path) -> None:
    asked = Asked(flow_of(CASES["count, for ever"]), tmp_path)
    dice = np.random.default_rng(5)
    for batch in cut(shuffled(events(3, 400), dice), 6, dice):
        asked.feed(batch)
        first = batch.column("source").to_numpy() == 0
        keys = {*np.asarray(batch.column("k").to_pylist(), dtype=object)[first]}
        assert asked.written[-1].num_rows <= len(keys)


def test_an_idle_source_holds_nothing_back(tmp_path: Path) -> None:
    asked = Asked(flow_of(CASES["union"]), tmp_path)
    rows = events(9)
    rows = rows.set_column(1, "source", pa.array(np.zeros(rows.num_rows, np.int32)))
    asked.feed(rows)
    assert asked.rows() == expected(CASES["union"].sql, rows, CASES["union"].life)


def test_oracle_what_holds_now_is_the_same_with_and_without_the_past(tmp_path: Path) -> None:
    tables: list[Counter[Any]] = []
    for name in ("aggregate of a join", "counts of counts"):
        flow = flow_of(CASES[name])
        for number, each in enumerate((flow, replace(flow, forgets_past=False))):
            dice = np.random.default_rng(2)
            asked = Asked(each, tmp_path / f"{name} {number}")
            for batch in cut(shuffled(events(4), dice), 5, dice):
                asked.feed(batch)
            tables.append(asked.rows())
        assert tables[-1] == tables[-2]
