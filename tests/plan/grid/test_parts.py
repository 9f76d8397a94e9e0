from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from icestream.operators.aggregates.aggregate import Aggregate
from icestream.plan.grid.parts import parts_of
from icestream.plan.nodes.queries import View
from icestream.plan.windows.frame import Frame
from icestream.plan.windows.grid import Windows
from icestream.plan.windows.session import Session
from tests.fixtures.plans import window_plan

SECOND = 1_000_000
COUNT = Aggregate("count", None, "n")
PLAN = window_plan(
    keys=pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.int64())]),
    inputs=pa.schema([("x0", pa.int64()), ("x1", pa.int64())]),
    aggregates=(COUNT,),
)


def test_a_plan_of_one_part_is_itself() -> None:
    hopping = View(Windows(4 * SECOND, SECOND), (COUNT,), ((1,),), (1,))
    two = replace(PLAN, views=(*PLAN.views, hopping))
    session = replace(PLAN, views=(replace(PLAN.views[0], windows=Session(SECOND)),))
    for plan in (PLAN, two, session):
        (part,) = parts_of(plan)
        assert part.plan is plan
        assert part.columns == tuple(plan.batch_schema.names)


def test_every_view_is_in_one_part() -> None:
    least = Aggregate("min", "x1", "n")
    views = (
        View(Session(SECOND), (COUNT, least), ((1,),), (1,)),
        View(Windows(SECOND, SECOND), (least,), ((2,),), (2,)),
        View(Session(SECOND), (Aggregate("count", None, "events"),), ((1,),), (1,)),
        View(Session(SECOND), (COUNT,), ((0, 2),), (2, 0)),
        View(Frame(rows=2), (COUNT,), ((1,),), (1,)),
        View(Windows(SECOND, SECOND), (Aggregate("median", "x0", "m"),), ((),), ()),
    )
    plan = replace(PLAN, views=views)
    parts = parts_of(plan)
    assert [[number for number, _ in part.views] for part in parts] == [[1], [0, 2], [3], [4], [5]]
    assert [part.folded for part in parts] == [True, False, False, False, False]
    assert [part.columns[2:] for part in parts] == [
        ("k2", "x1"), ("k1", "x1"), ("k2", "k0"), ("k1",), ("x0",),
    ]  # fmt: skip
    together = parts[1].plan.views[0]
    assert [each.text for each in together.aggregates] == ["count(*)", "min(x1)"]
    assert parts[1].shown == ((0, (0, 1, 2, 3)), (0, (0, 1, 2)))
    # the rows of the operator: window, b, count, least
    schema = parts[1].plan.results(together)
    batch = schema.empty_table().to_batches() or [pa.RecordBatch.from_pylist([], schema)]
    reported = list(parts[1].rows(iter(batch)))
    assert [(number, rows.schema) for number, rows in reported] == [
        (number, plan.results(views[number])) for number in (0, 2)
    ]


def test_keys_that_rows_do_not_show_are_those_of_groups() -> None:
    median = Aggregate("median", "x0", "m")
    hidden = View(Windows(SECOND, SECOND), (median,), ((1, 2),), (2,))
    for least in (median, Aggregate("min", "x0", "m")):
        (part,) = parts_of(replace(PLAN, views=(replace(hidden, aggregates=(least,)),)))
        (view,) = part.plan.views
        names = part.plan.keys.names
        assert {names[place] for place in view.groupings[0]} == {"b", "c"}
        assert [names[place] for place in view.keys] == ["c"]


def test_windows_that_move_with_events_are_one_part_where_keys_and_shards_are_equal() -> None:
    least = Aggregate("min", "x1", "n")
    views = (
        View(Frame(range=SECOND), (COUNT,), ((1,),), (1,)),
        View(Frame(range=SECOND), (COUNT,), ((0,),), (0,)),
        View(Frame(range=9 * SECOND), (least,), ((1,),), (1,)),
        View(Frame(rows=2, partition="stream"), (COUNT,), ((1,),), (1,)),
        View(Frame(range=SECOND), (least, COUNT), ((1,),), (1,)),
        View(Frame(rows=5), (COUNT,), ((1,),), (1,)),
    )
    plan = replace(PLAN, views=views)
    parts = parts_of(plan)
    assert [[n for n, _ in part.views] for part in parts] == [[0, 2, 4, 5], [1], [3]]
    together = parts[0]
    assert [view.windows for view in together.plan.views] == [
        Frame(range=SECOND), Frame(range=9 * SECOND), Frame(rows=5),
    ]  # fmt: skip
    assert together.windows == 3
    assert together.columns[2:] == ("k1", "x1")
    # rows of the operator: time, b, then the aggregates of all views of that frame
    assert together.shown == ((0, (0, 1, 2)), (1, (0, 1, 2)), (0, (0, 1, 3, 2)), (2, (0, 1, 2)))
    schema = together.plan.results(together.plan.views[0])
    batch = pa.RecordBatch.from_pylist([], schema)
    reported = list(together.rows(iter([(0, batch)])))
    assert [(n, rows.schema) for n, rows in reported] == [
        (n, plan.results(views[n])) for n in (0, 4)
    ]
