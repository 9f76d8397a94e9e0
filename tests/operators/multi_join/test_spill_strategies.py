from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.core.arrays import Mask
from icestream.core.errors import DefinitionError
from icestream.operators.multi_join.spill_strategies import (
    BOTTOM_UP,
    GLOBAL_OUTPUT,
    GLOBAL_OUTPUT_AHEAD,
    GLOBAL_OUTPUT_WITH_PENALTY,
    LARGEST,
    LOCAL_OUTPUT,
    RANDOM,
    STRATEGIES,
    PartitionStatistics,
    SpillRanking,
    chosen,
    horizon,
    productivity,
)

DEPTH = {0: 0, 1: 1, 2: 2}


@dataclass(frozen=True)
class Group:
    join: int
    partition: int
    size: int
    output: float = 0.0
    inter: float = 0.0


def statistics(groups: list[Group]) -> PartitionStatistics:
    return PartitionStatistics(
        np.array([each.join for each in groups], dtype=np.int64),
        np.array([each.partition for each in groups], dtype=np.int64),
        np.array([each.size for each in groups], dtype=np.int64),
        np.array([each.output for each in groups], dtype=np.float64),
        np.array([each.inter for each in groups], dtype=np.float64),
    )


def names(groups: list[Group], leaves: Mask) -> set[tuple[int, int]]:
    return {(each.join, each.partition) for each, gone in zip(groups, leaves, strict=True) if gone}


def leaving(groups: list[Group], amount: int, strategy: str, seed: int = 1) -> set[tuple[int, int]]:
    return names(groups, chosen(statistics(groups), amount, strategy, DEPTH, seed))


some_groups = st.lists(
    st.builds(
        Group,
        join=st.integers(0, 2),
        partition=st.integers(0, 9),
        size=st.integers(0, 1000),
        output=st.integers(0, 50).map(float),
        inter=st.integers(0, 5000).map(float),
    ),
    max_size=30,
    unique_by=lambda group: (group.join, group.partition),
)


@given(some_groups, st.integers(1, 5000), st.sampled_from(STRATEGIES), st.integers(0, 9))
def test_oracle_the_shortest_front_that_reaches_the_amount_is_chosen(
    groups: list[Group], amount: int, strategy: str, seed: int
) -> None:
    gone = leaving(groups, amount, strategy, seed)
    sizes = {(each.join, each.partition): each.size for each in groups}
    freed = sum(sizes[name] for name in gone)
    if freed < amount:
        assert gone == {name for name, size in sizes.items() if size}
        return
    assert any(freed - sizes[name] < amount for name in gone)
    if strategy not in (BOTTOM_UP, RANDOM, LARGEST):
        ahead = min(1.0, amount / sum(sizes.values()))
        ranks = {
            (each.join, each.partition): _productivity(each, strategy, ahead)
            for each in groups
            if each.size
        }
        stays = [rank for name, rank in ranks.items() if name not in gone]
        assert max(ranks[name] for name in gone) <= min(stays, default=np.inf)


def _productivity(group: Group, strategy: str, ahead: float) -> float:
    """Return results per byte, the obvious way."""
    if strategy == GLOBAL_OUTPUT_WITH_PENALTY:
        return group.output / (group.size + group.inter)
    penalty = ahead * group.inter if strategy == GLOBAL_OUTPUT_AHEAD else 0.0
    return group.output / (group.size + penalty)


@given(some_groups, st.sampled_from(STRATEGIES))
def test_a_group_without_bytes_is_never_chosen(groups: list[Group], strategy: str) -> None:
    gone = leaving(groups, 10**9, strategy)
    assert gone == {(each.join, each.partition) for each in groups if each.size}


@given(some_groups, st.randoms(use_true_random=False), st.sampled_from(STRATEGIES))
def test_choices_depend_on_the_groups_and_not_on_their_order(
    groups: list[Group], random: object, strategy: str
) -> None:
    amount = sum(each.size for each in groups) // 3
    before = leaving(groups, amount, strategy)
    groups = list(groups)
    random.shuffle(groups)  # type: ignore[attr-defined]
    assert leaving(groups, amount, strategy) == before


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_nothing_leaves_when_nothing_must(strategy: str) -> None:
    groups = [Group(0, 0, 100, 1.0), Group(1, 0, 100, 2.0)]
    assert leaving(groups, 0, strategy) == set()
    assert leaving([], 100, strategy) == set()


@pytest.mark.parametrize("strategy", [LOCAL_OUTPUT, GLOBAL_OUTPUT])
def test_the_least_productive_groups_of_all_joins_leave(strategy: str) -> None:
    groups = [
        Group(0, 0, 100, output=10.0),
        Group(0, 1, 100, output=300.0),
        Group(1, 0, 400, output=200.0),
        Group(2, 0, 50, output=2.0),
    ]
    assert leaving(groups, 50, strategy) == {(2, 0)}
    assert leaving(groups, 51, strategy) == {(2, 0), (0, 0)}
    assert leaving(groups, 151, strategy) == {(2, 0), (0, 0), (1, 0)}


def test_the_printed_example_of_intermediate_results() -> None:
    # two groups of one join with the same size and output; one makes 2 rows on the way for each
    # row that comes, the other 20: only the penalty tells them apart
    groups = [Group(0, 0, 1000, 10.0, inter=2_000.0), Group(0, 1, 1000, 10.0, inter=20_000.0)]
    both = productivity(statistics(groups), GLOBAL_OUTPUT, ahead=0.3)
    assert both[0] == both[1]
    for strategy in (GLOBAL_OUTPUT_WITH_PENALTY, GLOBAL_OUTPUT_AHEAD):
        assert leaving(groups, 1, strategy) == {(0, 1)}


def test_what_other_joins_keep_counts_against_the_group_with_a_penalty_only() -> None:
    groups = [Group(0, 0, 100, 100.0, inter=900.0), Group(1, 0, 100, 50.0)]
    assert leaving(groups, 60, GLOBAL_OUTPUT) == {(1, 0)}
    assert leaving(groups, 60, GLOBAL_OUTPUT_WITH_PENALTY) == {(0, 0)}
    assert leaving(groups, 60, GLOBAL_OUTPUT_AHEAD) == {(0, 0)}


def test_the_printed_penalty_is_all_that_was_kept_so_far() -> None:
    groups = [Group(0, 0, 100, 100.0, inter=900.0), Group(1, 0, 100, 50.0)]
    by_byte = productivity(statistics(groups), GLOBAL_OUTPUT_WITH_PENALTY, 0.3)
    assert by_byte.tolist() == [0.1, 0.5]
    # however little leaves
    assert leaving(groups, 1, GLOBAL_OUTPUT_WITH_PENALTY) == {(0, 0)}


def test_the_penalty_ahead_is_what_comes_until_memory_is_full_again() -> None:
    groups = [Group(0, 0, 100, 100.0, inter=900.0), Group(1, 0, 100, 50.0)]
    both = statistics(groups)
    # 60 of 200 bytes leave, so that 60 can come: three tenths of all that has come so far
    assert horizon(both, 60) == 0.3
    assert horizon(both, 1000) == 1.0
    by_byte = productivity(both, GLOBAL_OUTPUT_AHEAD, 0.3)
    assert by_byte.tolist() == pytest.approx([100 / (100 + 270), 0.5])
    # if next to nothing leaves, the next decision is near, and the penalty is small
    assert leaving(groups, 1, GLOBAL_OUTPUT_AHEAD) == {(1, 0)}


def test_of_groups_that_made_nothing_the_largest_leave_first() -> None:
    groups = [Group(0, 0, 10), Group(0, 1, 30), Group(1, 0, 20)]
    assert leaving(groups, 1, GLOBAL_OUTPUT) == {(0, 1)}
    assert leaving(groups, 31, GLOBAL_OUTPUT) == {(0, 1), (1, 0)}


def test_bottom_up_takes_from_the_next_join_when_one_has_nothing_left() -> None:
    groups = [Group(join, number, 10, 1.0) for join in (2, 0, 1) for number in range(4)]
    low = {(0, number) for number in range(4)}
    assert leaving(groups, 30, BOTTOM_UP) < low
    assert leaving(groups, 40, BOTTOM_UP) == low
    more = leaving(groups, 41, BOTTOM_UP)
    assert more > low
    assert {join for join, _ in more - low} == {1}


def test_bottom_up_takes_joins_of_one_height_alike() -> None:
    groups = [Group(join, number, 10) for join in (0, 1) for number in range(40)]
    level = {0: 0, 1: 0}
    leaves = chosen(statistics(groups), 400, BOTTOM_UP, level, 5)
    assert {join for join, _ in names(groups, leaves)} == {0, 1}


@pytest.mark.parametrize("strategy", [BOTTOM_UP, RANDOM])
def test_choices_by_chance_differ_by_seed(strategy: str) -> None:
    groups = [Group(0, number, 10) for number in range(50)]
    once = [leaving(groups, 100, strategy, seed) for seed in (1, 2)]
    assert once[0] != once[1]
    assert once[0] == leaving(groups, 100, strategy, 1)


def test_the_largest_leave_whatever_they_make() -> None:
    groups = [Group(0, 0, 10, 0.0), Group(1, 0, 300, 1e9), Group(2, 0, 200, 1e9)]
    assert leaving(groups, 301, LARGEST) == {(1, 0), (2, 0)}


def test_a_strategy_nobody_knows_is_refused() -> None:
    with pytest.raises(DefinitionError, match="one of bottom_up, local_output"):
        leaving([Group(0, 0, 10)], 10, "oldest")


def test_statistics_that_do_not_belong_together_are_refused() -> None:
    one, two = np.zeros(1), np.zeros(2)
    ids = np.zeros(1, dtype=np.int64)
    with pytest.raises(ValueError, match="one value for each group"):
        PartitionStatistics(ids, ids, ids, one, two)


@pytest.mark.parametrize(
    ("strategy", "left"), [("local_output", 2), ("global_output", 1), ("largest", 3)]
)
def test_a_full_shard_follows_the_strategy(strategy: str, left: int) -> None:
    sizes, outputs = np.array([0, 10, 10, 20]), np.array([0, 9, 1, 30])
    ranking = SpillRanking(strategy, 0.1, np.array([0.0, 1.0, 9.0, 30.0]), np.zeros(4))
    assert ranking.leaving(sizes, outputs, 1).tolist() == [left]
