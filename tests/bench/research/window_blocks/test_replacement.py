from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.research.window_blocks.replacement import (
    Begin,
    Evict,
    Fetch,
    OneWindowPool,
    Release,
    SharedPool,
    Step,
)
from icestream.core.errors import DefinitionError
from tests.oracles.window_blocks import Cross, Roll, Window, boundaries, least_reads

gaps = st.lists(st.sampled_from((0, 0, 1, 1, 2, 5, 30)), min_size=1, max_size=60)
#: with an event at every instant
dense = st.lists(st.integers(0, 1), min_size=1, max_size=60)


def clock(drawn: list[int]) -> list[int]:
    times, now = [], 0
    for gap in drawn:
        now += gap
        times.append(now)
    return times


def one_steps(times: list[int], window: Window, factor: int, capacity: int) -> list[Step]:
    pool = OneWindowPool(capacity)
    steps: list[Step] = []
    for step in boundaries(times, [window], factor):
        steps += pool.roll() if isinstance(step, Roll) else pool.cross()
    return steps


def shared_steps(
    times: list[int], windows: list[Window], factor: int, capacity: int, exact: bool
) -> list[Step]:
    pool = SharedPool(capacity, len(windows), [w.length for w in windows] if exact else None)
    steps: list[Step] = []
    for step in boundaries(times, windows, factor):
        if isinstance(step, Roll):
            steps += pool.roll(step.number if windows[0].rows else step.time)
        else:
            steps += pool.cross(step.window)
        assert len(pool.resident) <= capacity
        assert set(pool.ancient) <= set(pool.resident)
    return steps


def reads(steps: list[Step]) -> int:
    return sum(isinstance(step, Fetch) for step in steps)


# one window


def test_the_newest_full_block_leaves_and_the_oldest_comes_back() -> None:
    #   0 ancient | 1 2 on disk | 3 recent
    pool = OneWindowPool(2)
    assert pool.roll() == [Begin(1)]
    assert pool.roll() == [Evict(1), Begin(2)]
    assert pool.roll() == [Evict(2), Begin(3)]
    assert pool.cross() == [Release(0), Fetch(1)]
    assert list(pool.upcoming) == [2]
    assert pool.resident == [1, 3]


def test_a_pool_reads_ahead_of_the_block_in_use() -> None:
    pool = OneWindowPool(3)
    for _ in range(4):
        pool.roll()
    assert pool.resident == [0, 1, 4]
    assert pool.cross() == [Release(0), Fetch(2)]
    assert pool.resident == [1, 2, 4]


def test_a_window_that_fits_moves_nothing() -> None:
    times = list(range(60))
    assert not [
        step for step in one_steps(times, Window(11), 4, 5) if isinstance(step, Evict | Fetch)
    ]


@given(gaps, st.integers(1, 25), st.integers(1, 3), st.integers(2, 5))
@settings(max_examples=60)
def test_oracle_no_policy_reads_less_for_one_window(
    drawn: list[int], length: int, factor: int, capacity: int
) -> None:
    times, window = clock(drawn), Window(length)
    least = least_reads(list(boundaries(times, [window], factor)), 1, capacity)
    assert reads(shared_steps(times, [window], factor, capacity, False)) == least
    ahead = one_steps(times, window, factor, 2)
    assert reads(ahead) == least_reads(list(boundaries(times, [window], factor)), 1, 2)


@given(gaps, st.integers(1, 60), st.booleans(), st.integers(1, 3), st.integers(2, 5))
def test_bounded_pools_of_the_least_size_serve_any_stream(
    drawn: list[int], length: int, rows: bool, factor: int, capacity: int
) -> None:
    times, window = clock(drawn), Window(length, rows)
    pool = OneWindowPool(capacity)
    for step in boundaries(times, [window], factor):
        before = pool.resident[0]
        if isinstance(step, Roll):
            pool.roll()
            assert pool.resident[0] == before
        else:
            pool.cross()
            assert pool.resident[0] == before + 1
        assert len(pool.resident) <= capacity


# several windows


def test_blocks_in_use_stay() -> None:
    #   0 ancient of both | 1 | 2 | 3 recent: two places are taken by 0 and the recent block
    pool = SharedPool(3, 2)
    assert pool.roll() == [Begin(1)]
    assert pool.roll() == [Begin(2)]
    assert pool.roll() == [Evict(2), Begin(3)]
    assert pool.cross(0) == []
    #   0 ancient of 1 | 1 ancient of 0 | 2 on disk
    assert pool.roll() == [Evict(3), Begin(4)]
    assert pool.cross(0) == [Evict(1), Fetch(2)]
    assert pool.cross(1) == [Release(0), Fetch(1)]


def test_the_block_farthest_from_the_window_behind_it_leaves() -> None:
    pool = SharedPool(7, 2)
    for _ in range(6):
        pool.roll()
    for _ in range(3):
        pool.cross(0)
    #   0 ancient of 1 | 1 2 | 3 ancient of 0 | 4 5 6: block 6 is 3 from window 0, 2 is 2 from 1
    assert pool.resident == [0, 1, 2, 3, 4, 5, 6]
    assert pool.roll() == [Evict(6), Begin(7)]
    assert pool.segments() == [(3, 4), (3, 3)]
    assert pool.roll() == [Evict(7), Begin(8)]
    assert pool.cross(0) == pool.cross(0) == []
    assert pool.cross(0) == [Evict(5), Fetch(6)]
    assert pool.crossings == [6, 0]
    assert pool.hits == [5, 0]


windows_of_one_kind = st.tuples(
    st.booleans(), st.lists(st.integers(1, 40), min_size=2, max_size=3)
).map(lambda drawn: [Window(length, drawn[0]) for length in sorted(drawn[1])])


@given(dense, windows_of_one_kind, st.integers(1, 3), st.integers(0, 2))
@settings(max_examples=60)
def test_oracle_no_policy_reads_less_when_lengths_are_known(
    drawn: list[int], windows: list[Window], factor: int, more: int
) -> None:
    times, capacity = clock(drawn), len(windows) + 1 + more
    least = least_reads(list(boundaries(times, windows, factor)), len(windows), capacity)
    assert reads(shared_steps(times, windows, factor, capacity, True)) == least


@given(
    gaps,
    st.lists(st.builds(Window, st.integers(1, 40), st.booleans()), min_size=1, max_size=4),
    st.integers(1, 3),
    st.integers(0, 4),
)
@settings(max_examples=150)
def test_bounded_shared_pools_serve_any_stream(
    drawn: list[int], windows: list[Window], factor: int, more: int
) -> None:
    shared_steps(clock(drawn), windows, factor, len(windows) + 1 + more, False)


def test_distances_in_blocks_read_little_more_than_the_least() -> None:
    found = least = 0
    for capacity in range(4, 7):
        for rhythm in ([1], [1, 1, 3], [0, 5, 1, 1, 1, 2]):
            times = clock(rhythm * (96 // len(rhythm)))
            windows = [Window(15), Window(29), Window(44)]
            found += reads(shared_steps(times, windows, 3, capacity, False))
            least += least_reads(list(boundaries(times, windows, 3)), 3, capacity)
    assert least <= found <= 1.05 * least


@pytest.mark.parametrize(("capacity", "windows"), [(1, 1), (3, 3), (2, 0)])
def test_too_small_a_pool_is_refused_with_the_least(capacity: int, windows: int) -> None:
    with pytest.raises(DefinitionError, match=f"at least {windows + 1} blocks"):
        SharedPool(capacity, windows)


def test_walking_meets_blocks_in_order() -> None:
    #   tuples 0 1 | 2 3 | 4 5, one second apart, a window of two seconds
    assert list(boundaries(list(range(6)), [Window(2)], 2)) == [
        Roll(1, 1),
        Cross(0),
        Roll(3, 3),
        Cross(0),
    ]
