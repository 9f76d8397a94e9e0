"""The object operator inside whole queries, on the disk and in memory."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.core.errors import BudgetError
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.object_aggregates import operator
from icestream.operators.object_aggregates.user_aggregates import UserAggregate
from icestream.plan.nodes.queries import Plan
from icestream.plan.windows.grid import Cumulative
from icestream.state import snapshot_schedule
from icestream.state.log.format import Record
from icestream.state.log.reader import Log
from icestream.state.versions.commits import SEGMENTS
from icestream.testing.sources import (
    SECOND,
    Item,
    StreamShape,
    batches_of,
    drive,
    generate,
    rebatch,
    shapes,
)
from tests.fixtures.plans import EVERY_INPUT, open_query, window_plan
from tests.oracles.grid import differences, rows_of
from tests.oracles.object_aggregates import ObviousObjects, settled
from tests.suites.window_conformance import QueryConformance

WORDS = pa.schema([("name", pa.string()), ("number", pa.float64())])
TWO = pa.schema([("value", pa.float64()), ("whole", pa.int32())])


def _lift(value: int | None) -> tuple[int, int] | None:
    return None if value is None else (value, value)


def _widen(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    return (min(a[0], b[0]), max(a[1], b[1]))


SPREAD = UserAggregate(_lift, _widen, lambda state: state[1] - state[0], pa.int64())

EXACT = (
    Aggregate("count", None, "events"),
    Aggregate("collect_list", "whole", "all"),
    Aggregate("collect_set", "value", "set"),
    Aggregate("count_distinct", "whole", "distinct"),
    Aggregate("sum", "value", "sum"),
    Aggregate("percentile", "value", "quartiles", (), ((0.25, 0.5, 0.75),)),
    Aggregate("median", "whole", "median"),
    Aggregate("first", "value", "first"),
    Aggregate("last", "whole", "last", (), (True,)),
    Aggregate("max_by", "whole", "whole_of_greatest", ("value",)),
    Aggregate("avg", "whole", "avg"),
)
SKETCHED = (
    Aggregate("approx_count_distinct", "whole", "about_distinct", (), (7,)),
    Aggregate("approx_percentile", "value", "about_percentile", (), ((0.5, 0.9), 4096)),
    Aggregate("approx_top_k", "whole", "about_top", (), (3,)),
    Aggregate("user", "whole", "spread", (), (SPREAD,)),
    Aggregate("max", "value", "max"),
)


class ObjectConformance(QueryConformance):
    """The suite for object aggregates."""

    tiny_budget = 2 * 1024 * 1024

    @pytest.fixture(autouse=True)
    def small_slices(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(operator, "SLICE_BYTES", 8192)
        monkeypatch.setattr(snapshot_schedule, "AFTER", 3)

    def oracle(self) -> ObviousObjects:
        return ObviousObjects(self.plan)

    def check(self, tables: Sequence[pa.Table], items: Sequence[Item]) -> None:
        expected = self.expected(items)
        assert len(tables) == len(expected)
        for number, (table, rows) in enumerate(zip(tables, expected, strict=True)):
            wrong = differences(settled(rows_of(table)), settled(rows), self.shown_keys)
            assert not wrong, f"batch {number}: {wrong[:3]}"

    def test_rows_do_not_depend_on_batch_boundaries(self, tmp_path: Path) -> None:
        items = generate(self.plan, replace(self.shape(), disorder=0), 9)
        whole = settled(row for rows in self.expected(items) for row in rows)
        for size in (1000, 37):
            anew = partial(self.open, tmp_path / str(size))
            found = settled(rows_of(drive(anew, rebatch(items, size))))
            assert not differences(found, whole, self.shown_keys)

    @property
    def shown_keys(self) -> int:
        return len(self.plan.group_keys)


class TestExactAggregatesOfSlidingWindows(ObjectConformance):
    plan = window_plan("20 seconds", "2 seconds", slack="1 second", inputs=TWO, aggregates=EXACT)


class TestSketchesOfGroupingSets(ObjectConformance):
    plan = window_plan(
        "6 seconds",
        "4 seconds",
        offset="1500 milliseconds",
        slack=["0 seconds", "2 seconds"],
        keys=WORDS,
        inputs=TWO,
        grouping_sets=((0, 1), (1,), ()),
        aggregates=SKETCHED,
    )
    many_groups = 700


@pytest.mark.slow
class TestCumulativeWindows(ObjectConformance):
    plan = window_plan(
        slack="1 second",
        inputs=TWO,
        aggregates=EXACT[:6],
        windows=Cumulative(30 * SECOND, 2 * SECOND, -3 * SECOND),
    )


@pytest.mark.slow
class TestTumblingWindowsWithoutKeys(ObjectConformance):
    plan = window_plan("9 seconds", slack=0, keys=pa.schema([]), inputs=TWO, aggregates=EXACT[1:4])

    def splits_expected(self, partitions: int) -> bool:
        return partitions == 2


@given(
    reach=st.sampled_from((1, 5, 12, 40)),
    slide=st.sampled_from((1, 2, 5)),
    offset=st.sampled_from((0, SECOND // 3, -SECOND // 4)),
    slack=st.sampled_from((0, 2 * SECOND, [0, 3 * SECOND])),
    keys=st.sampled_from((WORDS, pa.schema([("key", pa.int64())]), pa.schema([]))),
    shape=shapes(span=60 * SECOND),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=25)
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
        min(slide, reach) * SECOND,
        offset=offset,
        slack=slack,
        keys=keys,
        inputs=TWO,
        aggregates=(*EXACT[:4], *SKETCHED[-2:]),
    )
    items = generate(plan, shape, seed)
    with tempfile.TemporaryDirectory() as folder:
        check(plan, items, folder)


def check(plan: Plan, items: Sequence[Item], folder: str) -> None:
    oracle = ObviousObjects(plan)
    expected = [oracle.feed(batch) for batch in batches_of(items)] + [oracle.flush()]
    tables = drive(lambda: open_query(plan, folder), items)
    for number, (table, rows) in enumerate(zip(tables, expected, strict=True)):
        wrong = differences(settled(rows_of(table)), settled(rows), len(plan.group_keys))
        assert not wrong, f"batch {number}: {wrong[:3]}"


def test_parity_words_beside_the_pane_operator(tmp_path: Path) -> None:
    words = window_plan("20 seconds", "3 seconds", slack="2 seconds", inputs=EVERY_INPUT)
    aggregates = (*words.views[0].aggregates, Aggregate("median", "double", "object"))
    both = window_plan(
        "20 seconds", "3 seconds", slack="2 seconds", inputs=EVERY_INPUT, aggregates=aggregates
    )
    items = generate(
        words, StreamShape(events=300, nulls=0.1, specials=0.1, disorder=5 * SECOND), 1
    )
    panes = drive(lambda: open_query(words, str(tmp_path / "words")), items)
    objects = drive(lambda: open_query(both, str(tmp_path / "both")), items)
    for pane_rows, rows in zip(panes, objects, strict=True):
        found = [row[:-1] for row in rows_of(rows)]
        assert not differences(found, rows_of(pane_rows), 1)


LISTS = (Aggregate("collect_list", "value", "all"), Aggregate("median", "value", "median"))


def events(plan: Plan, rows: Sequence[tuple[float, int, float]]) -> pa.RecordBatch:
    """Make events of (second, key, value)."""
    times, keys, values = zip(*rows, strict=True)
    return pa.record_batch(
        [
            pa.array([int(t * SECOND) for t in times], pa.int64()).cast(plan.time),
            pa.array([0] * len(rows), pa.int32()),
            pa.array(keys, pa.int64()),
            pa.array(values, pa.float64()),
        ],
        schema=plan.batch_schema,
    )


def test_an_event_behind_the_watermark_counts_in_windows_still_open(tmp_path: Path) -> None:
    """The node over panes 4..7 was made for windows that have closed, and is used by those open.

    pane     0 1 2 3 [4 5 6 7] 8 9 10 11 12
    before             a b           c          watermark 11: [1, 11) has closed
    after                x                      [2, 12) and [3, 13) take x from the node
    """
    plan = window_plan("10 seconds", "1 second", slack="0 seconds", aggregates=LISTS)
    query = open_query(plan, str(tmp_path))
    query.feed([[events(plan, [(4.5, 1, 1.0), (5.1, 1, 2.0), (11, 1, 3.0)])]])
    query = open_query(plan, str(tmp_path))
    query.feed([[events(plan, [(5, 1, 9.0), (5.1, 1, 8.0)])]])
    rows = rows_of(query.feed([[events(plan, [(13, 1, 4.0)])]]))
    lists = {row[0] // SECOND: row[3] for row in rows}
    assert lists == {2: [1.0, 9.0, 2.0, 8.0, 3.0], 3: [1.0, 9.0, 2.0, 8.0, 3.0]}


def test_bounded_the_directory_forgets_what_no_window_needs(tmp_path: Path) -> None:
    plan = window_plan("10 seconds", "1 second", slack="0 seconds", aggregates=LISTS)
    query = open_query(plan, str(tmp_path), shards=1)
    sizes: list[int] = []
    with mock.patch.object(operator.ObjectOperator, "statistics", property(_noting(sizes))):
        for second in range(60):
            query.feed([[events(plan, [(second, 1, 0.0)])]])
    assert max(sizes[30:]) <= max(sizes[:30]) <= 20


def _noting(sizes: list[int]) -> Callable[[Any], dict[str, Any]]:
    reported = vars(operator.ObjectOperator)["statistics"].fget

    def statistics(self: Any) -> dict[str, Any]:
        facts: dict[str, Any] = reported(self)
        sizes.append(facts["slices"])
        return facts

    return statistics


def test_bounded_a_slide_reads_few_nodes(tmp_path: Path) -> None:
    """A window of 1000 panes is made of few nodes, wherever it begins."""
    plan = window_plan("1000 seconds", "1 second", slack="0 seconds", aggregates=LISTS)
    query = open_query(plan, str(tmp_path), shards=1)
    query.feed([[events(plan, [(t, 1, float(t)) for t in range(1000)])]])
    counts: list[int] = []
    read_many = Log.read_many
    for second in range(1000, 1100):

        def counted(log: Log, markers: Any) -> Iterator[Record]:
            counts[-1] += len(markers)
            return read_many(log, markers)

        counts.append(0)
        with mock.patch.object(Log, "read_many", counted):
            rows = rows_of(query.feed([[events(plan, [(second, 1, 0.0)])]]))
        assert [len(row[3]) for row in rows] == [1000]
    assert max(counts[1:]) <= 60
    assert sum(counts[1:]) / 99 <= 35


def test_bounded_state_of_ten_times_the_budget(tmp_path: Path) -> None:
    budget, groups, batches = 1024 * 1024, 4000, 12
    plan = window_plan("120 seconds", "60 seconds", slack="0 seconds", aggregates=LISTS)
    dice = np.random.default_rng(1)
    query = open_query(plan, str(tmp_path), budget=budget, shards=1)
    values: dict[int, list[float]] = {}
    peak = size = most = 0
    for number in range(batches):
        count = 30_000
        times = np.sort(dice.integers(10 * number * SECOND, 10 * (number + 1) * SECOND, count))
        keys, numbers = dice.integers(0, groups, count), dice.normal(size=count)
        for key, value in zip(keys.tolist(), numbers.tolist(), strict=True):
            values.setdefault(key, []).append(value)
        batch = pa.record_batch(
            [
                pa.array(times).cast(plan.time),
                pa.array(np.zeros(count, dtype=np.int32)),
                pa.array(keys),
                pa.array(numbers),
            ],
            schema=plan.batch_schema,
        )
        (delivery,) = query.driver.batch(number, [[batch]])
        facts = delivery.progress["icestream"]
        peak, most = max(peak, facts["peakMemoryBytes"]), max(most, facts["partitions"])
        kept = os.scandir(tmp_path / "checkpoint" / SEGMENTS)
        size = max(size, sum(entry.stat().st_size for entry in kept))
    end = query.feed([[events(plan, [(130, 0, 0.0)])]])
    assert peak <= budget
    assert size >= 10 * budget
    assert most > 2
    full = {row[2]: row for row in rows_of(end) if row[0] == 0}
    assert {key: row[3] for key, row in full.items()} == values
    assert {key: row[4] for key, row in full.items()} == {
        key: pytest.approx(float(np.median(each))) for key, each in values.items()
    }


def test_bounded_a_group_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    plan = window_plan("10 seconds", slack="0 seconds", aggregates=LISTS)
    query = open_query(plan, str(tmp_path), budget="2 MB")
    query.feed([[events(plan, [(1 + n * 1e-5, 1, n) for n in range(60_000)])]])
    with pytest.raises(BudgetError, match="memory"):
        query.feed([[events(plan, [(11, 1, 0.0)])]])


def test_bounded_choices_among_long_texts_hold_a_few_of_them(tmp_path: Path) -> None:
    """A group has twelve megabytes of texts, of which an answer has 0.4, in a budget of 16."""
    calls = [Aggregate(name, "text", name) for name in ("max", "first")]
    columns = pa.schema([("text", pa.string())])
    plan = window_plan("10 seconds", slack="0 seconds", inputs=columns, aggregates=calls)
    query = open_query(plan, str(tmp_path), budget="16 MB", shards=1)
    texts = [chr(65 + 7 * number % 26) * 200_000 for number in range(60)]
    for number, text in enumerate(texts):
        query.feed(
            [
                [
                    pa.record_batch(
                        [
                            pa.array([number * SECOND // 10]).cast(plan.time),
                            pa.array([0], pa.int32()),
                            [1],
                            [text],
                        ],
                        schema=plan.batch_schema,
                    )
                ]
            ]
        )
    (row,) = rows_of(query.flush())
    assert row[3:] == (max(texts), texts[0])


def test_bounded_a_batch_of_many_panes_is_written_in_few_slices(tmp_path: Path) -> None:
    plan = window_plan("1 second", slack="0 seconds", aggregates=LISTS)
    query = open_query(plan, str(tmp_path), budget="2 MB", shards=1)
    dice = np.random.default_rng(1)
    written = 0
    write = operator.ObjectOperator._write

    def counted(self: operator.ObjectOperator, *args: Any) -> Iterator[tuple[int, ...]]:
        nonlocal written
        for each in write(self, *args):
            written += each[0] == 0
            yield each

    times, keys = np.sort(dice.random(40_000)) * 100, dice.integers(0, 1_000, 40_000)
    batch = events(plan, list(zip(times.tolist(), keys.tolist(), [1.0] * 40_000, strict=True)))
    with mock.patch.object(operator.ObjectOperator, "_write", counted):
        query.feed([[batch]])
    # a portion of 32 KB and a hundred panes; some panes are cut by a slice's maximum size
    assert written <= 4 * (batch.nbytes // (32 << 10) + 100)


def test_memory_that_an_error_asks_for_is_enough(tmp_path: Path) -> None:
    plan = window_plan("10 seconds", "1 second", slack="0 seconds", aggregates=LISTS)
    memory = "2 MB"
    for attempt in range(2):
        query = open_query(plan, str(tmp_path / str(attempt)), budget=memory)
        try:
            for first in (0, 10, 20, 30):
                # the first windows are small, and so are the panes of which nodes are made
                times = np.sort(np.random.default_rng(first).random(6_000)) * 10 + first
                query.feed([[events(plan, [(float(t), 1, 1.0) for t in times])]])
            break
        except BudgetError as error:
            assert attempt == 0
            advice = re.search(r'Give the query at least \.memory\("(.*?)"\)\.shards', str(error))
            assert advice is not None
            memory = advice[1]
    assert memory != "2 MB"


def test_windows_without_events_are_not_emitted(tmp_path: Path) -> None:
    plan = window_plan("4 seconds", "1 second", slack="0 seconds", aggregates=LISTS)
    query = open_query(plan, str(tmp_path))
    query.feed([[events(plan, [(1, 1, 1.0)])]])
    rows = rows_of(query.feed([[events(plan, [(100_000, 1, 2.0)])]]))
    assert sorted(row[0] // SECOND for row in rows) == [-2, -1, 0, 1]
