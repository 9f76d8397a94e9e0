"""The queue of windows, whole batches at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.core.errors import DefinitionError, InputError
from icestream.state.arena import Arena
from icestream.state.budget import Budget, Refused
from icestream.state.queue.arrays import HeapArrays
from icestream.state.queue.pages import PagePool
from icestream.state.queue.windows.queue import WindowQueue
from icestream.state.queue.windows.spec import UpdateWindows
from tests.oracles.kernels.queue.windows.marks import obey_marks_reference
from tests.oracles.queue import last_instant

SCHEMA = pa.schema([("value", pa.int64())])
SPECS = st.builds(
    lambda a, b, semantics: UpdateWindows(max(a, b), min(a, b), semantics),
    st.integers(1, 6),
    st.integers(1, 6),
    st.sampled_from(["lazy", "eager"]),
)


def ids(keys: list[int]) -> np.ndarray:
    return np.array(keys, dtype=np.uint64)


def put(queue: WindowQueue, events: list[tuple[int, int]], first: int = 0) -> None:
    keys = ids([key for key, _ in events])
    times = np.array([time for _, time in events], dtype=np.int64)
    arrived = np.arange(first, first + len(events))
    rows = pa.record_batch([pa.array(times * 10)], schema=SCHEMA)
    queue.enqueue(keys, keys << np.uint64(30), times, arrived, rows)


@given(
    spec=SPECS,
    block_rows=st.integers(1, 5),
    steps=st.lists(
        st.one_of(
            st.integers(0, 9),
            st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 5)), max_size=12),
        ),
        max_size=20,
    ),
)
@settings(max_examples=150)
def test_oracle_windows_are_delivered_whole(
    spec: UpdateWindows, block_rows: int, steps: list[int | list[tuple[int, int]]]
) -> None:
    pool = PagePool(page_bytes=1024)
    queue = WindowQueue(SCHEMA, spec, pool=pool, block_rows=block_rows)
    clocks, known = [1] * 4, [set[int]() for _ in range(4)]
    opened: dict[int, tuple[int, list[int]]] = {}
    newest = [-1] * 4
    for step in [*steps, 500, 500]:
        if isinstance(step, list):
            events = []
            for key, ahead in step:
                time = max(1, clocks[key] + ahead)
                events.append((key, time))
                if not known[key] or time > max(known[key]):
                    known[key].add(time)
                clocks[key] = max(clocks[key], time)
            put(queue, events)
            continue
        read = queue.dequeue(step)
        assert len(read) <= step + 1
        assert read.rows["value"].to_pylist() == (read.times[read.is_tuple] * 10).tolist()
        keys = read.id_high.tolist()
        for key, end, times in obey_marks_reference(
            keys, read.times.tolist(), read.marks.tolist(), opened
        ):
            start = end - spec.size + 1
            whole = sorted(time for time in known[key] if start <= time <= end)
            ended = [time for time in times if time in whole]
            assert ended == whole
            assert set(times) <= {*whole, end}
            assert start > newest[key]
            newest[key] = start
    assert queue.facts["ready"] == 0
    assert len(queue) <= queue.facts["idle"]
    for key, all_times in enumerate(known):
        last = max(all_times, default=0)
        fulls = [
            number * spec.slide
            for number in range(last // spec.slide + 1)
            if all_times
            and number >= min(all_times) // spec.slide
            and last_instant(spec, number) <= last
            and any(number * spec.slide <= time <= last_instant(spec, number) for time in all_times)
        ]
        if spec.semantics == "lazy":
            assert newest[key] == max(fulls, default=-1)


def test_starters_that_are_passed_over_are_marked_zero_and_other_tuples_minus_one() -> None:
    queue = WindowQueue(SCHEMA, UpdateWindows(4, 2))
    put(queue, [(0, time) for time in range(2, 10)])
    read = queue.dequeue(10)
    # windows 6-9 is the newest that is full; 8 starts one that is not committed to
    assert read.times.tolist() == [6, 7, 8, 9]
    assert read.marks.tolist() == [9, -1, 0, -1]


def test_a_gap_at_the_end_of_a_window_is_ended_by_a_record_without_a_row() -> None:
    queue = WindowQueue(SCHEMA, UpdateWindows(4, 4, "eager"))
    put(queue, [(0, 4), (0, 5)])
    assert queue.dequeue(10).times.tolist() == [4, 5]
    assert queue.facts["idle"] == 1
    put(queue, [(0, 9)])
    read = queue.dequeue(2)
    assert (read.times.tolist(), read.is_tuple.tolist()) == ([7, 9], [False, True])


def test_a_limit_of_windows_ends_a_read_after_their_last_record() -> None:
    """Reads of few windows, one after the other, return what one read of all does."""
    events = [(key, time) for time in range(4, 8) for key in range(5)] + [(5, 4)]
    whole, cut = (WindowQueue(SCHEMA, UpdateWindows(4, 4)) for _ in range(2))
    found = []
    for queue in (whole, cut):
        put(queue, events)
        queue.advance_all(9, 9)
    expected = whole.dequeue(100)
    while len(read := cut.dequeue(100, 2)):
        assert 1 <= len(set(read.cells.tolist())) <= 2
        found += list(zip(read.cells.tolist(), read.times.tolist(), strict=True))
    assert found == list(zip(expected.cells.tolist(), expected.times.tolist(), strict=True))


def test_a_watermark_fills_the_windows_of_all_keys() -> None:
    queue = WindowQueue(SCHEMA, UpdateWindows(4, 4))
    put(queue, [(0, 4), (1, 5), (2, 8)])
    assert queue.advance_all(8, 8) == 2
    read = queue.dequeue(10)
    assert (read.times.tolist(), read.is_tuple.tolist()) == ([4, 7, 5, 7], [True, False] * 2)
    put(queue, [(0, 7), (0, 8)])
    assert queue.facts["late"] == 1


def test_late_tuples_are_dropped() -> None:
    queue = WindowQueue(SCHEMA, UpdateWindows(2, 1))
    put(queue, [(0, 5), (0, 5), (0, 4), (1, 1)])
    # of two of one time the last counts
    assert queue.facts["late"] == 1


def test_a_refused_batch_changes_nothing() -> None:
    queue = WindowQueue(SCHEMA, UpdateWindows(2, 1))
    put(queue, [(0, 5), (0, 6)])
    before = queue.facts
    with pytest.raises(InputError, match=">= 1"):
        put(queue, [(0, 7), (0, 0)])
    assert queue.facts == before


def test_bounded_a_batch_beyond_the_budget_takes_no_tuple() -> None:
    arrays = HeapArrays(Budget(1 << 20).account("windows"))
    queue = WindowQueue(SCHEMA, UpdateWindows(1000, 1000, "eager"), pool=PagePool(arrays))
    put(queue, [(0, 1)])
    before = queue.facts
    with pytest.raises(Refused):
        put(queue, [(key, time) for time in range(2, 200) for key in range(200)])
    assert {**queue.facts} == before
    put(queue, [(0, 2), (1, 2)])
    assert queue.dequeue(9).times.tolist() == [1, 2, 2]


def test_pages_are_given_back_when_all_is_served() -> None:
    queue = WindowQueue(SCHEMA, UpdateWindows(8, 8, "eager"), pool=PagePool(page_bytes=4096))
    put(queue, [(key, time) for time in range(8, 16) for key in range(200)])
    assert queue.facts["pages"] > 1
    assert len(queue.dequeue(10_000)) == 1600
    assert (queue.facts["pages"], queue.facts["zones"]) == (0, 0)


def test_a_queue_attaches_to_the_arrays_it_left() -> None:
    pool = PagePool()
    queue = WindowQueue(SCHEMA, UpdateWindows(3, 1), pool=pool)
    put(queue, [(0, 1), (0, 2), (0, 3), (1, 4)])
    again = WindowQueue(SCHEMA, UpdateWindows(3, 1), pool=pool)
    assert again.dequeue(9).times.tolist() == [1, 2, 3]


def test_a_queue_lives_in_an_arena(tmp_path: Path) -> None:
    account = Budget(1 << 26).account("windows")
    arena = Arena.create(str(tmp_path), account)
    queue = WindowQueue(SCHEMA, UpdateWindows(4, 2, "eager"), pool=PagePool(arena))
    put(queue, [(key, time) for time in range(2, 8) for key in range(3000)])
    arena.release("kept")
    again = Arena.claim(str(tmp_path), "kept", account)
    assert again is not None
    queue = WindowQueue(SCHEMA, UpdateWindows(4, 2, "eager"), pool=PagePool(again))
    put(queue, [(key, 8) for key in range(3000)])
    read = queue.dequeue(100_000)
    assert read.times[:1].tolist() == [8]
    assert len(read) == 3000
    again.discard()


def test_rows_of_variable_width_are_refused_with_advice() -> None:
    with pytest.raises(DefinitionError, match="fixed width"):
        WindowQueue(pa.schema([("text", pa.string())]), UpdateWindows(1, 1))


def test_an_empty_batch_changes_nothing() -> None:
    queue = WindowQueue(SCHEMA, UpdateWindows(3, 1))
    put(queue, [])
    assert len(queue.dequeue(5)) == 0
