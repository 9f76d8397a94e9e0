from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from icestream.plan.balance.shard_sizing import MERGE_AFTER, ShardSizing, sized_shards

BOUNDS = (2, 64)


def course(
    sizing: ShardSizing,
    loads: Callable[[int], Sequence[float]],
    batches: int,
    tasks: int = 1,
    bounds: tuple[int, int] = BOUNDS,
) -> list[ShardSizing]:
    """Return the sizings of some batches; `loads` gives those of so many shards."""
    made = [sizing]
    for _ in range(batches):
        now = made[-1]
        made.append(sized_shards(now, loads(now.shards), tasks=tasks, room=1.0, bounds=bounds))
    return made


def even(work: float) -> Callable[[int], list[float]]:
    return lambda shards: [work / shards] * shards


def of_a_key(work: float, rest: float) -> Callable[[int], list[float]]:
    return lambda shards: [work + rest / shards, *[rest / shards] * (shards - 1)]


def numbers(sizings: Sequence[ShardSizing]) -> list[int]:
    return [each.shards for each in sizings]


def test_hot_shards_split_after_three_batches_until_they_fit() -> None:
    made = course(ShardSizing(2), even(6.0), 9)
    assert numbers(made) == [2, 2, 2, 4, 4, 4, 8, 8, 8, 8]
    assert made[-1].why == "a shard takes 1.50 s of a batch, and a task has room for 1.00 s"


def test_a_hot_key_splits_shards_once() -> None:
    made = course(ShardSizing(2), of_a_key(2.0, 0.5), 20)
    assert numbers(made)[-1] == 4
    assert numbers(course(made[-1], even(30.0), 20))[-1] == 32, "another load"


def test_tasks_have_four_shards_each() -> None:
    made = course(ShardSizing(8), even(0.5), 9, tasks=8)
    assert numbers(made) == [8, 8, 8, 16, 16, 16, 32, 32, 32, 32]
    assert made[-1].why == "8 tasks have 4 shards each"


def test_idle_shards_merge_after_many_batches_but_not_below_what_tasks_need() -> None:
    made = numbers(course(ShardSizing(32), even(0.05), 3 * MERGE_AFTER, tasks=2))
    assert made[MERGE_AFTER - 1 : MERGE_AFTER + 1] == [32, 16]
    assert made[2 * MERGE_AFTER - 1 : 2 * MERGE_AFTER + 1] == [16, 8]
    assert made[-1] == 8


def test_one_odd_batch_changes_no_shards() -> None:
    made = course(ShardSizing(8), even(0.5), 5)
    for work in (100.0, 0.5, 100.0, 100.0, 0.5):
        made += course(made[-1], even(work), 1)[1:]
    assert set(numbers(made)) == {8}


@given(
    st.lists(st.floats(0, 50), min_size=1, max_size=60),
    st.integers(1, 16),
    st.sampled_from([1, 2, 3, 8]),
)
def test_bounded_shards_stay_within_their_bounds(
    works: list[float], tasks: int, first: int
) -> None:
    sizing = ShardSizing(first)
    for work in works:
        sizing = course(sizing, even(work), 4, tasks, bounds=(1, 40))[-1]
        assert 1 <= sizing.shards <= 40
        ratio = max(first / sizing.shards, sizing.shards / first)
        assert ratio in (1, 2, 4, 8, 16, 32)


@given(st.floats(0, 50), st.floats(0, 50), st.integers(1, 8), st.sampled_from([2, 4, 8, 64]))
def test_shards_of_a_steady_load_settle(key: float, rest: float, tasks: int, first: int) -> None:
    made = numbers(course(ShardSizing(first), of_a_key(key, rest), 12 * MERGE_AFTER, tasks))
    assert len(set(made[6 * MERGE_AFTER :])) == 1
