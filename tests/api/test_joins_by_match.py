"""Joins within a bound on times beside DuckDB's over the same rows; no Spark is needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import icestream as ice
from icestream.api.event_joins import Within
from icestream.api.events import Events
from icestream.core.errors import DefinitionError
from icestream.plan.events.dataflow import Dataflow, source_column
from icestream.plan.events.queries import compiled
from icestream.plan.nodes.events import FromSource
from icestream.plan.nodes.queries import SOURCE, TIME, Source
from icestream.plan.nodes.spilling import Spilling
from tests.fixtures.join_plans import forced
from tests.fixtures.plans import INSTANT, open_query

Rows = Counter[tuple[Any, ...]]

#: the streams: orders, payments, shipments; each with a key that may be null
STREAMS = {
    name: pa.schema([("t" + name, INSTANT), ("k" + name, pa.int64()), ("v" + name, pa.int64())])
    for name in "abc"
}
#: the watermark moves by milliseconds
MS = 1_000
SLACK = 30 * MS


@dataclass
class World:
    """Rows of the streams, in the order in which they arrive."""

    tables: Mapping[str, pa.Table]
    dice: np.random.Generator
    batches: int

    @property
    def names(self) -> list[str]:
        """Return the names of the streams."""
        return list(self.tables)

    @staticmethod
    def random(
        seed: int, names: str = "ab", rows: int = 40, span: int = 300, batches: int = 5
    ) -> World:
        dice = np.random.default_rng(seed)
        tables = {}
        for name in names:
            schema = STREAMS[name]
            count = int(dice.integers(rows // 2, rows)) if dice.random() < 0.9 else 0
            times = MS * np.sort(dice.integers(1000, 1000 + span, count))
            #: disorder within the slack
            order = np.argsort(times + dice.integers(0, SLACK, count), kind="stable")
            keys = pa.array(dice.integers(0, 4, count), mask=dice.random(count) < 0.1)
            values = pa.array(dice.integers(0, 4, count), mask=dice.random(count) < 0.1)
            columns = [pa.array(times[order]).cast(INSTANT), keys, values]
            tables[name] = pa.table(columns, schema=schema)
        return World(tables, dice, batches)

    def stream(self, name: str) -> Events:
        return Events(FromSource(STREAMS[name], source=self.names.index(name)), {})

    def splits(self, flow: Dataflow) -> Iterator[list[list[pa.RecordBatch]]]:
        """Yield batches of all streams, cut at the same times."""
        cuts = np.sort(MS * self.dice.integers(1000, 1300, self.batches - 1))
        edges = [0, *cuts.tolist(), 2**62]
        for first, last in pairwise(edges):
            split = []
            for number, name in enumerate(self.names):
                table = self.tables[name]
                arrived = np.maximum.accumulate(
                    table.column(0).cast(pa.int64()).to_numpy(), dtype=np.int64
                )
                part = table.filter(pa.array((arrived >= first) & (arrived < last)))
                split.append(_as_input(part, number, flow))
            yield [split]

    def rows_of(
        self, query: Events, folder: Path, mode: str = "append", *, restart: bool = False
    ) -> pa.Table:
        """Run a query; with `restart` it is opened again for each batch, with any memory."""
        flow = self.flow(query, mode)
        local = open_query(flow, str(folder))
        made = []
        for split in self.splits(flow):
            made.append(local.feed(split))
            if restart:
                local.close()
                budget = f"{self.dice.choice([8, 16, 64])} MB"
                local = open_query(flow, str(folder), budget=budget)
        made.append(local.flush())
        local.close()
        return pa.concat_tables(made)

    def flow(self, query: Events, mode: str = "append") -> Dataflow:
        numbers = {number: number for number in range(len(self.names))}
        sources = tuple(Source(name, SLACK) for name in self.names)
        columns = tuple(STREAMS[name] for name in self.names)
        return compiled(((query._node, mode),), numbers, sources, columns, INSTANT)

    def sql(self, text: str) -> Rows:
        with duckdb.connect() as database:
            for name, table in self.tables.items():
                numbers = table.set_column(0, table.schema.names[0], table.column(0).cast("int64"))
                database.register(name, numbers)
            return Counter(database.execute(text).fetchall())


def _as_input(table: pa.Table, number: int, flow: Dataflow) -> pa.RecordBatch:
    columns = []
    for each in flow.batch_schema:
        if each.name == TIME:
            columns.append(table.column(0))
        elif each.name == SOURCE:
            columns.append(pa.array([number] * len(table), pa.int32()))
        else:
            place = next((p for p in range(3) if source_column(number, p) == each.name), None)
            columns.append(
                pa.nulls(len(table), each.type) if place is None else table.column(place)
            )
    (batch,) = pa.table(columns, schema=flow.batch_schema).combine_chunks().to_batches() or [
        pa.RecordBatch.from_pylist([], schema=flow.batch_schema)
    ]
    return batch


def payloads(table: pa.Table, columns: Sequence[str]) -> Rows:
    """Return rows without lifetimes, with times as numbers."""
    found: Rows = Counter()
    values = [table.column(name).cast(pa.int64()).to_pylist() for name in columns]
    changes = (
        table.column("change").to_pylist() if "change" in table.column_names else [1] * len(table)
    )
    for *row, change in zip(*values, changes, strict=True):
        found[tuple(row)] += change
    return Counter({row: count for row, count in found.items() if count})


#: SQL's words for kinds of joins
KINDS = {"inner": "JOIN", "left": "LEFT JOIN", "right": "RIGHT JOIN", "full": "FULL JOIN"}
COLUMNS = {name: list(schema.names) for name, schema in STREAMS.items()}


def _bounds(dice: np.random.Generator) -> tuple[int, int]:
    low, high = sorted((MS * dice.integers(-60, 60, 2)).tolist())
    return low, high


def _sql(how: str, condition: str, left: str = "a", right: str = "b") -> str:
    if how in ("semi", "anti"):
        word = "EXISTS" if how == "semi" else "NOT EXISTS"
        return f"SELECT * FROM {left} WHERE {word} (SELECT 1 FROM {right} WHERE {condition})"
    return f"SELECT * FROM {left} {KINDS[how]} {right} ON {condition}"


HOWS = ("inner", "left", "right", "full", "semi", "anti")


def _source(world: World, name: str) -> tuple[Events, str]:
    """Return a stream, perhaps filtered, projected or united with a part of itself, and its SQL."""
    stream, value = world.stream(name), f"v{name}"
    kind = world.dice.choice(["plain", "plain", "filter", "project", "union"])
    if kind == "filter":
        return stream.where(f"{value} < 3"), f"(SELECT * FROM {name} WHERE {value} < 3) {name}"
    if kind == "project":
        columns = [f"t{name}", f"k{name}", f"{value} + 1 AS {value}"]
        return stream.select(*columns), f"(SELECT {', '.join(columns)} FROM {name}) {name}"
    if kind == "union":
        parts = [f"{value} < 2", f"{value} > 0"]
        texts = " UNION ALL ".join(f"SELECT * FROM {name} WHERE {part}" for part in parts)
        return stream.where(parts[0]).union(stream.where(parts[1])), f"({texts}) {name}"
    return stream, name


def check_one(seed: int, folder: Path) -> None:
    """Compare a random join, which fetches or defers, with DuckDB's."""
    world = World.random(seed, batches=5 + seed % 8)
    dice = world.dice
    how, defer = HOWS[seed % len(HOWS)], bool(dice.random() < 0.4)
    low, high = _bounds(dice)
    where = [None, "va < vb", "va + vb IS NOT NULL AND ka <> 2"][int(dice.integers(0, 3))]
    mode = "changes" if seed % 5 == 0 and not defer else "append"
    (left, left_sql), (right, right_sql) = (_source(world, name) for name in "ab")
    query = left.join(
        right,
        on=[("ka", "kb")],
        how=how,
        within=(low, high),
        where=where,
        onPressure=str(dice.choice(["auto", "defer"])) if defer else "fetch",
    )
    condition = f"ka = kb AND tb BETWEEN ta + {low} AND ta + {high}"
    condition += f" AND ({where})" if where else ""
    text = _sql(how, condition, left_sql, right_sql)
    after = [None, "ka IS NULL OR ka <> 1"][int(dice.integers(0, 2))]
    if after is not None:
        query, text = query.where(after), f"SELECT * FROM ({text}) x WHERE {after}"
    columns = COLUMNS["a"] + (COLUMNS["b"] if how not in ("semi", "anti") else [])
    assert query.columns == columns
    with forced(dice, 0.5 * defer):
        table = world.rows_of(query, folder, mode, restart=seed % 3 == 0)
    assert payloads(table, columns) == world.sql(text), (seed, how, low, high, where, defer)
    if how != "inner":
        kept = "tb" if how == "right" else "ta"
        starts = table.column("lifetime").combine_chunks().field("start")
        for start, row in zip(starts.to_pylist(), table.to_pylist(), strict=True):
            assert start == (row[kept] or row["tb"])


@pytest.mark.sample(8)
@pytest.mark.parametrize("seed", range(18))
def test_oracle_joins_by_match_equal_sql(seed: int, tmp_path: Path) -> None:
    check_one(seed, tmp_path)


@pytest.mark.sample(2)
@pytest.mark.parametrize("pressure", ["fetch", "defer"])
@pytest.mark.parametrize("how", ["left", "right", "full", "semi"])
def test_matches_come_in_the_batch_in_which_they_arise(
    how: str, pressure: str, tmp_path: Path
) -> None:
    world = World.random(7, rows=80, batches=6)
    query = world.stream("a").join(
        world.stream("b"), on=[("ka", "kb")], how=how, within=(-20 * MS, 40 * MS),
        where="va <> 2", onPressure=pressure,
    )  # fmt: skip
    condition = "ka = kb AND tb BETWEEN ta - 20000 AND ta + 40000 AND va <> 2"
    columns = COLUMNS["a"] + (COLUMNS["b"] if how != "semi" else [])
    flow = world.flow(query)
    local = open_query(flow, str(tmp_path))
    arrived = {name: schema.empty_table() for name, schema in STREAMS.items() if name in "ab"}
    made = []
    for split in world.splits(flow):
        for name, batch in zip("ab", split[0], strict=True):
            mine = [source_column("ab".index(name), place) for place in range(3)]
            news = pa.table([batch.column(each) for each in mine], schema=STREAMS[name])
            arrived[name] = pa.concat_tables([arrived[name], news])
        made.append(local.feed(split))
        found = payloads(pa.concat_tables(made), columns)
        matches = Counter({row: n for row, n in found.items() if None not in (row[0], row[-3])})
        expected = World(arrived, world.dice, 1).sql(
            _sql("semi" if how == "semi" else "inner", condition)
        )
        assert matches == expected
    local.close()
    assert expected.total() > 20


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 1100, 20))
def test_oracle_a_thousand_joins_by_match_equal_sql(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 20):
        check_one(seed, tmp_path / str(seed))


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", range(40))
def test_oracle_chains_of_joins_by_match_equal_sql(seed: int, tmp_path: Path) -> None:
    world = World.random(seed, "abc", rows=20)
    one, two = _bounds(world.dice), _bounds(world.dice)
    how, then = HOWS[1 + seed % 3], ("left", "anti", "semi", "inner")[seed % 4]
    if how != "left":
        then = "left"
    a, b, c = map(world.stream, "abc")
    # the time of a row is that of the kept event
    kept = "tb" if how == "right" else "ta" if how == "left" else "coalesce(ta, tb)"
    first = a.join(b, on=[("ka", "kb")], how=how, within=one)
    query = first.join(c, on=[("ka", "kc")], how=then, within=two)
    table = world.rows_of(query, tmp_path)
    inner = _sql(how, f"ka = kb AND tb BETWEEN ta + {one[0]} AND ta + {one[1]}")
    condition = f"ka = kc AND tc BETWEEN {kept} + {two[0]} AND {kept} + {two[1]}"
    if then == "inner":
        # pairs of an inner join live from the later of both on
        return
    expected = world.sql(_sql(then, condition, f"({inner}) x", "c"))
    columns = COLUMNS["a"] + COLUMNS["b"] + (COLUMNS["c"] if then == "left" else [])
    assert payloads(table, columns) == expected, (how, then, one, two)


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", range(40))
def test_oracle_what_follows_a_join_by_match_has_the_times_of_its_events(
    seed: int, tmp_path: Path
) -> None:
    world = World.random(seed)
    low, high = _bounds(world.dice)
    pairs = world.stream("a").join(
        world.stream("b"), on=[("ka", "kb")], how="left", within=(low, high)
    )
    counted = pairs.window(50 * MS, 50 * MS).groupApply(
        "ka", lambda group: group.agg(ice.count().alias("n"))
    )
    table = world.rows_of(counted, tmp_path)
    found: Rows = Counter()
    for row in table.to_pylist():
        first, last = (round(row["lifetime"][edge].timestamp() * 1e6) for edge in ("start", "end"))
        found.update((end, row["ka"], row["n"]) for end in range(first, last, 50 * MS))
    expected = world.sql(
        f"""SELECT (ta // 50000) * 50000 + 50000 AS e, ka, count(*) FROM a LEFT JOIN b
            ON ka = kb AND tb BETWEEN ta + {low} AND ta + {high} GROUP BY e, ka"""
    )
    assert found == expected


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", range(40))
def test_oracle_every_instant_sees_the_latest_version(seed: int, tmp_path: Path) -> None:
    world = World.random(seed)
    how = ("inner", "left", "semi", "anti")[seed % 4]
    versions = world.stream("b").untilNext("kb")
    query = world.stream("a").join(versions, on=[("ka", "kb")], how=how)
    table = world.rows_of(query, tmp_path, restart=seed % 3 == 0)
    columns = ["ta", "ka", "va", *(["tb"] if how in ("inner", "left") else [])]
    condition = "ka = kb AND tb <= ta"
    if how in ("inner", "left"):
        text = f"""SELECT ta, ka, va, max(tb) FROM (SELECT row_number() OVER () AS n, * FROM a)
            {KINDS[how]} b ON {condition} GROUP BY n, ta, ka, va"""
    else:
        text = _sql(how, condition)
    assert payloads(table, columns) == world.sql(text)


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", range(40))
def test_oracle_first_events_of_any_batches(seed: int, tmp_path: Path) -> None:
    world = World.random(seed)
    within = [None, 0, 20 * MS, 60 * MS][seed % 4]
    query = world.stream("a").dropDuplicates("ka", within=within)
    table = world.rows_of(query, tmp_path, restart=seed % 3 == 0)
    kept: dict[Any, int] = {}
    expected: Rows = Counter()
    rows = world.tables["a"]
    times = rows.column("ta").cast(pa.int64()).to_pylist()
    for time, key in sorted(
        zip(times, rows.column("ka").to_pylist(), strict=True), key=lambda row: row[0]
    ):
        if key not in kept or (within is not None and time > kept[key] + within):
            kept[key] = time
            expected[time, key] += 1
    assert payloads(table, ["ta", "ka"]) == expected
    assert set(payloads(table, COLUMNS["a"])) <= set(world.sql("SELECT * FROM a"))


def test_a_join_that_chooses_defers_only_where_it_can() -> None:
    world = World.random(0)
    a, b = (world.stream(name).last(20 * MS) for name in "ab")
    deferring = a.join(b, on=[("ka", "kb")], onPressure="auto", strategy="largest")
    assert world.flow(deferring).spilling == Spilling(strategy="largest")
    shortened = a.difference(b.select("tb", "kb AS ka", "vb"), on="ka")
    fetching = shortened.join(b, on=[("ka", "kb")], onPressure="auto")
    assert world.flow(fetching).spilling is None


def test_a_payment_at_exactly_the_bound_is_kept(tmp_path: Path) -> None:
    hour = 3_600_000_000
    tables = {}
    for name, time in (("a", 1_000), ("b", 1_000 + hour)):
        row = [pa.array([time]).cast(INSTANT), pa.array([1]), pa.array([1])]
        tables[name] = pa.table(row, schema=STREAMS[name])
    world = World(tables, np.random.default_rng(0), batches=3)
    #: rows if the payment is within the bound, and if it is not
    rows = {"inner": (1, 0), "left": (1, 1), "right": (1, 1), "full": (1, 2), "semi": (1, 0),
            "anti": (0, 1)}  # fmt: skip
    for how in HOWS:
        bounds: tuple[Within, Within] = (("0 hours", "1 hour"), (0, hour - 1))
        for place, within in enumerate(bounds):
            query = world.stream("a").join(
                world.stream("b"), on=[("ka", "kb")], how=how, within=within
            )
            assert len(world.rows_of(query, tmp_path / f"{how}{place}")) == rows[how][place]


@pytest.mark.parametrize("within", [(0, 60 * MS), None], ids=["within", "lifetimes"])
@pytest.mark.parametrize("where", [None, "va < vb"])
def test_oracle_keys_of_two_widths(
    where: str | None, within: tuple[int, int] | None, tmp_path: Path
) -> None:
    world = World.random(3)
    wide = "kb + 5000000000 * (vb % 2) AS wb"
    left = world.stream("a").select("ta", "cast(ka AS int) AS ia", "va").point()
    right = world.stream("b").select("tb", wide, "vb").point()
    condition = "ka = wb AND " + (where or "true")
    condition += " AND tb BETWEEN ta AND ta + 60000" if within else " AND ta = tb"
    for how in ("left", "right", "full"):
        query = left.join(right, on=[("ia", "wb")], how=how, within=within, where=where)
        found = payloads(world.rows_of(query, tmp_path / how), ["ta", "ia", "va", "tb", "wb", "vb"])
        assert found == world.sql(_sql(how, condition, right=f"(SELECT tb, {wide}, vb FROM b) b"))


THREE: Any = ("0 s", "1 s", "2 s")
Made = Callable[[Events, Events], Any]
REFUSED: dict[str, tuple[Made, str]] = {
    "bounds in the wrong order": (
        lambda a, b: a.join(b, [("ka", "kb")], within=("1 hour", "0 hours")), "lower bound first"
    ),
    "three bounds": (
        lambda a, b: a.join(b, [("ka", "kb")], within=THREE), "two bounds"
    ),
    "user code behind a bound": (
        lambda a, b: a.join(b, [("ka", "kb")], how="left", within=5).groupApply(
            "ka", lambda group: group.edges("va = 1", "va = 2", "ta")
        ),
        "use edges before the join",
    ),
    "versions of results": (
        lambda a, b: a.forever().groupApply("ka", lambda g: g.agg(ice.count())).untilNext("ka"),
        "not results that may be retracted",
    ),
    "duplicates of results": (
        lambda a, b: a.forever().groupApply("ka", lambda g: g.agg(ice.count())).dropDuplicates(),
        "not results that may be retracted",
    ),
    "keys of two types": (
        lambda a, b: a.select("ka AS k", "va").join(
            b.select("cast(kb AS int) AS k", "vb"), "k", how="left", within=5
        ),
        "cast one of them",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_matched_is_refused(name: str) -> None:
    made, message = REFUSED[name]
    world = World.random(0)
    with pytest.raises(DefinitionError, match=message):
        made(world.stream("a"), world.stream("b"))


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", range(20))
def test_oracle_aggregates_of_a_join_that_defers(seed: int, tmp_path: Path) -> None:
    world = World.random(seed, rows=80, batches=12)
    pairs = world.stream("a").join(
        world.stream("b"), on=[("ka", "kb")], within=20 * MS, onPressure="defer"
    )
    counted = (
        pairs.point()
        .window(50 * MS, 50 * MS)
        .groupApply("va", lambda group: group.agg(ice.count().alias("n")))
    )
    with forced(world.dice, 0.7):
        table = world.rows_of(counted, tmp_path, restart=seed % 3 == 0)
    found: Rows = Counter()
    for row in table.to_pylist():
        first, last = (round(row["lifetime"][edge].timestamp() * 1e6) for edge in ("start", "end"))
        found.update((end, row["va"], row["n"]) for end in range(first, last, 50 * MS))
    expected = world.sql(
        """SELECT (greatest(ta, tb) // 50000) * 50000 + 50000 AS e, va, count(*) FROM a JOIN b
           ON ka = kb AND tb BETWEEN ta - 20000 AND ta + 20000 GROUP BY e, va"""
    )
    assert found == expected
