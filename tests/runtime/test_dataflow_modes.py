from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from icestream.core.times import INFINITY
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.dataflow.component import ComponentOperator
from icestream.operators.lifetimes.changes import LifetimeOperator
from icestream.plan.events.dataflow import Dataflow
from icestream.testing.sources import StreamShape, batches_of
from tests.fixtures import dataflow_plans as plans
from tests.fixtures.dataflow_plans import RATINGS, SECOND, PlanStream, dataflow
from tests.oracles.kernels.double_sums import nearest_reference
from tests.oracles.lifetimes import Bag, assert_same_snapshots
from tests.suites.dataflow_conformance import bag_of_rows, open_dataflow, stream_of

SHAPE = StreamShape(events=240, groups=12, batches=8)


def windowed(mode: str) -> Dataflow:
    sums = (Aggregate("sum", "rating", "total"), Aggregate("count", None, "n"))
    ratings = PlanStream.of(RATINGS).window(8 * SECOND)
    return dataflow(ratings.apply(["user"], lambda group: group.agg(*sums)), mode)


def reported(rows: pa.Table) -> Counter[tuple[Any, ...]]:
    """Add up rows: (start, end, payload)."""
    found: Counter[tuple[Any, ...]] = Counter()
    start, end = (
        rows.column("lifetime").combine_chunks().field(name).cast(pa.int64()).to_pylist()
        for name in ("start", "end")
    )
    payload = rows.drop_columns(
        [name for name in ("lifetime", "change") if name in rows.column_names]
    ).to_pylist()
    change = (
        rows.column("change").to_pylist() if "change" in rows.column_names else [1] * len(start)
    )
    for first, last, row, diff in zip(start, end, payload, change, strict=True):
        found[first, INFINITY if last is None else last, *row.values()] += diff
    return Counter({row: count for row, count in found.items() if count})


@pytest.mark.parametrize("make", [windowed, plans.revised_aggregate, plans.united])
def test_oracle_append_mode_reports_once_what_updates_add_up_to(
    make: Callable[[str], Dataflow], tmp_path: Path
) -> None:
    bags: list[Bag] = []
    for mode in ("changes", "append"):
        flow = make(mode)
        query = open_dataflow(flow, tmp_path / mode)
        tables = [query.feed(batch) for batch in batches_of(stream_of(flow, SHAPE, 4))]
        bags.append(bag_of_rows(flow, pa.concat_tables([*tables, query.flush()])))
    assert bags[1]
    assert_same_snapshots(*bags)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("mode", ["changes", "append"])
def test_sums_of_doubles_forget_what_has_ended(mode: str, tmp_path: Path, restarts: bool) -> None:
    #        0    1    2    3    4    5    6    7
    # 1e36   |============|
    # 1e18   |============|
    # 1e308  |============|   twice: infinite until second 2.5
    # 1.0    |============|
    # 0.1         |============|
    # 0.1              |============|
    # 0.2                   |============|
    sums = (Aggregate("sum", "rating", "total"), Aggregate("avg", "rating", "mean"))
    ratings = PlanStream.of(RATINGS).window(5 * SECOND // 2)
    flow = dataflow(ratings.apply(["user"], lambda group: group.agg(*sums)), mode, slack=0)
    values = [[1e36, 1e18, 1e308, 1e308, 1.0], [0.1], [0.1], [0.2], [], [], []]
    query = open_dataflow(flow, tmp_path)
    found: Counter[tuple[Any, ...]] = Counter()
    for second, ratings_then in enumerate(values):
        rows = len(ratings_then)
        columns = [
            pa.array([second * SECOND] * rows, pa.int64()).cast(flow.batch_schema.types[0]),
            pa.array([0] * rows, pa.int32()),
            *(pa.array([7] * rows, pa.int64()) for _ in range(2)),
            pa.array(ratings_then, pa.float64()),
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=flow.batch_schema)
        found.update(reported(query.feed([[batch]])))
        if restarts:
            query.close()
            query = open_dataflow(flow, tmp_path)
    found.update(reported(query.flush()))
    halves = {(2 * first // SECOND, 2 * last // SECOND, *row[1:]) for (first, last, *row) in +found}
    assert halves == {
        (0, 2, math.inf, 4e307),
        (2, 4, math.inf, nearest_reference((2 * Fraction(1e308) + Fraction(1e36)) / 6)),
        (4, 5, math.inf, nearest_reference((2 * Fraction(1e308) + Fraction(1e36)) / 7)),
        (5, 6, 0.2, 0.1),
        (6, 7, 0.4, nearest_reference((2 * Fraction(0.1) + Fraction(0.2)) / 3)),
        (7, 9, nearest_reference(Fraction(0.1) + Fraction(0.2)), 0.15000000000000002),
        (9, 11, 0.2, 0.2),
    }


def test_oracle_no_change_of_a_version_takes_another_back(tmp_path: Path) -> None:
    flow = plans.recommender()
    query = open_dataflow(flow, tmp_path)
    shape = replace(SHAPE, events=60, groups=8, batches=4, skew=0.5)
    for batch in batches_of(stream_of(flow, shape, 1)):
        rows = query.feed(batch)
        signs: dict[tuple[Any, ...], set[int]] = {}
        for row in rows.to_pylist():
            change = row.pop("change")
            signs.setdefault(tuple(map(str, row.values())), set()).add(change)
        assert all(len(each) == 1 for each in signs.values())


def _never_last(
    self: ComponentOperator,
    number: int,
    operator: LifetimeOperator,
    port: int,
    changes: pa.RecordBatch,
    watermark: int,
) -> Iterator[pa.RecordBatch]:
    return operator.on_changes(port, changes, self._groups[number], watermark)


def both_ways(mode: str = "changes") -> Dataflow:
    """Short-lived events that meet themselves, and come on two ways to an aggregate."""

    def group(events: PlanStream) -> PlanStream:
        left, right = (
            events.select("user", "item AS a"),
            events.select("user AS other", "item AS b", "rating AS r"),
        )
        pairs = left.join(right, hidden=("other",))
        again = pairs.where("a >= b").union(pairs.where("a <= b"))
        return again.agg(Aggregate("count", None, "n"), Aggregate("sum", "r", "total"))

    return dataflow(
        PlanStream.of(RATINGS).window(SECOND // 4).apply(["user"], group), mode, slack=0
    )


@pytest.mark.parametrize(
    "flow",
    [plans.recommender(), plans.nested(), plans.difference(), plans.self_join(), both_ways()],
)
def test_oracle_operators_that_forget_early_say_the_same(
    flow: Dataflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = replace(SHAPE, events=90, groups=8, batches=5, skew=0.5)
    said: list[Counter[tuple[Any, ...]]] = []
    for folder in ("early", "late"):
        query, found = open_dataflow(flow, tmp_path / folder), Counter[tuple[Any, ...]]()
        for batch in batches_of(stream_of(flow, shape, 2)):
            found.update(reported(query.feed(batch)))
        said.append(Counter({row: count for row, count in found.items() if count}))
        monkeypatch.setattr(ComponentOperator, "_changed", _never_last)
    assert said[0].keys() == said[1].keys()
    assert said[0] == said[1]
