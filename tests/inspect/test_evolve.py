from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql.types import DoubleType, LongType, StructField, StructType

from icestream.core.errors import CheckpointError
from icestream.inspect.access.adapter_protocol import as_text
from icestream.inspect.access.checkpoint import Checkpoint
from icestream.inspect.evolve import evolve
from icestream.inspect.state_rows import Reading
from icestream.inspect.verify import verify
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.plan.computation import Computation
from icestream.plan.events.dataflow import Dataflow
from icestream.plan.nodes.queries import Plan, WindowKind
from icestream.plan.windows.grid import Cumulative, Windows
from icestream.plan.windows.session import Session
from icestream.runtime.spark.sink import ResultRows
from icestream.runtime.tables.current_table import CurrentTable
from icestream.state.versions.commits import PLAN
from icestream.state.versions.sealed import FORMAT, seal
from icestream.testing.simulated_disk import Crash, SimulatedDisk
from tests.fixtures.dataflow_plans import RATINGS, PlanStream, dataflow, open_windows
from tests.fixtures.plans import QuickFiles, open_query, window_plan

SECOND = 1_000_000
#: the first batch of the changed query
CHANGED = 4
BATCHES = 9

COUNT = Aggregate("count", None, "n")
TOTAL = Aggregate("sum", "price", "total")
MEAN = Aggregate("avg", "price", "mean")
LEAST = Aggregate("min", "price", "least")
#: aggregates of a column that no other one reads
TAXES = Aggregate("sum", "tax", "taxes")
MOST = Aggregate("max", "tax", "most")
LAST = Aggregate("last", "tip", "latest", parameters=(True,))
SPREAD = Aggregate("stddev_samp", "tax", "spread")
ALL = Aggregate("collect_list", "tax", "every")
MEDIAN = Aggregate("median", "fee", "middle")

WINDOWS: dict[str, WindowKind] = {
    "tumbling": Windows(10 * SECOND, 10 * SECOND, 0),
    "sliding": Windows(20 * SECOND, 5 * SECOND, 0),
    "cumulative": Cumulative(20 * SECOND, 5 * SECOND),
    "sessions": Session(3 * SECOND),
}
#: aggregates before and after a change
CHANGES = {
    "added": ((COUNT, TOTAL), (COUNT, TOTAL, TAXES, MOST)),
    "added in front": ((COUNT, TOTAL), (SPREAD, LAST, TOTAL, COUNT)),
    "removed": ((LEAST, COUNT, TAXES, TOTAL), (TOTAL, LEAST)),
    "exchanged": ((TOTAL, LEAST), (COUNT, SPREAD)),
    "derived": ((TOTAL,), (TOTAL, MEAN, COUNT)),
    "collected": ((COUNT, TOTAL), (TOTAL, ALL, MEDIAN)),
    "collected less": ((TOTAL, ALL, MEDIAN), (MEDIAN, LAST, TOTAL)),
    "collected no more": ((COUNT, MEDIAN, TOTAL), (TOTAL, COUNT)),
}
INPUTS = pa.schema([(name, pa.float64()) for name in ("price", "tax", "fee", "tip")])


def plan_of(
    aggregates: Sequence[Aggregate], windows: WindowKind = WINDOWS["tumbling"], **changes: Any
) -> Plan:
    """Return a plan whose inputs are those that its aggregates read."""
    read = {name for each in aggregates for name in each.columns}
    inputs = pa.schema([each for each in INPUTS if each.name in read])
    plan = window_plan(windows=windows, aggregates=aggregates, inputs=inputs, slack="4 seconds")
    return replace(plan, **changes)


def batch(plan: Plan, number: int, *, hides: Sequence[str] = ()) -> pa.RecordBatch:
    """Return events of one batch, out of order; some columns are hidden behind nulls."""
    chance = random.Random(number)
    rows = [
        {
            "time": (5 * number + chance.randrange(-3, 6)) * SECOND,
            "source": 0,
            "k0": chance.choice([1, 1, 1, None, *range(2, 12)]),
            "price": chance.choice([None, 0.1, 2.5, 1e15, -7.25]),
            "tax": chance.choice([None, 0.7, 3.0, -1e-9]),
            "fee": chance.choice([None, 1.0, 2.0, 4.5]),
            "tip": chance.choice([None, 1.0, 2.0, 4.5]),
        }
        for _ in range(40)
    ]
    rows = [row | dict.fromkeys(hides) for row in rows]
    return pa.RecordBatch.from_pylist(rows, pa.schema([
        ("time", pa.int64()), ("source", pa.int32()), ("k0", pa.int64()), *INPUTS
    ])).select(plan.batch_schema.names).cast(plan.batch_schema)  # fmt: skip


def bag(table: pa.Table) -> Counter[str]:
    return Counter(as_text(row) for row in table.to_pylist())


def went_on(folder: Path, before: Plan, after: Plan, **settings: Any) -> Counter[str]:
    """Return the rows that a changed query emits from the change on."""
    query = open_query(before, str(folder), **settings)
    for number in range(CHANGED):
        query.feed([[batch(before, number)]])
    query.close()
    root = str(folder / "checkpoint")
    assert evolve(root, after) is not None
    assert verify(Checkpoint(root)).is_fine
    assert evolve(root, after) is None
    rows: Counter[str] = Counter()
    for numbers in (range(CHANGED, CHANGED + 2), range(CHANGED + 2, BATCHES)):
        again = open_query(after, str(folder), **settings)
        for number in numbers:
            rows += bag(again.feed([[batch(after, number)]]))
        again.close()
    last = open_query(after, str(folder), **settings)
    rows += bag(last.flush())
    last.close()
    assert verify(Checkpoint(root)).is_fine
    return rows


def had_always_been(folder: Path, before: Plan, after: Plan) -> Counter[str]:
    """Return the rows that the changed query emits if it hides what the old one did not read.

    The old query counts events in every group, so only values are unknown to it.
    """
    query = open_query(after, str(folder))
    hidden = set(after.inputs.names) - set(before.inputs.names)
    rows: Counter[str] = Counter()
    for number in range(BATCHES):
        hides = [name for name in hidden if number < CHANGED]
        emitted = bag(query.feed([[batch(after, number, hides=hides)]]))
        rows += emitted if number >= CHANGED else Counter()
    rows += bag(query.flush())
    query.close()
    return rows


@pytest.mark.sample(6)
@pytest.mark.parametrize("kind", WINDOWS)
@pytest.mark.parametrize("change", CHANGES)
def test_oracle_windows_go_on_with_other_aggregates(kind: str, change: str, tmp_path: Path) -> None:
    if kind == "sessions" and change.startswith("collected"):
        pytest.skip("sessions have no collections")
    before, after = (plan_of(some, WINDOWS[kind]) for some in CHANGES[change])
    found = went_on(tmp_path / "changed", before, after)
    assert found == had_always_been(tmp_path / "always", before, after)
    assert found.total() > 10


def test_oracle_the_state_goes_on_where_only_expressions_and_names_change(tmp_path: Path) -> None:
    """What was folded stays, and what comes is folded by the new expression."""
    before = plan_of((TOTAL, COUNT))
    after = replace(before, expressions=("price * 2",), late="keep")
    named = plan_of((replace(TOTAL, alias="sum"), COUNT))
    unchanged = had_always_been(tmp_path / "b", before, before)
    assert went_on(tmp_path / "a", before, after) == unchanged
    renamed = went_on(tmp_path / "c", before, named)
    assert {row.replace('"sum"', '"total"') for row in renamed} == set(unchanged)
    # another name of another expression is another aggregate
    other = replace(named, expressions=("price * 2",))
    assert went_on(tmp_path / "d", before, other) != renamed


def test_oracle_integers_become_wider_in_open_windows(tmp_path: Path) -> None:
    aggregates = [
        Aggregate(each, "price", each) for each in ("sum", "avg", "min", "max", "last", "count")
    ]
    narrow, wide = (
        replace(plan_of(aggregates), inputs=pa.schema([("price", kind)]))
        for kind in (pa.int32(), pa.int64())
    )

    def events(plan: Plan, number: int) -> pa.RecordBatch:
        whole = batch(plan_of(aggregates), number)
        values = pc.if_else(pc.greater(whole["price"], 1e9), 2**31 - 1 - number, whole["price"])
        values = pc.floor(values).cast(pa.int64())
        if plan is wide and number >= CHANGED:
            values = pc.multiply(values, 2**25)
        columns = [*whole.columns[:-1], values.cast(plan.inputs.field(0).type)]
        return pa.RecordBatch.from_arrays(columns, schema=plan.batch_schema)

    answers = []
    for first in (narrow, wide):
        folder = tmp_path / str(first.inputs.field(0).type)
        query = open_query(first, str(folder))
        for number in range(CHANGED):
            query.feed([[events(first, number)]])
        query.close()
        evolve(str(folder / "checkpoint"), wide)
        query = open_query(wide, str(folder))
        fed = [bag(query.feed([[events(wide, number)]])) for number in range(CHANGED, BATCHES)]
        answers.append([*fed, bag(query.flush())])
        query.close()
    assert answers[0] == answers[1]


def test_oracle_groupings_and_views_are_added_and_begin_empty(tmp_path: Path) -> None:
    """Rows of old groupings and windows go on; of new ones there is what came since."""
    keys = pa.schema([("key", pa.int64()), ("other", pa.int64())])

    def plan(sets: tuple[tuple[int, ...], ...], *more: WindowKind) -> Plan:
        made = window_plan(
            "10 seconds", "5 seconds", keys=keys, aggregates=(COUNT, TOTAL), grouping_sets=sets,
            inputs=pa.schema([("price", pa.float64())]), slack="4 seconds",
        )  # fmt: skip
        views = [replace(made.views[0], windows=each) for each in more]
        return replace(made, views=(*made.views, *views))

    def events(plan: Plan, number: int) -> pa.RecordBatch:
        whole = batch(plan_of((COUNT, TOTAL)), number)
        other = pc.bit_wise_and(pc.divide(whole["time"].cast(pa.int64()), SECOND), 1)
        columns = [*whole.columns[:3], other, whole["price"]]
        return pa.RecordBatch.from_arrays(columns, schema=plan.batch_schema)

    both = ((0, 1), (0,))
    longer = Windows(20 * SECOND, 5 * SECOND, 0)
    before, after = plan(both), plan((*both, (1,), ()), longer)
    rows = []
    for first in (before, after):
        folder = tmp_path / str(len(first.views))
        query = open_query(first, str(folder))
        for number in range(CHANGED):
            query.feed([[events(first, number)]])
        query.close()
        evolve(str(folder / "checkpoint"), after)
        query = open_query(after, str(folder))
        found: list[Counter[str]] = [Counter(), Counter()]
        for number in range(CHANGED, BATCHES + 1):
            more = (
                query.driver.batch(number, [[events(after, number)]])
                if number < BATCHES
                else (query.driver.flush())
            )
            for view in range(2):
                found[view] += bag(query.rows(more, view))
        query.close()
        rows.append(found)
    old, shown = (0, 1), "grouping_id"
    there, always = (list(each[0].elements()) for each in rows)
    of_old = [
        Counter(row for row in some if any(f'"{shown}": {number}' in row for number in old))
        for some in (there, always)
    ]
    assert of_old[0] == of_old[1]
    assert Counter(there) != Counter(always)
    late = 5 * CHANGED + 25
    since = [
        Counter(row for row in some if f":{late}" in row.split(", ")[0]) for some in (there, always)
    ]
    assert since[0] == since[1]
    assert rows[0][1]


REFUSED: dict[str, tuple[Plan, str]] = {
    "key": (
        plan_of((COUNT, TOTAL), keys=pa.schema([("user", pa.int64())])),
        r"keys identify groups: \(key int64\) became \(user int64\)",
    ),
    "type of a key": (
        plan_of((COUNT, TOTAL), keys=pa.schema([("key", pa.string())])),
        "keys identify groups",
    ),
    "size of windows": (
        plan_of((COUNT, TOTAL), Windows(20 * SECOND, 20 * SECOND, 0)),
        "windows have state of their own: window 10 seconds .* became window 20 seconds",
    ),
    "kind of windows": (plan_of((COUNT, TOTAL), WINDOWS["sessions"]), "became session 3 seconds"),
    "type of an input": (
        plan_of((COUNT, TOTAL), inputs=pa.schema([("price", pa.int64())])),
        "'total' aggregated double, and now int64: types of inputs may only become wider",
    ),
    "known in part": (
        plan_of((COUNT, TOTAL, Aggregate("stddev_samp", "price", "spread"))),
        r"'spread' would mix what is known of price .* such as price \+ 0",
    ),
    "panes": (
        replace(
            plan_of((COUNT, TOTAL)),
            views=(
                *plan_of((COUNT, TOTAL)).views,
                *plan_of((COUNT,), Windows(15 * SECOND, 15 * SECOND, 0)).views,
            ),
        ),
        "panes of 10 seconds, and would consist of panes of 5 seconds",
    ),
    "grouping": (
        window_plan(
            "10 seconds", aggregates=(COUNT, TOTAL), grouping_sets=((0,), ()), slack="4 seconds",
            inputs=pa.schema([("price", pa.float64())]),
        ),
        "windows have state of their own|one grouping, or sets",
    ),
    "mode with aggregates": (
        replace(
            plan_of((COUNT,)), views=(replace(plan_of((COUNT,)).views[0], mode="changes"),)
        ),
        "in mode 'changes' the state includes the last rows",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_would_answer_wrongly_is_refused_by_name(what: str, tmp_path: Path) -> None:
    before = plan_of((COUNT, TOTAL))
    query = open_query(before, str(tmp_path))
    query.feed([[batch(before, 0)]])
    query.close()
    root = str(tmp_path / "checkpoint")
    other, reason = REFUSED[what]
    with pytest.raises(CheckpointError, match=f"belongs to another query.*{reason}.*undo"):
        evolve(root, other)
    assert Checkpoint(root).versions == [1]
    assert evolve(root, before) is None


def test_versions_from_before_a_change_are_read_as_they_were(tmp_path: Path) -> None:
    before, after = plan_of((COUNT, TOTAL)), plan_of((COUNT, TAXES, TOTAL))
    query = open_query(before, str(tmp_path), keep=9)
    for number in range(3):
        query.feed([[batch(before, number)]])
    query.close()
    root = str(tmp_path / "checkpoint")

    def state(version: int) -> Counter[str]:
        reading = Reading(root, version)
        return bag(pa.Table.from_batches(list(reading.batches()), schema=reading.schema))

    old = state(3)
    evolve(root, after)
    assert state(3) == old
    assert all("taxes" in row for row in state(4))
    assert {row.replace('"taxes": null, ', "") for row in state(4)} == set(old)


def test_crash_every_step_of_a_change(tmp_path: Path) -> None:
    before, after = plan_of((COUNT, TOTAL)), plan_of((COUNT, TAXES, TOTAL))
    query = open_query(before, str(tmp_path))
    query.feed([[batch(before, 0)]])
    query.close()
    root = str(tmp_path / "checkpoint")
    whole = SimulatedDisk()
    for folder, _, names in os.walk(root):
        for each in names:
            whole.put(f"{folder}/{each}", Path(folder, each).read_bytes())
    seen = []
    for step in range(1, 1000):
        disk = whole.after_crash("keep", crash_at=step)
        try:
            evolve(root, after, disk)
            break
        except Crash:
            left = disk.after_crash("drop")
        at = Checkpoint(root, left)
        assert verify(at).is_fine
        shown = next(iter(Reading(root, files=left).batches())).schema.names
        assert ("taxes" in shown) == ("taxes" in str(at.plan))
        seen.append("taxes" in shown)
    assert seen == sorted(seen)
    assert not seen[0]
    assert "taxes" in str(Checkpoint(root, disk).plan)


@pytest.mark.slow
def test_bounded_windows_larger_than_memory_go_on(tmp_path: Path) -> None:
    """With 32 keys as text, 60,000 groups and three megabytes, shards have many partitions."""
    keys = pa.schema([("key", pa.string())])
    before, after = (
        plan_of(some, Windows(20 * SECOND, 10 * SECOND, 0), keys=keys)
        for some in ((COUNT, TOTAL), (COUNT, MOST, TOTAL))
    )

    def events(plan: Plan, number: int) -> pa.RecordBatch:
        rows = 40_000
        named = pa.array([f"user-{(7 * n + 9_000 * number) % 60_000}" for n in range(rows)])
        times = pa.array([(4 * number + n % 4) * SECOND for n in range(rows)])
        values = pa.array([float(n % 11) for n in range(rows)])
        taxes = values if number >= CHANGED else pa.nulls(rows, pa.float64())
        found = {"time": times, "source": pa.array([0] * rows), "k0": named}
        found |= {"price": values, "tax": taxes}
        columns = [found[each.name].cast(each.type) for each in plan.batch_schema]
        return pa.RecordBatch.from_arrays(columns, schema=plan.batch_schema)

    answers = []
    for first in (before, after):
        folder = tmp_path / str(len(first.inputs))
        query = open_query(first, str(folder), budget="6 MB")
        for number in range(CHANGED):
            query.feed([[events(first, number)]])
        query.close()
        evolve(str(folder / "checkpoint"), after, memory=6 << 20)
        query = open_query(after, str(folder), budget="6 MB")
        fed = [bag(query.feed([[events(after, number)]])) for number in range(CHANGED, CHANGED + 2)]
        answers.append([*fed, bag(query.flush())])
        query.close()
    assert answers[0] == answers[1]


def test_a_checkpoint_without_versions_takes_any_plan(tmp_path: Path) -> None:
    before, after = plan_of((COUNT, TOTAL)), plan_of((MOST,))
    open_query(before, str(tmp_path)).close()
    assert evolve(str(tmp_path / "checkpoint"), after) is not None
    query = open_query(after, str(tmp_path))
    query.feed([[batch(after, 0)]])
    query.close()


def ratings_of(number: int) -> list[list[pa.RecordBatch]]:
    """Return ratings of one batch, in order of time."""
    chance = random.Random(number)
    rows = [
        {
            "time": (4 * number + chance.randrange(4)) * SECOND,
            "source": 0,
            "s0_0": chance.randrange(4),
            "s0_1": chance.randrange(6),
            "s0_2": float(chance.randrange(5)),
        }
        for _ in range(30)
    ]
    names = pa.schema([("time", pa.int64()), ("source", pa.int32()), ("s0_0", pa.int64()),
                       ("s0_1", pa.int64()), ("s0_2", pa.float64())])  # fmt: skip
    return [[pa.RecordBatch.from_pylist(rows, names)]]


def running(
    condition: str | None,
    mode: str = "now",
    length: int | None = None,
    more: Sequence[Aggregate] = (),
) -> Dataflow:
    """Count the ratings of a user that fulfil a condition."""
    ratings = PlanStream.of(RATINGS)
    ratings = ratings if condition is None else ratings.where(condition)
    ratings = ratings.forever() if length is None else ratings.window(length)
    sums = (Aggregate("sum", "rating", "total"), COUNT, *more)
    return dataflow(ratings.apply(["user"], lambda group: group.agg(*sums)), mode, slack=0)


@pytest.mark.parametrize("after", [None, "rating > 1 AND item < 5"])
def test_oracle_a_filter_changes_at_a_restart(after: str | None, tmp_path: Path) -> None:
    """Each event is counted as the query of its time would; beside DuckDB."""
    root = str(tmp_path / "checkpoint")
    there: dict[Any, Any] = {}
    for number, condition in enumerate(["item <> 3"] * 2 + [after] * 2):
        plan = running(condition)
        changed = evolve(root, plan)
        assert (changed is not None) == (number == 2)
        query = open_query(plan, str(tmp_path), budget="16 MB")
        for row in query.feed(cast_to(plan, ratings_of(number))).to_pylist():
            there[row["user"]] = (row["total"], row["n"])
        query.close()
    parts = [
        (pa.Table.from_batches(ratings_of(number)[0]), condition)
        for number, condition in enumerate(["item <> 3"] * 2 + [after or "true"] * 2)
    ]
    base = duckdb.connect()
    for number, (table, _) in enumerate(parts):
        base.register(f"t{number}", table.rename_columns(["time", "source", *RATINGS.names]))
    union = " UNION ALL ".join(
        f"SELECT * FROM t{number} WHERE {condition}" for number, (_, condition) in enumerate(parts)
    )
    wanted = base.sql(f"SELECT user, sum(rating), count(*) FROM ({union}) GROUP BY user")
    assert there == {user: (total, n) for user, total, n in wanted.fetchall()}


#: aggregates of ratings before and after a change
OF_RATINGS = {
    "added": ("count sum", "count sum var_pop"),
    "derived": ("sum", "avg count sum"),
    "removed": ("var_pop count sum", "sum"),
    "exchanged": ("sum", "count"),
    "without an inverse": ("count sum", "sum min"),
    "with an inverse": ("max count sum", "count sum avg"),
    "of both": ("max sum", "sum max min"),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("change", OF_RATINGS)
def test_oracle_aggregates_are_added_to_a_table_of_what_holds(change: str, tmp_path: Path) -> None:
    """Sums and counts are whole, beside DuckDB; a variance is of the ratings since the change."""

    def plan(names: str) -> Dataflow:
        of = {"var_pop": "item", "min": "item"}
        calls = [Aggregate(each, of.get(each, "rating"), each) for each in names.split()]
        ratings = PlanStream.of(RATINGS).where("item <> 3").forever()
        return dataflow(ratings.apply(["user"], lambda group: group.agg(*calls)), "now", slack=0)

    root = str(tmp_path / "checkpoint")
    table = CurrentTable(QuickFiles(), str(tmp_path / "table"))
    there: dict[Any, Any] = {}
    for number, names in enumerate([OF_RATINGS[change][0]] * 3 + [OF_RATINGS[change][1]] * 3):
        flow = plan(names)
        assert (evolve(root, flow) is not None) == (number == 3)
        assert verify(Checkpoint(root)).is_fine if number else True
        query = open_query(flow, str(tmp_path), budget="16 MB")
        # only some users rate after the change
        split = ratings_of(number)[0][0]
        few = split.filter(pc.greater(split["s0_0"], 0 if number < 3 else 1))
        rows = query.feed(cast_to(flow, [[few]]))
        table.apply(number, [rows], rows.schema, ("user",))
        there |= {row["user"]: row for row in rows.to_pylist()}
        if number == 3:
            assert set(there) == {1, 2, 3}
            assert rows.num_rows == 3
        query.close()
    base = duckdb.connect()
    base.register("came", pa.concat_tables(
        pa.Table.from_batches(ratings_of(number)[0])
        .rename_columns(["time", "source", *RATINGS.names])
        .append_column("batch", pa.array([number] * 30))
        for number in range(6)
    ))  # fmt: skip
    since = "FILTER (WHERE batch >= 3)"
    whole = "" if "max" in OF_RATINGS[change][0] else since
    wanted = base.sql(
        "SELECT user, count(rating) AS count, sum(rating) AS sum, avg(rating) AS avg, "
        f"var_pop(item) {since} AS var_pop, min(item) {since} AS min, "
        f"max(rating) {whole} AS max FROM came WHERE item <> 3 AND user > 0 "
        "AND (batch < 3 OR user > 1) GROUP BY user"
    )
    shown = ["user", *OF_RATINGS[change][1].split()]
    expected = {row[0]: dict(zip(wanted.columns, row, strict=True)) for row in wanted.fetchall()}
    for user, row in expected.items():
        assert [there[user][name] for name in shown] == pytest.approx(
            [row[name] for name in shown], nan_ok=True
        ), (user, change)
    held = pa.concat_tables(table.read(0)).to_pylist()
    assert {row["user"]: row for row in held} == {
        user: {name: row[name] for name in shown} for user, row in there.items()
    }


@pytest.mark.slow
def test_bounded_a_table_larger_than_memory_changes(tmp_path: Path) -> None:
    """Most groups are on the log; a tenth of them change after the change."""

    def plan(*calls: Aggregate) -> Dataflow:
        ratings = PlanStream.of(RATINGS).forever()
        return dataflow(ratings.apply(["user"], lambda group: group.agg(*calls)), "now", slack=0)

    def events(flow: Dataflow, number: int, users: int) -> list[list[pa.RecordBatch]]:
        rows = 40_000
        columns = [
            pa.array([number * SECOND] * rows),
            pa.array([0] * rows),
            pa.array([n % users for n in range(rows)]),
            pa.array([n % 7 for n in range(rows)]),
            pa.array([float(n % 5) for n in range(rows)]),
        ]
        named = pa.RecordBatch.from_arrays(columns, names=flow.batch_schema.names)
        return [[named.cast(flow.batch_schema)]]

    total, root = Aggregate("sum", "rating", "total"), str(tmp_path / "checkpoint")
    first, second = plan(total), plan(total, Aggregate("max", "item", "most"))
    query = open_query(first, str(tmp_path), budget="5 MB")
    for number in range(2):
        query.feed(events(first, number, 40_000))
    query.close()
    evolve(root, second, memory=5 << 20)
    assert verify(Checkpoint(root)).is_fine
    query = open_query(second, str(tmp_path), budget="5 MB")
    rows = query.feed(events(second, 2, 4_000)).to_pylist()
    query.close()
    assert len(rows) == 40_000
    for row in rows:
        user = row["user"]
        since = range(user, 40_000, 4_000) if user < 4_000 else ()
        assert row["total"] == 2 * (user % 5) + sum(n % 5 for n in since)
        assert row["most"] == max((n % 7 for n in since), default=None)


def cast_to(plan: Dataflow, splits: list[list[pa.RecordBatch]]) -> list[list[pa.RecordBatch]]:
    return [[each.cast(plan.batch_schema) for each in split] for split in splits]


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (running("item <> 3", "append"), "output modes of events|other rows would be stored"),
        (running("item <> 3", length=9 * SECOND), "keys and lifetimes of events"),
        (plan_of((COUNT, TOTAL)), "queries of another kind"),
        (running("item <> 3", more=(Aggregate("var_pop", "rating", "v"),)), "'v' would mix"),
        (running("item <> 3", more=(Aggregate("median", "rating", "m"),)), "other rows would be"),
    ],
)
def test_other_events_with_lifetimes_are_refused_by_name(
    plan: Dataflow | Plan, reason: str, tmp_path: Path
) -> None:
    before = running("item <> 3")
    query = open_query(before, str(tmp_path))
    query.feed(cast_to(before, ratings_of(0)))
    query.close()
    with pytest.raises(CheckpointError, match=reason):
        evolve(str(tmp_path / "checkpoint"), plan)


def test_windows_that_were_copies_are_refused_by_name(tmp_path: Path) -> None:
    def counts(*, panes: bool) -> Dataflow:
        rows = PlanStream.of(RATINGS).in_windows(
            Windows(4 * SECOND, SECOND), ["user"], COUNT, panes=panes
        )
        return dataflow(rows, "append", slack=0)

    query = open_query(counts(panes=False), str(tmp_path))
    query.feed(cast_to(counts(panes=False), ratings_of(0)))
    query.close()
    with pytest.raises(CheckpointError, match=r"of windows .* instead of aggregate"):
        evolve(str(tmp_path / "checkpoint"), counts(panes=True))


def test_open_windows_that_were_copies_are_refused_by_name(tmp_path: Path) -> None:
    before = open_windows("now", copies=True)
    query = open_query(before, str(tmp_path))
    query.feed(cast_to(before, ratings_of(0)))
    query.close()
    with pytest.raises(CheckpointError, match="copied events into open windows"):
        evolve(str(tmp_path / "checkpoint"), open_windows("now"))


def test_a_filter_behind_an_aggregate_is_refused_by_name(tmp_path: Path) -> None:
    """It would never see that rows which passed the old filter are taken back."""

    def busy(least: int) -> Dataflow:
        ratings = PlanStream.of(RATINGS).forever()
        counts = ratings.apply(["user"], lambda group: group.agg(COUNT))
        return dataflow(counts.where(f"n > {least}"), "now", slack=0)

    query = open_query(busy(3), str(tmp_path))
    query.feed(cast_to(busy(3), ratings_of(0)))
    query.close()
    with pytest.raises(CheckpointError, match="behind an operator with state are fixed"):
        evolve(str(tmp_path / "checkpoint"), busy(4))


def test_crash_rows_from_before_a_change_are_delivered_with_the_new_columns(tmp_path: Path) -> None:
    """The last batch was committed, and its rows did not reach the sink before the change."""
    before, after = plan_of((COUNT, TOTAL)), plan_of((TAXES, COUNT))
    query = open_query(before, str(tmp_path))
    for number in range(CHANGED + 1):
        query.feed([[batch(before, number)]])
    query.close()
    evolve(str(tmp_path / "checkpoint"), after)
    again = open_query(after, str(tmp_path))
    [delivery] = again.driver.batch(CHANGED, [[batch(after, CHANGED)]])
    assert delivery.again
    columns = StructType(
        [
            StructField("key", LongType()),
            StructField("taxes", DoubleType()),
            StructField("n", LongType()),
        ]
    )
    session: Any = None
    rows = ResultRows(session, again.files, delivery.results, columns)
    tables = [table for read in rows.readers() for table in read()]
    again.close()
    assert {tuple(table.column_names) for table in tables} == {("key", "taxes", "n")}
    assert sum(table.num_rows for table in tables) > 3
    assert all(table["taxes"].null_count == table.num_rows for table in tables)
    assert all(table["n"].null_count == 0 for table in tables)


def rows_by_user(mode: str) -> Dataflow:
    """Return the ratings of each user so far, counted."""
    counted = PlanStream.of(RATINGS).forever().apply(["user"], lambda group: group.agg(COUNT))
    return dataflow(counted, mode)


def two_windows(*modes: str) -> Plan:
    plan = plan_of((COUNT,))
    return replace(plan, views=tuple(replace(plan.views[0], mode=mode) for mode in modes))


@pytest.mark.parametrize(
    ("plan", "other"),
    [
        (rows_by_user("changes"), rows_by_user("update")),
        (two_windows("append", "changes"), two_windows("append", "append")),
        (two_windows("changes"), rows_by_user("update")),
    ],
)
def test_a_checkpoint_of_what_update_meant_before_goes_on_as_changes(
    plan: Computation, other: Computation, tmp_path: Path
) -> None:
    open_query(plan, str(tmp_path)).close()
    root = str(tmp_path / "checkpoint")
    # earlier releases said update, also in the state schema
    path = Path(root, PLAN)
    body = path.read_bytes().partition(b"\n")[0].replace(b'"changes"', b'"update"')
    path.write_bytes(body + b"\n" + seal(FORMAT, body))
    assert evolve(root, plan) is None
    query = open_query(plan, str(tmp_path))
    query.feed([[]])
    query.close()
    meaning = r"write outputMode\('changes'\)" if isinstance(other, Dataflow) else "mode"
    with pytest.raises(CheckpointError, match=meaning):
        evolve(root, other)
