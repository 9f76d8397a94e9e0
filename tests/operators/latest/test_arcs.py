"""Plans over update streams with queues on their arcs."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.core.errors import DefinitionError
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.latest.arcs import UpdatePlan
from icestream.operators.latest.rowwise import UpdateFilter, UpdateMap
from icestream.operators.latest.union import UpdateUnion
from icestream.operators.latest.update_stream import UpdateStream
from icestream.operators.latest.window_aggregate import WindowedUpdates
from icestream.state.queue.windows.spec import UpdateWindows

Row = dict[str, Any]
SCHEMA = pa.schema([("k", pa.string()), ("t", pa.int64()), ("v", pa.int64())])
STREAM = UpdateStream(SCHEMA, ("k",), "t")
BATCH = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 4), st.integers(0, 9)), max_size=6
)
#: a batch of one of two inputs, or a number of keys to be served somewhere
STEPS = st.lists(st.one_of(st.tuples(st.integers(0, 1), BATCH), st.integers(0, 4)), max_size=12)


def plan_of(queues: dict[str, str], condition: str | None = None) -> UpdatePlan:
    """Two inputs, a map of each, a union, a filter or a map behind it."""
    plan = UpdatePlan()
    plan.add_input("in0", STREAM)
    plan.add_input("in1", STREAM)
    for name in ("0", "1"):
        step = UpdateMap(STREAM, ["k", "t", "v * 10 AS v"])
        arc = {0: queues["map"]} if "map" in queues else None
        plan.add(f"map{name}", step, [f"in{name}"], queues=arc)
    union = UpdateUnion([STREAM, STREAM], truth=[0])
    arcs = {0: queues["union"], 1: queues["union"]} if "union" in queues else None
    plan.add("union", union, ["map0", "map1"], queues=arcs)
    last = UpdateMap(STREAM, ["*"]) if condition is None else UpdateFilter(STREAM, condition)
    arc = {0: queues["last"]} if "last" in queues else None
    plan.add("last", last, ["union"], queues=arc)
    return plan


def rows(values: list[tuple[str, int, int]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [{"k": k, "t": t, "v": v} for k, t, v in values], schema=SCHEMA
    )


def drained(plan: UpdatePlan, now: int) -> list[Row]:
    found: list[Row] = []
    while any(plan.waiting().values()):
        for (node, port), count in plan.waiting().items():
            if count:
                for batches in plan.serve(node, count, now, port=port).values():
                    found += [row for batch in batches for row in batch.to_pylist()]
    return found


def pushed(plan: UpdatePlan, port: int, batch: pa.RecordBatch) -> list[Row]:
    delivered = plan.push(f"in{port}", batch)
    return [row for batches in delivered.values() for each in batches for row in each.to_pylist()]


QUEUES = st.dictionaries(
    st.sampled_from(["map", "union", "last"]), st.sampled_from(["fifo", "inplace", "index"])
)


@given(queues=QUEUES, steps=st.lists(st.tuples(st.integers(0, 1), BATCH), max_size=8))
@settings(max_examples=60)
def test_oracle_queues_served_at_once_change_nothing(
    queues: dict[str, str], steps: list[tuple[int, list[tuple[str, int, int]]]]
) -> None:
    queued, plain = plan_of(queues), plan_of({})
    clocks = [0, 0]
    for port, values in steps:
        batch = []
        for key, ahead, value in values:
            clocks[port] += 1 + ahead
            batch.append((key, 2 * clocks[port] + port, value))
        # one row of a key at a time: nothing is superseded before it is served
        for row in batch:
            found = pushed(queued, port, rows([row])) + drained(queued, row[1])
            assert found == pushed(plain, port, rows([row]))


@given(queues=QUEUES, steps=STEPS)
@settings(max_examples=80)
def test_oracle_the_newest_rows_do_not_depend_on_the_service(
    queues: dict[str, str], steps: list[tuple[int, list[tuple[str, int, int]]] | int]
) -> None:
    queued, plain = plan_of(queues), plan_of({})
    clocks, now = [0, 0], 0
    shown: list[Row] = []
    newest: dict[str, Row] = {}
    for step in steps:
        now += 1
        if isinstance(step, int):
            for (node, port), _ in queued.waiting().items():
                for batches in queued.serve(node, step, now, port=port).values():
                    shown += [row for batch in batches for row in batch.to_pylist()]
            continue
        port, values = step
        batch = []
        for key, ahead, value in values:
            clocks[port] += 1 + ahead
            batch.append((key, 2 * clocks[port] + port, value))
        shown += pushed(queued, port, rows(batch))
        newest |= {row["k"]: row for row in pushed(plain, port, rows(batch))}
    shown += drained(queued, now + 1)
    assert {row["k"]: row for row in shown} == newest
    for key in "abc":
        times = [row["t"] for row in shown if row["k"] == key]
        assert times == sorted(set(times))


def test_what_is_behind_a_queue_sees_only_the_newest_rows() -> None:
    plan = plan_of({"last": "inplace"}, condition="v < 50")
    assert plan.push("in0", rows([("a", 1, 1), ("b", 2, 2)])) == {}
    plan.push("in0", rows([("a", 3, 9)]))
    assert plan.waiting() == {("last", 0): 2}
    (found,) = plan.serve("last", 2, now=4)["last"]
    assert found.to_pylist() == [{"k": "b", "t": 2, "v": 20}]


def test_windows_are_a_queue_of_their_own() -> None:
    plan = UpdatePlan()
    plan.add_input("in", STREAM)
    windows = WindowedUpdates(
        SCHEMA,
        keys=["k"],
        time="t",
        windows=UpdateWindows(2, 1),
        aggregates=[Aggregate("sum", "v", "total")],
    )
    plan.add("windows", windows, ["in"])
    total = UpdateFilter(windows.result, "total > 1")
    plan.add("large", total, ["windows"], queues={0: "inplace"})
    plan.push("in", rows([("a", t, t) for t in range(1, 7)]))
    assert plan.waiting() == {("large", 0): 0, ("windows", 0): 1}
    plan.serve("windows", 100, now=7)
    (found,) = plan.serve("large", 1, now=8)["large"]
    assert found.to_pylist() == [{"k": "a", "window_start": 5, "window_end": 6, "total": 11}]


def test_plans_that_mean_nothing_are_refused() -> None:
    plan = plan_of({})
    with pytest.raises(DefinitionError, match="sources that were added"):
        plan.add("x", UpdateMap(STREAM, ["*"]), ["nothing"])
    with pytest.raises(DefinitionError, match="a 'last' already"):
        plan.add("last", UpdateMap(STREAM, ["*"]), ["in0"])
    with pytest.raises(DefinitionError, match="ports 0 to 0"):
        plan.add("x", UpdateMap(STREAM, ["*"]), ["in0"], queues={1: "fifo"})
    with pytest.raises(DefinitionError, match="no input 'map0'"):
        plan.push("map0", rows([]))
    with pytest.raises(DefinitionError, match="no queue is before port 0 of 'union'"):
        plan.serve("union", 1, now=0)
