from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from icestream.core.errors import DefinitionError
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.frames import operator, tuples
from icestream.plan.nodes.queries import Plan, View
from icestream.plan.windows.frame import Frame, RowsSlide
from icestream.plan.windows.grid import Cumulative, Windows
from icestream.plan.windows.session import Session
from icestream.runtime.driver import Delivery
from icestream.runtime.local import LocalQuery, Splits
from icestream.testing.sources import SECOND, StreamShape, batches_of, generate
from tests.fixtures.plans import open_query, window_plan
from tests.suites.window_conformance import small_sizes

COUNT = Aggregate("count", None, "n")
SUM = Aggregate("sum", "x1", "s")
MOST = Aggregate("max", "x0", "most")
MEDIAN = Aggregate("median", "x0", "mid")
DISTINCT = Aggregate("count_distinct", "x1", "n")
ALL = Aggregate("collect_list", "x1", "all")
HOPPING = Windows(6 * SECOND, 2 * SECOND)

VIEWS = (
    View(HOPPING, (COUNT, SUM), ((0,),), (0,)),
    View(HOPPING, (MEDIAN, ALL), ((1, 0),), (1, 0)),
    View(Session(2 * SECOND), (COUNT, MOST), ((1,),), (1,)),
    View(Frame(rows=3), (SUM,), ((0,),), (0,)),
    View(HOPPING, (DISTINCT, MEDIAN), ((1, 0),), (1, 0)),
    View(Frame(range=3 * SECOND), (COUNT, MOST), ((0, 1),), (0, 1)),
    View(Windows(8 * SECOND, 4 * SECOND), (MOST,), ((0,), ()), (0,), tells_grouping=True),
    View(Session(SECOND), (COUNT,), ((0,), ()), (0,), tells_grouping=True),
    View(Cumulative(8 * SECOND, 4 * SECOND), (DISTINCT,), ((),), ()),
    View(Frame(rows=5, slide=RowsSlide(2), partition="stream"), (COUNT,), ((1,),), (1,)),
)
PLAN = replace(
    window_plan(
        slack="1 second",
        keys=pa.schema([("a", pa.int64()), ("b", pa.string())]),
        inputs=pa.schema([("x0", pa.float64()), ("x1", pa.int64())]),
        aggregates=(COUNT,),
        store="auto",
    ),
    views=VIEWS,
)
SHAPE = StreamShape(
    events=240, groups=14, batches=8, disorder=2 * SECOND, nulls=0.1, gaps=1, empty=0.1
)


def alone(plan: Plan, number: int) -> Plan:
    """Return a view as a plan of its own, over its own keys."""
    view = plan.views[number]
    places = tuple(range(len(view.keys)))
    groupings = tuple(
        tuple(sorted(view.keys.index(place) for place in each)) for each in view.groupings
    )
    keys = pa.schema([plan.keys.field(place) for place in view.keys])
    return replace(plan, keys=keys, views=(replace(view, keys=places, groupings=groupings),))


def own_events(plan: Plan, number: int, splits: Splits) -> Splits:
    """Return the events of a batch as the plan of one view reads them."""
    keys = [f"k{place}" for place in plan.views[number].keys]
    names = ["time", "source", *keys, *plan.inputs.names]
    schema = alone(plan, number).batch_schema
    return [
        [
            pa.RecordBatch.from_arrays([batch.column(name) for name in names], schema=schema)
            for batch in split
        ]
        for split in splits
    ]


def rows(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


def run_alone(plan: Plan, number: int, batches: Sequence[Splits], folder: Path) -> list[list[str]]:
    """Return the rows of every batch, and of the end, of a view that runs alone."""
    query = open_query(alone(plan, number), str(folder))
    found = [rows(query.feed(own_events(plan, number, batch))) for batch in batches]
    return [*found, rows(query.flush())]


def lose_arenas(folder: Path) -> None:
    for run in os.listdir(folder / "local"):
        shutil.rmtree(folder / "local" / run / "arenas", ignore_errors=True)


def reported(query: LocalQuery, deliveries: Sequence[Delivery]) -> list[list[str]]:
    return [rows(query.rows(deliveries, view)) for view in range(len(PLAN.views))]


@pytest.mark.parametrize("restarts", [False, True])
def test_oracle_kinds_side_by_side_equal_kinds_alone(tmp_path: Path, *, restarts: bool) -> None:
    check(tmp_path, 1 + restarts, restarts=restarts, loses=False)


@pytest.mark.parametrize("snapshot", [pytest.param(2, marks=pytest.mark.slow), 20])
def test_crash_restored_kinds_emit_the_same_rows(tmp_path: Path, snapshot: int) -> None:
    check(tmp_path, 3, restarts=False, loses=True, snapshot=snapshot)


def check(folder: Path, seed: int, *, restarts: bool, loses: bool, snapshot: int = 2) -> None:
    batches = list(batches_of(generate(PLAN, SHAPE, seed)))
    together: list[list[list[str]]] = []
    with small_sizes(snapshot=snapshot):
        query = open_query(PLAN, str(folder / "together"))
        for number, batch in enumerate(batches):
            if restarts and number % 3 == 2:
                query = open_query(PLAN, str(folder / "together"))
            if loses and number % 2:
                lose_arenas(folder / "together")
            together.append(reported(query, query.driver.batch(query.next_batch, batch)))
        assert query.driver.last is not None
        bases = query.driver.last.bases
        assert all(bases) == (snapshot == 2)
        together.append(reported(query, query.driver.flush()))
    for number in range(len(PLAN.views)):
        expected = run_alone(PLAN, number, batches, folder / str(number))
        assert any(expected)
        for place, (found, wanted) in enumerate(zip(together, expected, strict=True)):
            assert found[number] == wanted, f"view {number}, batch {place}"


@pytest.mark.slow
def test_bounded_kinds_share_the_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # the parts on panes, of objects, of sessions, of events
    plan = replace(PLAN, views=(VIEWS[0], VIEWS[1], VIEWS[2], VIEWS[5]))
    shape = replace(SHAPE, events=6000, groups=3000, batches=5)
    batches = list(batches_of(generate(plan, shape, 5)))
    budget = 2 << 20
    for module in (operator, tuples):
        monkeypatch.setattr(module, "BLOCK_BYTES", 4096)
    found: list[list[list[str]]] = []
    most = 0
    with small_sizes(slice_bytes=4096):
        query = open_query(plan, str(tmp_path / "together"), budget=budget)
        for batch in batches:
            (delivery,) = query.driver.batch(query.next_batch, batch)
            facts = delivery.progress["icestream"]
            assert facts["peakMemoryBytes"] <= budget
            most = max(most, facts["partitions"])
            found.append([rows(query.rows([delivery], view)) for view in range(4)])
        for number in range(4):
            wanted = run_alone(plan, number, batches, tmp_path / str(number))
            assert [each[number] for each in found] == wanted[:-1]
    assert most > 2 * 4 + 2, "no operator had to split its groups"


def test_memory_for_every_kind_is_asked_for_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match=r"each needs 8.0 MB.*at least 16.0 MB"):
        open_query(PLAN, str(tmp_path), budget="8 MB")
