from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from icestream.operators.lineage import even_routes
from icestream.plan.balance.hot_shards import SkewSizing, followed_skew, merged, split
from icestream.plan.balance.shard_sizing import MERGE_AFTER

GROUPS = 64

#: seconds that each key group takes
Load = Callable[[int], float]


def course(
    sizing: SkewSizing, load: Load, batches: int, tasks: int = 2, bounds: tuple[int, int] = (2, 64)
) -> list[SkewSizing]:
    """Return the sizings of some batches under a load."""
    made = [sizing]
    for _ in range(batches):
        loads = loads_of(made[-1].routes, load)
        made.append(followed_skew(made[-1], loads, tasks=tasks, bounds=bounds))
    return made


def loads_of(routes: Sequence[int], load: Load) -> list[float]:
    loads = [0.0] * (routes[-1] + 1)
    for group, shard in enumerate(routes):
        loads[shard] += load(group)
    return loads


def shards(sizings: Sequence[SkewSizing]) -> list[int]:
    return [each.routes[-1] + 1 for each in sizings]


def even(group: int) -> float:
    return 0.01


def hot_range(group: int) -> float:
    """Give a quarter of the key groups, those of one shard of four, most of the load."""
    return 0.1 if 16 <= group < 32 else 0.01


def test_a_shard_splits_in_halves_and_two_merge() -> None:
    routes = even_routes(8, 2)
    assert routes == (0, 0, 0, 0, 1, 1, 1, 1)
    assert split(routes, 0) == (0, 0, 1, 1, 2, 2, 2, 2)
    assert split(routes, 1) == (0, 0, 0, 0, 1, 1, 2, 2)
    assert merged(split(routes, 1), 1) == routes


def test_a_hot_range_splits_and_merges_again() -> None:
    """
    even     [ 0 ][ 1 ][ 2 ][ 3 ]
    hot      [ 0 ][1|2][ 3 ][ 4 ]    1 took 1.6 s of 2.1 s, the mean is 0.52 s
    even     [ 0 ][ 1 ][ 2 ][ 3 ]    once both halves take less than half of the mean
    """
    start = SkewSizing(even_routes(GROUPS, 4))
    assert set(shards(course(start, even, 100))) == {4}
    made = course(start, hot_range, 40)
    assert shards(made)[:5] == [4, 4, 4, 5, 5]
    assert made[3].why == "shard 1 takes 1.60 s of a batch, 3.1 times the mean"
    assert made[-1].routes == split(start.routes, 1)
    loads = loads_of(made[-1].routes, hot_range)
    assert max(loads) <= sum(loads) / 2, "two tasks can take equal parts"
    cold = course(made[-1], lambda group: 0.001 if 16 <= group < 32 else 0.01, 2 * MERGE_AFTER)
    assert shards(cold)[MERGE_AFTER - 1 : MERGE_AFTER + 1] == [5, 4]
    assert cold[-1].routes == start.routes


def test_a_hot_key_splits_its_shard_once() -> None:
    made = course(SkewSizing(even_routes(GROUPS, 4)), lambda group: 2.0 * (group == 20), 100)
    assert shards(made)[-1] == 5
    other = course(made[-1], lambda group: 9.0 * (group == 20), 100)
    assert shards(other)[-1] == 6, "another load"


def test_a_hot_shard_that_a_task_has_room_for_stays() -> None:
    """Eight shards in two tasks: one with four times the mean is what a task takes anyway."""
    start = SkewSizing(even_routes(GROUPS, 8))
    load: Load = lambda group: 0.06 if group < 8 else 0.01  # noqa: E731
    assert shards(course(start, load, 20, tasks=2))[-1] == 8
    assert shards(course(start, load, 20, tasks=8))[-1] > 8


def test_one_odd_batch_splits_nothing() -> None:
    made = [SkewSizing(even_routes(GROUPS, 4))]
    for load in (hot_range, even, hot_range, hot_range, even):
        made += course(made[-1], load, 1)[1:]
    assert set(shards(made)) == {4}


@given(
    st.lists(st.lists(st.floats(0, 5), min_size=GROUPS, max_size=GROUPS), min_size=1, max_size=5),
    st.integers(1, 8),
    st.integers(2, 8),
)
def test_bounded_shards_of_any_loads(loads: list[list[float]], tasks: int, first: int) -> None:
    sizing = SkewSizing(even_routes(GROUPS, first))
    for load in loads:
        sizing = course(sizing, load.__getitem__, 2 * MERGE_AFTER, tasks, (2, 12))[-1]
        assert sorted({*sizing.routes}) == [*range(sizing.routes[-1] + 1)]
        assert [*sizing.routes] == sorted(sizing.routes)
        assert 2 <= sizing.routes[-1] + 1 <= 12


@given(
    st.lists(st.floats(0, 5), min_size=GROUPS, max_size=GROUPS),
    st.integers(1, 8),
    st.integers(2, 16),
)
def test_routes_of_a_steady_load_settle(load: list[float], tasks: int, first: int) -> None:
    start = SkewSizing(even_routes(GROUPS, first))
    made = course(start, load.__getitem__, 20 * MERGE_AFTER, tasks)
    assert len({each.routes for each in made[16 * MERGE_AFTER :]}) == 1
