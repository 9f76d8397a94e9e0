"""The window operator inside whole queries, on the disk and in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.core.errors import BudgetError
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.grid import operator
from icestream.plan.computation import Computation
from icestream.plan.nodes.queries import Plan, View
from icestream.plan.windows.grid import Cumulative, Windows
from icestream.runtime.local import LocalQuery
from icestream.runtime.version import quotas
from icestream.state.versions.commits import COMMITS, SEGMENTS
from icestream.state.versions.ownership import Place
from icestream.testing.sources import (
    SECOND,
    Item,
    StreamShape,
    batches_of,
    drive,
    generate,
    restart,
    shapes,
)
from tests.fixtures.plans import EVERY_INPUT, every_aggregate, open_query, window_plan
from tests.oracles.arrivals import Row
from tests.oracles.grid import ObviousWindows, differences, rows_of, same_multiset, windows_by_sql
from tests.suites.window_conformance import QueryConformance, small_sizes

WORDS = pa.schema([("name", pa.string()), ("number", pa.float64())])
TWO = pa.schema([("value", pa.float64()), ("whole", pa.int64())])


def check(plan: Plan, items: Sequence[Item], folder: str, shards: int = 2) -> None:
    oracle = ObviousWindows(plan)
    expected = [oracle.feed(batch) for batch in batches_of(items)] + [oracle.flush()]
    tables = drive(lambda: open_query(plan, folder, shards=shards), items)
    for number, (table, rows) in enumerate(zip(tables, expected, strict=True)):
        wrong = differences(rows_of(table), rows, len(plan.group_keys))
        assert not wrong, f"batch {number}: {wrong[:3]}"


def events(plan: Computation, rows: Sequence[tuple[int, int, float | None]]) -> pa.RecordBatch:
    """Make events of (second, key, value)."""
    times, keys, values = zip(*rows, strict=True) if rows else ((), (), ())
    return pa.record_batch(
        [
            pa.array([t * SECOND for t in times], pa.int64()).cast(plan.time),
            pa.array([0] * len(rows), pa.int32()),
            pa.array(keys, pa.int64()),
            pa.array(values, pa.float64()),
        ],
        schema=plan.batch_schema,
    )


def feed(query: LocalQuery, *rows: tuple[int, int, float | None]) -> list[Row]:
    return sorted(rows_of(query.feed([[events(query.plan, rows)]])))


class TestSlidingWindows(QueryConformance):
    plan = window_plan("10 seconds", "2 seconds", slack="1 second", inputs=TWO)
    tiny_budget = 448 * 1024


@pytest.mark.slow
class TestSlidingWindowsWithoutFronts(QueryConformance):
    plan = window_plan(
        "7 seconds",
        "2 seconds",
        slack=0,
        keys=WORDS,
        inputs=pa.schema([("whole", pa.int64())]),
        aggregates=[Aggregate("count", None, "n"), Aggregate("sum", "whole", "s")],
    )
    tiny_budget = 128 * 1024
    many_groups = 2500


@pytest.mark.slow
class TestTumblingWindowsOfGroupingSets(QueryConformance):
    plan = window_plan(
        "6 seconds",
        offset="1500 milliseconds",
        slack=["0 seconds", "2 seconds"],
        keys=WORDS,
        grouping_sets=((0, 1), (1,), ()),
    )
    many_groups = 700


INVERTIBLE = [Aggregate("count", None, "n"), Aggregate("sum", "whole", "s")]
WHOLE = pa.schema([("whole", pa.int64())])


class TestCumulativeWindows(QueryConformance):
    plan = window_plan(
        slack="1 second", inputs=TWO, windows=Cumulative(12 * SECOND, 3 * SECOND, SECOND)
    )
    tiny_budget = 448 * 1024


class TestWindowsFoldedAgainFromTuples(QueryConformance):
    plan = window_plan(
        "7 seconds",
        "2 seconds",
        slack="1 second",
        keys=WORDS,
        inputs=WHOLE,
        aggregates=INVERTIBLE,
        grouping_sets=((0, 1), (1,), ()),
        store="tuples",
    )
    tiny_budget = 128 * 1024
    many_groups = 2500


@pytest.mark.slow
class TestUpdates(QueryConformance):
    plan = window_plan("10 seconds", "2 seconds", slack="1 second", inputs=TWO, mode="changes")
    tiny_budget = 448 * 1024


@pytest.mark.slow
class TestUpdatesFromTuples(QueryConformance):
    plan = window_plan(
        "10 seconds",
        "2 seconds",
        slack="1 second",
        keys=WORDS,
        inputs=WHOLE,
        aggregates=INVERTIBLE,
        mode="changes",
        store="tuples",
    )
    tiny_budget = 128 * 1024
    many_groups = 2500


class TestWindowsWithoutKeys(QueryConformance):
    plan = window_plan("9 seconds", "6 seconds", slack=0, keys=pa.schema([]), inputs=TWO)
    tiny_budget = 448 * 1024

    def splits_expected(self, partitions: int) -> bool:
        return partitions == 2


@given(
    reach=st.sampled_from((1, 3, 5, 12)),
    slide=st.sampled_from((1, 2, 3, 5)),
    offset=st.sampled_from((0, SECOND // 3, -SECOND // 4)),
    slack=st.sampled_from((0, 2 * SECOND, [0, 3 * SECOND])),
    keys=st.sampled_from((WORDS, pa.schema([("key", pa.int64())]), pa.schema([]))),
    shape=shapes(span=30 * SECOND),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=30)
def test_oracle_windows_equal_the_obvious_computation(
    reach: int,
    slide: int,
    offset: int,
    slack: int | list[int],
    keys: pa.Schema,
    shape: StreamShape,
    seed: int,
) -> None:
    plan = window_plan(
        reach * SECOND,
        min(reach, slide) * SECOND,
        offset=offset,
        slack=slack,
        keys=keys,
        inputs=TWO,
    )
    with tempfile.TemporaryDirectory() as folder, small_sizes():
        check(plan, generate(plan, shape, seed), folder, shards=1)


def views_of(store: str) -> Plan:
    """Return a plan of several views: shared windows and others, several groupings and modes."""
    alone = window_plan(keys=WORDS, inputs=WHOLE, aggregates=INVERTIBLE, slack="1 second")
    count, total = INVERTIBLE
    hopping, long = Windows(6 * SECOND, 2 * SECOND), Windows(15 * SECOND, 3 * SECOND, SECOND)
    return replace(
        alone,
        views=(
            View(hopping, (count, total), ((0, 1),), (0, 1)),
            View(hopping, (total,), ((1,),), (1,)),
            View(hopping, (count,), ((1,),), (1,), mode="changes"),
            View(long, (count,), ((0,), ()), (0,), tells_grouping=True),
            View(Cumulative(8 * SECOND, 4 * SECOND), (count,), ((),), ()),
        ),
        store=store,
    )


@pytest.mark.sample(3)
@pytest.mark.parametrize("store", ["panes", "tuples", "auto"])
@pytest.mark.parametrize("budget", ["16 MB", "440 KB"])
def test_oracle_views_that_share_windows_equal_views_alone(
    tmp_path: Path, store: str, budget: str
) -> None:
    plan = views_of(store)
    shape = StreamShape(
        events=2000, groups=1200, batches=6, disorder=6 * SECOND, nulls=0.1, empty=0.2, gaps=1
    )
    items = generate(plan, shape, 3)
    with small_sizes(slice_bytes=4096):
        found: list[list[pa.Table]] = [[] for _ in plan.views]
        query = open_query(plan, str(tmp_path), budget=budget)
        for number, batch in enumerate(batches_of(items)):
            if number in (2, 4):
                query = open_query(plan, str(tmp_path), budget=budget)
            deliveries = query.driver.batch(query.next_batch, batch)
            for place, tables in enumerate(found):
                tables.append(query.rows(deliveries, place))
        deliveries = query.driver.flush()
        for place, tables in enumerate(found):
            tables.append(query.rows(deliveries, place))
    for number, view in enumerate(plan.views):
        oracle = ObviousWindows(plan, number)
        expected = [oracle.feed(batch) for batch in batches_of(items)] + [oracle.flush()]
        for table, rows in zip(found[number], expected, strict=True):
            keys = len(view.keys) + view.tells_grouping
            assert not differences(rows_of(table), rows, keys), f"view {number}"


@given(shape=shapes(span=30 * SECOND), seed=st.integers(0, 2**32))
@settings(max_examples=15)
def test_oracle_updates_are_the_differences_between_windows(shape: StreamShape, seed: int) -> None:
    plan = window_plan("9 seconds", "2 seconds", inputs=WHOLE, mode="changes")
    with tempfile.TemporaryDirectory() as folder, small_sizes():
        check(plan, generate(plan, shape, seed), folder)


@pytest.mark.sample(4)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("snapshot", [2, 20])
def test_crash_a_query_of_updates_goes_on_with_appends(
    tmp_path: Path, seed: int, snapshot: int
) -> None:
    updates = window_plan("5 seconds", "2 seconds", slack=0, inputs=TWO, mode="changes")
    appends = replace(updates, views=(replace(updates.views[0], mode="append"),))
    shape = StreamShape(events=160, groups=12, batches=12, disorder=SECOND, gaps=2)
    batches = list(batches_of(generate(updates, shape, seed)))
    oracle = ObviousWindows(appends)
    with small_sizes(snapshot=snapshot):
        for number, batch in enumerate(batches):
            plan = updates if number < 6 else appends
            found = open_query(plan, str(tmp_path)).feed(batch)
            expected = oracle.feed(batch)
            if plan is appends:
                assert not differences(rows_of(found), expected, 1)


@given(shape=shapes(span=30 * SECOND), seed=st.integers(0, 2**32))
@settings(max_examples=15)
def test_oracle_both_stores_emit_the_same_rows(shape: StreamShape, seed: int) -> None:
    tables = []
    for store in ("panes", "tuples"):
        plan = window_plan(
            "9 seconds", "2 seconds", inputs=WHOLE, aggregates=INVERTIBLE, store=store
        )
        items = generate(plan, shape, seed)
        with tempfile.TemporaryDirectory() as folder, small_sizes():
            tables.append(drive(lambda: open_query(plan, folder), items))  # noqa: B023
    for panes, tuples in zip(*tables, strict=True):
        assert same_multiset(rows_of(panes), rows_of(tuples))


@pytest.mark.parametrize("seed", range(3))
def test_oracle_every_aggregate_of_every_type(tmp_path: Path, seed: int) -> None:
    plan = window_plan("12 seconds", "5 seconds", slack="1 second", inputs=EVERY_INPUT)
    shape = StreamShape(events=150, batches=4, disorder=9 * SECOND, nulls=0.3 * seed, specials=0.1)
    check(plan, generate(plan, shape, seed), str(tmp_path))


def test_oracle_every_aggregate_equals_duckdb(tmp_path: Path) -> None:
    inputs = pa.schema([field for field in EVERY_INPUT if field.name != "wide"])
    aggregates = [
        each for each in every_aggregate(inputs) if not each.alias.startswith("avg_price")
    ]
    plan = window_plan(
        "12 seconds",
        "5 seconds",
        offset="-2 seconds",
        slack="60 seconds",
        keys=pa.schema([("name", pa.string()), ("part", pa.int64())]),
        inputs=inputs,
        aggregates=aggregates,
        grouping_sets=((0, 1), (0,), ()),
    )
    shape = StreamShape(events=400, disorder=30 * SECOND, nulls=0.2, start=-100 * SECOND)
    items = generate(plan, shape, 1)
    batches = [b for splits in batches_of(items) for split in splits for b in split]
    found = rows_of(drive(lambda: open_query(plan, str(tmp_path)), items))
    assert not differences(found, windows_by_sql(plan, batches), 3, tolerance=1e-9)


def test_an_event_behind_the_watermark_counts_in_windows_still_open(tmp_path: Path) -> None:
    # range 4, slide 2, slack 0
    #   batch 0:  event at 9             watermark 9: closed are windows that end at or before 9
    #   batch 1:  event at 5: windows [2, 6) and [4, 8) have closed            -> late
    #             event at 7: [4, 8) has closed, [6, 10) is open               -> counts there
    plan = window_plan(
        "4 seconds", "2 seconds", slack=0, aggregates=[Aggregate("sum", "value", "s")]
    )
    query = open_query(plan, str(tmp_path))
    assert feed(query, (9, 1, 1.0)) == []
    assert feed(query, (5, 1, 10.0), (7, 1, 100.0)) == []
    rows = rows_of(query.flush())
    assert sorted((row[0] // SECOND, row[3]) for row in rows) == [(6, 101.0), (8, 1.0)]
    last = query.driver.last
    assert last is not None
    assert last.totals["late"] == 1


def test_late_values_reach_fields_without_an_inverse_after_a_flip(tmp_path: Path) -> None:
    # range 6, slide 2: windows close while events keep coming behind the watermark, into panes that
    # were turned into suffixes already
    plan = window_plan("6 seconds", "2 seconds", slack=0)
    oracle = ObviousWindows(plan)
    query = open_query(plan, str(tmp_path), shards=1)
    dice = np.random.default_rng(3)
    for second in range(0, 60, 2):
        behind = dice.integers(0, 6, size=3)
        rows = [(second, 1, 0.1)] + [(second - int(b), 1, float(dice.normal())) for b in behind]
        batch = [[events(plan, rows)]]
        assert not differences(rows_of(query.feed(batch)), oracle.feed(batch), 1)


def test_float_sums_do_not_remember_values_that_left(tmp_path: Path) -> None:
    # a huge value is in windows up to second 5; subtracting it would leave a rounding error behind
    plan = window_plan(
        "4 seconds", "2 seconds", slack=0, aggregates=[Aggregate("sum", "value", "s")]
    )
    query = open_query(plan, str(tmp_path))
    feed(query, (0, 1, 1e300), (1, 1, 0.1), (5, 1, 0.1), (7, 1, 0.2))
    sums = {
        row[0] // SECOND: row[3] for row in rows_of(query.feed([[events(plan, [(20, 1, 1.0)])]]))
    }
    assert sums[4] == 0.1 + 0.2
    assert sums[6] == 0.2


def test_windows_without_events_are_not_emitted(tmp_path: Path) -> None:
    plan = window_plan(
        "4 seconds", "2 seconds", slack=0, aggregates=[Aggregate("count", None, "n")]
    )
    query = open_query(plan, str(tmp_path))
    feed(query, (0, 1, 1.0))
    rows = feed(query, (1_000_000, 1, 1.0))
    assert [(row[0] // SECOND, row[3]) for row in rows] == [(-2, 1), (0, 1)]
    assert len(rows_of(query.flush())) == 2


def test_crash_restored_state_emits_the_same_rows(tmp_path: Path) -> None:
    plan = window_plan("10 seconds", "2 seconds", slack=0, inputs=TWO)
    shape = StreamShape(events=400, batches=12, disorder=8 * SECOND, groups=30)
    items = generate(plan, shape, 5)
    with small_sizes(snapshot=3):
        never = drive(lambda: open_query(plan, str(tmp_path / "never")), items)
        always = drive(lambda: open_query(plan, str(tmp_path / "always")), restart(items))
    for one, other in zip(never, always, strict=True):
        assert not differences(rows_of(other), rows_of(one), 1, tolerance=1e-15)


def test_crash_in_more_than_sixty_four_versions(tmp_path: Path) -> None:
    plan = window_plan(
        "6 seconds", "2 seconds", slack=0, aggregates=[Aggregate("max", "value", "m")]
    )
    shape = StreamShape(events=300, batches=150, span=300 * SECOND, disorder=3 * SECOND)
    items = generate(plan, shape, 6)
    with small_sizes(snapshot=5):
        check(plan, restart(items, 40), str(tmp_path), shards=1)
    commits = sorted((tmp_path / "checkpoint" / COMMITS).iterdir())
    segments = list((tmp_path / "checkpoint" / SEGMENTS).iterdir())
    first, *rest = commits
    assert Place.of(first.name) == Place(0, 1)  # the first takeover stays
    assert int(rest[0].name[:12]) > 64
    assert len(commits) < 90
    assert len(segments) < 40


def test_snapshots_let_old_segments_go(tmp_path: Path) -> None:
    plan = window_plan(
        "4 seconds", "2 seconds", slack=0, aggregates=[Aggregate("count", None, "n")]
    )
    counts = []
    with small_sizes(snapshot=3):
        query = open_query(plan, str(tmp_path), shards=1)
        for second in range(0, 120, 2):
            feed(query, (second, second, 1.0))
            counts.append(len(list((tmp_path / "checkpoint" / SEGMENTS).iterdir())))
    assert max(counts[20:]) <= max(counts[:20]) + 1


def test_bounded_state_of_ten_times_the_budget(tmp_path: Path) -> None:
    budget, groups = 1 << 20, 12_000
    plan = window_plan(
        "1 hour",
        "30 minutes",
        slack=0,
        keys=pa.schema([("name", pa.string())]),
        aggregates=[Aggregate("sum", "value", "s"), Aggregate("max", "value", "m")],
    )
    query = open_query(plan, str(tmp_path), budget=budget, shards=1)
    names = [f"{'a key of many bytes ' * 40}{number}" for number in range(groups)]
    emitted = []
    for number in range(4):
        chosen = np.arange(number * groups // 4, (number + 1) * groups // 4)
        times = np.full(len(chosen), number * 60 * SECOND)
        batch = pa.record_batch(
            [
                pa.array(times).cast(plan.time),
                pa.array(np.zeros(len(chosen), dtype=np.int32)),
                pa.array([names[i] for i in chosen]),
                pa.array(chosen.astype(np.float64)),
            ],
            schema=plan.batch_schema,
        )
        (delivery,) = query.driver.batch(number, [[batch]])
        assert delivery.progress["icestream"]["peakMemoryBytes"] <= budget
    (delivery,) = query.driver.flush()
    facts = delivery.progress["icestream"]
    assert facts["peakMemoryBytes"] <= budget
    assert facts["partitions"] >= 10
    emitted = query.rows([delivery])
    for start in (-1800 * SECOND, 0):
        rows = {row[2]: row[3:] for row in rows_of(emitted) if row[0] == start}
        assert rows == {name: (float(i), float(i)) for i, name in enumerate(names)}


def test_a_budget_without_room_for_a_group_says_who_holds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = window_plan(keys=pa.schema([("name", pa.string())]))
    monkeypatch.setattr(quotas, "LEAST_QUOTA", 1)
    monkeypatch.setattr(operator, "SLICE_BYTES", 1024)
    query = open_query(plan, str(tmp_path), budget=48 * 1024, shards=1)
    batch = pa.record_batch(
        [
            pa.array([0]).cast(plan.time),
            pa.array([0], pa.int32()),
            pa.array(["x" * 100_000]),
            pa.array([1.0]),
        ],
        schema=plan.batch_schema,
    )
    with pytest.raises(BudgetError, match=r"(?s)at least \.memory.*Who holds what"):
        query.feed([[batch]])


def test_the_same_batch_in_other_splits_gives_the_same_rows(tmp_path: Path) -> None:
    plan = window_plan("4 seconds", "2 seconds", slack=0)
    rows = [(second, second % 3, float(second)) for second in range(20)]
    one = open_query(plan, str(tmp_path / "one")).feed([[events(plan, rows)]])
    parts = [[events(plan, rows[i::4])] for i in range(4)]
    many = open_query(plan, str(tmp_path / "many")).feed([*parts, []])
    assert same_multiset(rows_of(one), rows_of(many))
