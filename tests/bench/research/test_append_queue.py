from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.research import append_queue_kernels as k
from bench.research.append_queue import AppendQueue
from icestream.core.errors import DefinitionError
from icestream.state.budget import Budget, Refused
from icestream.state.queue.arrays import HeapArrays
from icestream.state.queue.pages import PagePool
from icestream.state.queue.reader import Dequeued
from tests.oracles.queue import DequeuedUpdate, PlainAppendQueue

FIXED = pa.schema([("n", pa.int64())])
RAGGED = pa.schema([("n", pa.int64()), ("s", pa.string())])
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("enqueue"),
            st.lists(st.tuples(st.integers(0, 5), st.integers(-1, 20)), max_size=10),
        ),
        st.tuples(st.just("dequeue"), st.tuples(st.integers(0, 6), st.integers(0, 40))),
        st.tuples(st.just("deliver"), st.tuples(st.just(0), st.integers(0, 20))),
    ),
    max_size=25,
)


def rows_of(numbers: list[int], schema: pa.Schema) -> pa.RecordBatch:
    rows = [{"n": number, "s": "xy" * (number % 70)} for number in numbers]
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def assert_same(served: Dequeued, expected: list[DequeuedUpdate], schema: pa.Schema) -> None:
    assert served.id_high.tolist() == [each.update.key for each in expected]
    assert served.since.tolist() == [each.since for each in expected]
    assert served.arrived.tolist() == [each.update.arrived for each in expected]
    numbers = [each.update.value for each in expected]
    assert served.rows == rows_of([n for n in numbers if isinstance(n, int)], schema)


def play(
    queue: AppendQueue, plain: PlainAppendQueue, steps: list[tuple[str, Any]], schema: pa.Schema
) -> int:
    """Do the same to both, comparing on the way; return the instant it ends."""
    clock, number, draws = 1000, 0, 0
    flying: list[tuple[Dequeued, list[DequeuedUpdate]]] = []
    for kind, what in steps:
        if kind == "enqueue":
            keys, arrived, numbers = [], [], []
            for key, step in what:
                clock += max(step, 0)
                at = clock + min(step, 0)
                history = plain.keys.get(key)
                late = history is not None and at < history.updates[-1].arrived
                shed = False
                if queue.shed and not late:
                    draws += 1
                    line = k.LineArrays(
                        np.array([0, 0, 0, 0, draws - 1, 5, 0, 0]), np.array([queue.shed])
                    )
                    shed = k.is_shed(line)
                plain.enqueue(key, at, number, shed=shed)
                keys.append(key)
                arrived.append(at)
                numbers.append(number)
                number += 1
            id_high = np.array(keys, dtype=np.uint64)
            queue.enqueue(
                id_high, id_high, np.array(arrived, dtype=np.int64), rows_of(numbers, schema)
            )
        else:
            count, step = what
            clock += step
            if kind == "dequeue":
                assert_same(queue.read(count), plain.line[:count], schema)
                served, expected = queue.dequeue(count, clock), plain.dequeue(count, clock)
                assert_same(served, expected, schema)
                flying.append((served, expected))
            else:
                for served, expected in flying:
                    queue.delivered(
                        served.id_high,
                        served.id_low,
                        clock,
                        since=served.since,
                        arrived=served.arrived,
                    )
                    for each in expected:
                        plain.deliver(each, clock)
                flying.clear()
        assert len(queue) == len(plain)
    for served, expected in flying:
        queue.delivered(
            served.id_high, served.id_low, clock, since=served.since, arrived=served.arrived
        )
        for each in expected:
            plain.deliver(each, clock)
    return clock


@pytest.mark.parametrize("schema", [FIXED, RAGGED], ids=["fixed", "ragged"])
@settings(max_examples=50, deadline=None)
@given(steps=STEPS)
def test_oracle_append_is_a_list(schema: pa.Schema, steps: list[tuple[str, Any]]) -> None:
    queue = AppendQueue(schema, pool=PagePool(page_bytes=256))
    now = play(queue, PlainAppendQueue(), steps, schema)
    queue.dequeue(len(queue), now)
    assert (queue.pages.used, queue.pages.pages) == (0, 0)


@pytest.mark.parametrize("shed", [0.0, 0.5])
@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
def test_oracle_staleness_counts_what_was_shed(shed: float, steps: list[tuple[str, Any]]) -> None:
    queue, plain = AppendQueue(FIXED, shed=shed, seed=5), PlainAppendQueue()
    now = play(queue, plain, steps, FIXED) + 11
    if not plain.keys:
        return
    keys = np.array(list(plain.keys), dtype=np.uint64)
    found = queue.staleness_of(keys, keys, now)
    for application in (False, True):
        expected = plain.staleness(now, application=application)
        averages = [float(expected[int(key)][0]) for key in keys]
        assert found[application].tolist() == pytest.approx(averages, rel=1e-12)


def test_shedding_is_repeatable() -> None:
    taken = []
    for _ in range(2):
        queue = AppendQueue(FIXED, shed=0.7, seed=3)
        keys = np.zeros(10_000, dtype=np.uint64)
        queue.enqueue(keys, keys, np.arange(10_000), rows_of(list(range(10_000)), FIXED))
        assert abs(queue.dropped - 7000) < 200
        taken.append(queue.dequeue(10_000, 10_000).rows)
    assert taken[0] == taken[1]
    with pytest.raises(DefinitionError, match="between 0 and 1"):
        queue.shed = 1.5


def test_bounded_a_refused_append_changes_nothing() -> None:
    budget = Budget(1_000_000)
    arrays = HeapArrays(budget.account("queue"))
    queue = AppendQueue(FIXED, pool=PagePool(arrays, page_bytes=4096))
    keys = np.arange(100, dtype=np.uint64) % np.uint64(9)
    accepted = 0

    def append() -> None:
        rows = rows_of(list(range(accepted, accepted + 100)), FIXED)
        queue.enqueue(keys, keys, np.arange(100) + accepted, rows)

    while queue.pages.pages < 20:
        append()
        accepted += 100
    budget.account("others").reserve(budget.free)
    while queue.pages.room >= 100:
        append()
        accepted += 100
    with pytest.raises(Refused):
        append()
    assert len(queue) == accepted
    assert queue.dequeue(accepted, 0).rows["n"].to_pylist() == list(range(accepted))


def test_every_update_of_a_stream_without_a_key_is_kept() -> None:
    queue = AppendQueue(RAGGED)
    queue.enqueue(None, None, np.arange(5), rows_of(list(range(5)), RAGGED))
    parts = [part.rows["n"].to_pylist() for part in queue.reading(size=2)]
    assert parts == [[0, 1], [2, 3], [4]]
    assert len(queue) == 5
