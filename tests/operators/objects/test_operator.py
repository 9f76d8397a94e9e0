"""The object operator inside whole queries, on the disk and in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from icestream.operators.aggregates import Aggregate
from icestream.operators.objects import operator
from icestream.operators.objects.user import UserAggregate
from icestream.operators.panes import Cumulative
from icestream.testing.conformance import QueryConformance
from icestream.testing.objects_oracle import ObviousObjects, settled
from icestream.testing.oracles import differences, rows_of
from icestream.testing.plans import window_plan
from icestream.testing.sources import SECOND, Item, drive, generate, rebatch

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

    tiny_budget = 1024 * 1024

    @pytest.fixture(autouse=True)
    def small_slices(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(operator, "SLICE_BYTES", 8192)
        monkeypatch.setattr(operator, "SNAPSHOT_AFTER", 3)

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


class TestCumulativeWindows(ObjectConformance):
    plan = window_plan(
        slack="1 second",
        inputs=TWO,
        aggregates=EXACT[:6],
        windows=Cumulative(30 * SECOND, 2 * SECOND, -3 * SECOND),
    )


class TestTumblingWindowsWithoutKeys(ObjectConformance):
    plan = window_plan("9 seconds", slack=0, keys=pa.schema([]), inputs=TWO, aggregates=EXACT[1:4])

    def splits_expected(self, partitions: int) -> bool:
        return partitions == 2
