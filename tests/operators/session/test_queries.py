"""Session windows inside whole queries, on the disk and in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.operators.aggregates.aggregate import Aggregate
from icestream.plan.computation import Computation
from icestream.plan.nodes.queries import Plan
from icestream.plan.windows.session import Session
from icestream.runtime.local import LocalQuery
from icestream.state import snapshot_schedule
from icestream.state.versions.commits import SEGMENTS
from icestream.testing.sources import SECOND, Item, StreamShape, batches_of, drive, generate, shapes
from tests.fixtures.plans import EVERY_INPUT, open_query, window_plan
from tests.oracles.arrivals import Row
from tests.oracles.grid import differences, rows_of
from tests.oracles.sessions import ObviousSessions
from tests.suites.window_conformance import Oracle, QueryConformance

WORDS = pa.schema([("name", pa.string()), ("number", pa.float64())])
TWO = pa.schema([("value", pa.float64()), ("whole", pa.int64())])
COUNT = [Aggregate("count", None, "n")]


class SessionConformance(QueryConformance):
    tiny_budget = 160 * 1024

    @pytest.fixture(autouse=True)
    def _snapshots_often(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(snapshot_schedule, "AFTER", 3)
        monkeypatch.setattr(snapshot_schedule, "AT_LATEST", 4)

    def oracle(self) -> Oracle:
        return ObviousSessions(self.plan)


class TestSessions(SessionConformance):
    plan = window_plan(windows=Session(2 * SECOND), slack="1 second", inputs=TWO)


@pytest.mark.slow
class TestSessionsWithoutSlack(SessionConformance):
    plan = window_plan(
        windows=Session(3 * SECOND),
        slack=0,
        keys=WORDS,
        inputs=pa.schema([("whole", pa.int64())]),
        aggregates=[*COUNT, Aggregate("sum", "whole", "s"), Aggregate("last", "whole", "l")],
    )


class TestSessionsOfGroupingSets(SessionConformance):
    plan = window_plan(
        windows=Session(SECOND),
        slack=["0 seconds", "2 seconds"],
        keys=WORDS,
        grouping_sets=((0, 1), (1,), ()),
    )


class TestSessionsOfOwnGaps(SessionConformance):
    plan = window_plan(
        windows=Session(None, "until"),
        slack="1 second",
        inputs=TWO.append(pa.field("until", pa.timestamp("us", "UTC"))),
        aggregates=[*COUNT, Aggregate("sum", "whole", "s"), Aggregate("last", "whole", "l")],
    )


@pytest.mark.slow
class TestSessionsWithoutKeys(SessionConformance):
    plan = window_plan(windows=Session(SECOND // 3), slack=0, keys=pa.schema([]), inputs=TWO)

    def splits_expected(self, partitions: int) -> bool:
        return partitions == 2


def check(plan: Plan, items: Sequence[Item], folder: str, shards: int = 2) -> ObviousSessions:
    oracle = ObviousSessions(plan)
    expected = [oracle.feed(batch) for batch in batches_of(items)] + [oracle.flush()]
    tables = drive(lambda: open_query(plan, folder, shards=shards), items)
    for number, (table, rows) in enumerate(zip(tables, expected, strict=True)):
        wrong = differences(rows_of(table), rows, len(plan.group_keys))
        assert not wrong, f"batch {number}: {wrong[:3]}"
    return oracle


@given(
    gap=st.sampled_from((1, SECOND // 10, SECOND, 5 * SECOND)),
    slack=st.sampled_from((0, 2 * SECOND, [0, 3 * SECOND])),
    keys=st.sampled_from((WORDS, pa.schema([("key", pa.int64())]), pa.schema([]))),
    shape=shapes(span=30 * SECOND),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=30)
def test_oracle_queries_equal_the_obvious_computation(
    gap: int, slack: int | list[int], keys: pa.Schema, shape: StreamShape, seed: int
) -> None:
    plan = window_plan(windows=Session(gap), slack=slack, keys=keys, inputs=TWO)
    with tempfile.TemporaryDirectory() as folder:
        check(plan, generate(plan, shape, seed), folder, shards=1)


@pytest.mark.parametrize("seed", range(2))
def test_oracle_every_aggregate_of_every_type(tmp_path: Path, seed: int) -> None:
    plan = window_plan(windows=Session(2 * SECOND), slack="1 second", inputs=EVERY_INPUT)
    shape = StreamShape(events=150, batches=4, disorder=9 * SECOND, nulls=0.3 * seed, specials=0.1)
    assert check(plan, generate(plan, shape, seed), str(tmp_path)).late > 0


def events(plan: Computation, rows: Sequence[tuple[float, int]]) -> Iterator[pa.RecordBatch]:
    """Make events of (second, key)."""
    times = [int(second * SECOND) for second, _ in rows]
    columns = [
        pa.array(times, pa.int64()).cast(plan.time),
        pa.array([0] * len(rows), pa.int32()),
        pa.array([key for _, key in rows], pa.int64()),
        pa.array([1.0] * len(rows), pa.float64()),
    ]
    yield pa.record_batch(columns, schema=plan.batch_schema)


def feed(query: LocalQuery, *rows: tuple[float, int]) -> list[Row]:
    return sorted(rows_of(query.feed([list(events(query.plan, rows))])))


def test_an_event_is_late_only_when_its_own_session_has_ended(tmp_path: Path) -> None:
    # gap 4, slack 0
    #   batch 0:  event at 9           watermark 9
    #   batch 1:  event at 5: its session [5, 9) ends at the watermark          -> late
    #             event at 5.001: ends after it and touches 9                   -> joins [9, 13)
    plan = window_plan(windows=Session(4 * SECOND), slack=0, aggregates=COUNT)
    query = open_query(plan, str(tmp_path))
    assert feed(query, (9, 1)) == []
    assert feed(query, (5, 1), (5.001, 1)) == []
    assert rows_of(query.flush()) == [(5_001_000, 13 * SECOND, 1, 2)]
    last = query.driver.last
    assert last is not None
    assert last.totals["late"] == 1


def test_a_flush_closes_every_session_once(tmp_path: Path) -> None:
    plan = window_plan(windows=Session(4 * SECOND), slack="1 minute", aggregates=COUNT)
    query = open_query(plan, str(tmp_path))
    assert feed(query, (0, 1), (3, 1), (9, 1), (1, 2)) == []
    closed = [(0, 7, 1, 2), (1, 5, 2, 1), (9, 13, 1, 1)]
    expected = [(start * SECOND, end * SECOND, *rest) for start, end, *rest in closed]
    assert sorted(rows_of(query.flush())) == expected
    assert sorted(rows_of(query.flush())) == expected
    assert feed(query, (9, 1), (12, 1)) == []
    assert rows_of(query.flush()) == [(12 * SECOND, 16 * SECOND, 1, 1)]


def test_snapshots_let_old_segments_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_schedule, "AFTER", 3)
    monkeypatch.setattr(snapshot_schedule, "AT_LATEST", 4)
    plan = window_plan(windows=Session(4 * SECOND), slack=0, aggregates=COUNT)
    query = open_query(plan, str(tmp_path), shards=1)
    counts = []
    for second in range(0, 80, 2):
        feed(query, (second, second % 5))
        counts.append(len(list((tmp_path / "checkpoint" / SEGMENTS).iterdir())))
    assert max(counts[20:]) <= max(counts[:20])
    assert max(counts) < 10
