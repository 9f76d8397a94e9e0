from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.core.errors import DefinitionError
from icestream.state.arena import Arena
from icestream.state.budget import Budget, Refused
from icestream.state.queue.arrays import HeapArrays
from icestream.state.queue.order import SCHEDULES
from icestream.state.queue.pages import PagePool
from icestream.state.queue.queue import UpdateQueue
from icestream.state.queue.reader import Dequeued
from tests.oracles.queue import DequeuedUpdate, PlainUpdateQueue

FIXED = pa.schema([("n", pa.int64()), ("x", pa.float64())])
RAGGED = pa.schema([("n", pa.int64()), ("s", pa.string())])


def ids(keys: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.array(keys, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def value_of(number: int, schema: pa.Schema) -> dict[str, object]:
    if schema is FIXED:
        return {"n": number, "x": None if number % 3 == 0 else number / 2}
    return {"n": number, "s": None if number % 5 == 0 else "ab" * (number * 7 % 60)}


def put(
    queue: UpdateQueue, updates: Sequence[tuple[int, int, int]], schema: pa.Schema = FIXED
) -> None:
    """Enqueue (key, arrived, number of the value)."""
    keys = ids([key for key, _, _ in updates])
    arrived = np.array([at for _, at, _ in updates], dtype=np.int64)
    rows = [value_of(number, schema) for _, _, number in updates]
    queue.enqueue(keys, keys, arrived, pa.RecordBatch.from_pylist(rows, schema=schema))


def keys_of(served: Dequeued) -> list[int]:
    back = {int(ids([key])[0]): key for key in range(64)}
    return [back[int(id_high)] for id_high in served.id_high]


def assert_same(served: Dequeued, expected: list[DequeuedUpdate], schema: pa.Schema) -> None:
    assert keys_of(served) == [each.update.key for each in expected]
    assert served.since.tolist() == [each.since for each in expected]
    assert served.arrived.tolist() == [each.update.arrived for each in expected]
    numbers = [each.update.value for each in expected]
    assert served.rows.to_pylist() == [value_of(n, schema) for n in numbers if isinstance(n, int)]


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("enqueue"),
            st.lists(st.tuples(st.integers(0, 9), st.integers(-2, 30)), max_size=12),
        ),
        st.tuples(st.just("dequeue"), st.tuples(st.integers(0, 6), st.integers(0, 40))),
        st.tuples(st.just("read"), st.tuples(st.integers(0, 12), st.integers(0, 5))),
        st.tuples(st.just("deliver"), st.tuples(st.just(0), st.integers(0, 20))),
    ),
    max_size=25,
)


def play(
    queue: UpdateQueue, plain: PlainUpdateQueue, steps: list[tuple[str, Any]], schema: pa.Schema
) -> int:
    """Do the same to both, comparing on the way; return the instant it ends."""
    clock, number = 1000, 0
    flying: list[tuple[Dequeued, list[DequeuedUpdate]]] = []
    for kind, what in steps:
        if kind == "enqueue":
            batch = []
            for key, step in what:
                clock += max(step, 0)
                batch.append((key, clock + min(step, 0), number))
                plain.enqueue(*batch[-1])
                number += 1
            put(queue, batch, schema)
        else:
            count, step = what
            if kind == "dequeue":
                clock += step
                if flying:
                    continue
                served, expected = queue.dequeue(count, clock), plain.dequeue(count, clock)
                assert_same(served, expected, schema)
                flying.append((served, expected))
            elif kind == "read":
                assert_same(queue.read(count), plain.read(count), schema)
            else:
                clock += step
                for served, expected in flying:
                    queue.delivered(served.id_high, served.id_low, clock)
                    for each in expected:
                        plain.deliver(each, clock)
                flying.clear()
        assert len(queue) == len(plain)
        assert queue.late == plain.late
    return clock


@pytest.mark.sample(4)
@pytest.mark.parametrize("schema", [FIXED, RAGGED], ids=["fixed", "ragged"])
@pytest.mark.parametrize("schedule", SCHEDULES)
@settings(max_examples=60, deadline=None)
@given(steps=STEPS, cost=st.integers(0, 30))
def test_oracle_any_sequence_follows_the_schedule(
    schedule: str, schema: pa.Schema, steps: list[tuple[str, Any]], cost: int
) -> None:
    queue = UpdateQueue(schema, schedule=schedule, cost=cost, pool=PagePool(page_bytes=256))
    play(queue, PlainUpdateQueue(schedule, cost), steps, schema)


@pytest.mark.parametrize("schedule", SCHEDULES)
@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
def test_oracle_staleness_is_the_integral_of_the_definition(
    schedule: str, steps: list[tuple[str, Any]]
) -> None:
    queue, plain = UpdateQueue(FIXED, schedule=schedule), PlainUpdateQueue(schedule)
    now = play(queue, plain, steps, FIXED) + 17
    if not plain.keys:
        return
    keys = list(plain.keys)
    found = queue.staleness_of(ids(keys), ids(keys), now)  # type: ignore[arg-type]
    report = queue.staleness(now)
    for application in (False, True):
        expected = plain.staleness(now, application=application)
        mine, overall = found[application], (report.queue, report.application)[application]
        averages = [float(expected[key][0]) for key in keys]
        assert mine.tolist() == pytest.approx(averages, rel=1e-12)
        assert overall.average == pytest.approx(sum(averages) / len(keys), rel=1e-12)
        assert overall.most == max(most for _, most in expected.values())
    assert report.keys == len(keys)


@pytest.mark.parametrize("schema", [FIXED, RAGGED], ids=["fixed", "ragged"])
@settings(max_examples=40, deadline=None)
@given(steps=STEPS)
def test_oracle_pages_hold_what_waits(schema: pa.Schema, steps: list[tuple[str, Any]]) -> None:
    queue, plain = UpdateQueue(schema, pool=PagePool(page_bytes=256)), PlainUpdateQueue("inplace")
    play(queue, plain, steps, schema)
    if schema is FIXED:
        assert queue.pages.used == len(queue)
        assert queue.effective_use == 1.0
    assert queue.pages.pages <= queue.pages.used
    queue.dequeue(len(queue), 10**6)
    assert (queue.pages.used, queue.pages.pages, queue.pages.pool.used) == (0, 0, 0)


def test_figure_6_of_the_source() -> None:
    # IBM1 MSFT1 GOOG1 wait, then IBM2 arrives
    arrivals = [(0, 0, 1), (1, 1, 1), (2, 2, 1), (0, 3, 2)]
    for schedule, expected in (("fifo", [1, 2, 0]), ("inplace", [0, 1, 2])):
        queue = UpdateQueue(FIXED, schedule=schedule)
        put(queue, arrivals)
        served = queue.dequeue(3, 4)
        assert keys_of(served) == expected
        assert dict(zip(keys_of(served), served.rows["n"].to_pylist(), strict=True))[0] == 2


def test_a_slow_key_cuts_the_line() -> None:
    queue = UpdateQueue(FIXED, schedule="linecutting", cost=10)
    put(queue, [(key, key, key) for key in range(5)])
    put(queue, [(9, 1000, 9)])
    assert keys_of(queue.dequeue(6, 1001)) == [9, 0, 1, 2, 3, 4]


def test_a_stream_without_a_key_keeps_its_last_update() -> None:
    queue = UpdateQueue(FIXED)
    rows = pa.RecordBatch.from_pylist([value_of(n, FIXED) for n in range(4)], schema=FIXED)
    queue.enqueue(None, None, np.arange(4), rows)
    served = queue.dequeue(10, 10)
    assert (served.rows.to_pylist(), served.since.tolist()) == ([value_of(3, FIXED)], [0])
    assert queue.superseded == 3


def test_reading_skips_what_was_taken_meanwhile() -> None:
    queue = UpdateQueue(FIXED)
    put(queue, [(key, key, key) for key in range(6)])
    slices = queue.reading(size=2)
    assert keys_of(next(slices)) == [0, 1]
    queue.dequeue(3, 10)
    put(queue, [(5, 11, 50)])
    rest = [(keys_of(part), part.rows["n"].to_pylist()) for part in slices]
    assert rest == [([3], [3]), ([4, 5], [4, 50])]


def test_forgotten_keys_are_new_keys() -> None:
    queue = UpdateQueue(FIXED)
    put(queue, [(key, key, key) for key in range(40)])
    queue.dequeue(30, 50)
    assert queue.forget(before=20) == 20
    assert queue.keys == 20
    put(queue, [(key, 60 + key, key) for key in range(10)])
    assert (queue.keys, len(queue)) == (30, 20)
    assert keys_of(queue.dequeue(20, 100)) == [*range(30, 40), *range(10)]


def test_unknown_words_say_what_is_known() -> None:
    with pytest.raises(DefinitionError, match="fifo, inplace, linecutting"):
        UpdateQueue(FIXED, schedule="lifo")


@settings(max_examples=30, deadline=None)
@given(
    batches=st.lists(
        st.lists(st.tuples(st.integers(0, 40), st.integers(0, 99)), max_size=60), max_size=8
    ),
    total=st.integers(60_000, 180_000),
    ragged=st.booleans(),
)
def test_bounded_a_refused_enqueue_changes_nothing(
    batches: list[list[tuple[int, int]]], total: int, ragged: bool
) -> None:
    schema = RAGGED if ragged else FIXED
    budget = Budget(total)
    try:
        arrays = HeapArrays(budget.account("queue"))
        queue = UpdateQueue(schema, pool=PagePool(arrays, page_bytes=256))
    except Refused:
        return
    plain, clock = PlainUpdateQueue("inplace"), 0
    for batch in batches:
        updates = [(key, clock + at, number) for at, (key, number) in enumerate(batch)]
        clock += 100
        before = (queue.keys, len(queue), queue.read(99).rows.to_pylist(), queue.pages.used)
        try:
            put(queue, updates, schema)
        except Refused:
            after = (queue.keys, len(queue), queue.read(99).rows.to_pylist(), queue.pages.used)
            assert after == before
        else:
            for update in updates:
                plain.enqueue(*update)
        assert budget.held == arrays.bytes <= total
        assert_same(queue.read(99), plain.read(99), schema)


def test_a_queue_goes_on_in_another_task(tmp_path: Path) -> None:
    budget = Budget(10_000_000)
    arena = Arena.create(str(tmp_path), budget.account("shard"))
    queue = UpdateQueue(RAGGED, schedule="linecutting", arrays=arena)
    put(queue, [(key % 50, key, key) for key in range(300)], RAGGED)
    queue.dequeue(10, 400)
    expected, report = queue.read(50), queue.staleness(600)
    del queue
    arena.release("left")
    again = Arena.claim(str(tmp_path), "left", budget.account("shard"))
    assert again is not None
    queue = UpdateQueue(RAGGED, schedule="linecutting", arrays=again)
    assert queue.staleness(600) == report
    found = queue.dequeue(50, 500)
    assert found.rows == expected.rows
    assert found.since.tolist() == expected.since.tolist()
    assert len(queue) == 0
    del queue
    again.discard()


def test_queues_share_a_pool_of_pages() -> None:
    pool = PagePool(page_bytes=256)
    first = UpdateQueue(FIXED, pool=pool, name="first")
    second = UpdateQueue(RAGGED, pool=pool, name="second")
    put(first, [(key, key, key) for key in range(40)])
    put(second, [(key, key, key) for key in range(40)], RAGGED)
    assert pool.used == first.pages.pages + second.pages.pages
    assert second.dequeue(40, 50).rows["n"].to_pylist() == list(range(40))
    assert first.dequeue(40, 50).rows["n"].to_pylist() == list(range(40))
    assert pool.used == 0
    put(first, [(1, 60, 1)])
    assert first.dequeue(1, 70).rows["n"].to_pylist() == [1]


def test_measuring_from_an_instant_forgets_what_was_before() -> None:
    queue = UpdateQueue(FIXED)
    put(queue, [(0, 0, 0), (1, 10, 1)])
    queue.dequeue(1, 100)
    queue.measure_from(100)
    report = queue.staleness(200)
    # key 0 is fresh, key 1 was 90 behind at 100 and is 190 behind at 200
    assert report.queue.average == pytest.approx((190**2 - 90**2) / 2 / 200)
    assert report.queue.most == 190
