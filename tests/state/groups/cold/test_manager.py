from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.core.errors import DefinitionError, StorageError
from icestream.state.groups.cold.classifiers import Smoothing
from icestream.state.groups.cold.manager import Manager, Policy
from tests.fixtures.cold_groups import PlainSubQuery

CLASSIFIERS = ("clock", "lfu", "plain-lfu", "smoothing")


def filled(
    manager: Callable[[list[PlainSubQuery]], Manager], *sizes: list[int]
) -> tuple[Manager, list[PlainSubQuery]]:
    """Make sub-queries a, b, ... with all groups in memory, and their manager."""
    queries = [PlainSubQuery("abcdef"[i], part) for i, part in enumerate(sizes)]
    made = manager(queries)
    for query in queries:
        query.open(made, np.arange(len(query.sizes)))
    return made, queries


def with_policy(policy: Policy) -> Callable[[list[PlainSubQuery]], Manager]:
    return lambda queries: Manager(queries, policy)


def slots(*numbers: int) -> npt.NDArray[np.int64]:
    return np.array(numbers, dtype=np.int64)


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_targets_are_met_in_batches_of_k_one_sub_query_after_the_other(kind: str) -> None:
    policy = Policy(k=10, classifier=kind)
    manager, (a, b) = filled(with_policy(policy), [10] * 300, [10] * 100)
    assert manager.plan(limit=10_000, held=4000) == {}
    assert manager.plan(limit=4000, held=4000) == {"a": 600, "b": 200}
    steps = 0
    while not manager.step():
        steps += 1
        assert not b.batches or len(a.batches) == 6
    assert (steps, a.bytes_held(), b.bytes_held()) == (7, 2400, 800)
    assert {len(batch) for batch in a.batches + b.batches} == {10}
    assert manager.targets == {}
    assert manager.step()


def test_proportional_targets_are_fair_whatever_the_sizes() -> None:
    manager, (a, b, c) = filled(
        with_policy(Policy(k=5)), [1000] * 60, [100] * 300, [37] * 270 + [10]
    )
    held = [query.bytes_held() for query in (a, b, c)]
    manager.plan(limit=sum(held), held=sum(held))
    while not manager.step():
        pass
    for query, before in zip((a, b, c), held, strict=True):
        assert 0.2 * before <= before - query.bytes_held() <= 0.2 * before + query.sizes.max()


def test_batches_come_between_chunks_of_data_and_never_two_at_once() -> None:
    manager, (a,) = filled(with_policy(Policy(k=10)), [10] * 200)
    left, done = [], False
    for _ in range(6):
        done = manager.turn(limit=2000, held=2000 if not done else 0)
        left.append(len(a.candidates()))
    assert left == [190, 180, 170, 160, 160, 160]
    assert manager.tick == 6


def test_a_plan_that_is_open_is_not_made_anew() -> None:
    manager, _ = filled(with_policy(Policy(k=1)), [10] * 100)
    assert manager.plan(1000, 1000) == {"a": 200}
    manager.step()
    assert manager.plan(1000, 990) == {"a": 190}


def test_hits_keep_groups_in_memory() -> None:
    for kind in CLASSIFIERS:
        manager, (a,) = filled(with_policy(Policy(k=100, classifier=kind)), [1] * 50)
        manager.free(1)
        a.open(manager, np.flatnonzero(~a.hot))
        manager.advance()
        hot = np.arange(5, 50, 5)
        manager.note("a", hot)
        manager.free(35)
        assert a.hot[hot].all(), kind


def test_a_batch_is_no_larger_than_what_is_missing() -> None:
    manager, (a,) = filled(with_policy(Policy(k=1024, urgent=0.0)), [1000] * 100)
    manager.free(2500)
    manager.free(2500)
    assert [len(batch) for batch in a.batches] == [3, 3]


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_some_clean_groups_leave_before_colder_ones_to_be_written(kind: str) -> None:
    manager, (a,) = filled(with_policy(Policy(urgent=0.0, classifier=kind)), [1] * 100)
    a.dirty[:30] = True
    manager.advance()
    manager.note("a", np.arange(60, 100))
    manager.free(40)
    left = set(a.batches[0])
    assert (len(left), len(left & set(range(30)))) == (40, 25)
    assert not left & set(range(60, 100))


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 2000), st.integers(1, 8))
def test_free_frees_enough_or_all_there_is(sizes: list[int], asked: int, k: int) -> None:
    half = len(sizes) // 2
    manager, (a, b) = filled(with_policy(Policy(k=k)), sizes[:half], sizes[half:])
    freed = manager.free(asked)
    assert freed == sum(sizes) - a.bytes_held() - b.bytes_held()
    assert freed >= asked or a.bytes_held() + b.bytes_held() == 0


def test_a_refused_reservation_frees_a_little_more_than_it_needs() -> None:
    manager, _ = filled(with_policy(Policy(urgent=0.1)), [10] * 100)
    assert manager.free(1) >= 100
    assert manager.free(0) >= 90


@pytest.mark.parametrize("classifier", ["clock", "lfu"])
def test_bounded_a_batch_frees_a_group_too_much_at_most(classifier: str) -> None:
    sizes = np.random.default_rng(1).permutation([10] * 900 + [5_000] * 100)
    query = PlainSubQuery("a", sizes)
    manager = Manager([query], Policy(classifier=classifier, urgent=0))
    query.open(manager, np.arange(1_000))
    for asked in (100, 20_000, 3_000, 70_000):
        assert asked <= manager.free(asked) < asked + 5_000


def test_what_is_freed_at_once_counts_for_the_open_plan() -> None:
    manager, _ = filled(with_policy(Policy(urgent=0.0)), [10] * 100)
    manager.plan(1000, 1000)
    freed = manager.free(150)
    assert manager.targets == {"a": 200 - freed}


def test_targets_of_groups_that_cannot_leave_are_given_up_for_now() -> None:
    manager, (a, b) = filled(with_policy(Policy(k=100)), [10] * 10, [10] * 10)
    a.pinned[:] = True
    manager.plan(200, 200)
    assert manager.step()
    assert (a.batches, len(b.candidates())) == ([], 8)
    a.pinned[:] = False
    assert manager.plan(200, 180) == {"a": 20, "b": 16}


def test_groups_that_will_not_go_do_not_hold_up_the_rest() -> None:
    class Stubborn(PlainSubQuery):
        def evict(self, slots: npt.NDArray[np.int64]) -> int:
            self.batches.append(slots.tolist())
            return 0

    a, b = Stubborn("a", [10] * 10), PlainSubQuery("b", [10] * 10)
    manager = Manager([a, b])
    for query in (a, b):
        query.open(manager, np.arange(10))
    assert manager.free(100) == 100
    manager.assign({"a": 50, "b": 50})
    assert manager.step()


def test_a_failed_evict_changes_nothing_that_counts() -> None:
    class Failing(PlainSubQuery):
        def evict(self, slots: npt.NDArray[np.int64]) -> int:
            msg = "the disk is full"
            raise StorageError(msg)

    query = Failing("a", [10] * 10)
    manager = Manager([query])
    query.open(manager, np.arange(10))
    manager.assign({"a": 50})
    before = manager.ledgers["a"].evicted, manager.ledgers["a"].groups
    with pytest.raises(StorageError, match="full"):
        manager.step()
    assert (manager.ledgers["a"].evicted, manager.ledgers["a"].groups) == before
    assert manager.targets == {"a": 50}


def test_a_batch_that_leaves_makes_no_other_leave() -> None:
    class Hungry(PlainSubQuery):
        def evict(self, slots: npt.NDArray[np.int64]) -> int:
            assert manager.free(1000) == 0
            return super().evict(slots)

    query = Hungry("a", [10] * 10)
    manager = Manager([query])
    query.open(manager, np.arange(10))
    assert manager.free(20) == 20
    assert len(query.batches) == 1


def scenario(manager: Manager, query: PlainSubQuery, seed: int) -> Manager:
    random = np.random.default_rng(seed)
    for _ in range(41):
        hits = random.integers(0, 100, 30)
        query.open(manager, np.unique(hits))
        manager.note("a", hits)
        manager.turn(limit=800, held=query.bytes_held())
    return manager


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_a_manager_made_from_the_state_goes_on_alike(kind: str) -> None:
    policy = Policy(k=3, classifier=kind)
    one, other = (PlainSubQuery("a", [10] * 100) for _ in range(2))
    kept = scenario(scenario(Manager([one], policy), one, 1), one, 2)
    halfway = scenario(Manager([other], policy), other, 1)
    resumed = Manager([other], policy, state=json.loads(json.dumps(halfway.state)))
    scenario(resumed, other, 2)
    assert one.batches == other.batches
    assert len(one.batches) > 10
    assert kept.state == resumed.state
    assert (one.stats == other.stats).all()


def test_another_classifier_begins_with_new_statistics() -> None:
    query = PlainSubQuery("a", [10] * 100)
    manager = scenario(Manager([query], Policy(k=3)), query, 1)
    resumed = Manager([query], Policy(k=3, classifier=Smoothing(0.1)), state=manager.state)
    assert not query.stats.any()
    assert resumed.ledgers["a"].evicted == manager.ledgers["a"].evicted
    assert resumed.ledgers["a"].memory == {}
    scenario(resumed, query, 2)


def test_sub_queries_have_classifiers_of_their_own() -> None:
    policy = Policy(classifiers={"b": "lfu", "c": Smoothing(0.3)})
    assert [repr(policy.classifier_of(name)) for name in "abc"] == [
        "ClockClassifier()",
        "LeastFrequent(period=32)",
        "Smoothing(alpha=0.3)",
    ]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"threshold": 0.0}, "threshold must be above 0, at most 1"),
        ({"free": 1.5}, "free must be above 0, at most 1"),
        ({"urgent": -0.1}, "urgent must be between 0 and 1"),
        ({"k": 0}, "k must be at least 1"),
        ({"classifier": "lru"}, "no classifier is called 'lru'"),
    ],
)
def test_a_policy_says_what_is_wrong_with_it(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        Policy(**wrong)  # type: ignore[arg-type]


def test_sub_queries_need_names() -> None:
    with pytest.raises(DefinitionError, match="share a name"):
        Manager([PlainSubQuery("a", [1]), PlainSubQuery("a", [1])])


moves = st.one_of(
    st.tuples(st.just("use"), st.lists(st.integers(0, 29), max_size=10)),
    st.tuples(st.just("pin"), st.lists(st.integers(0, 29), max_size=10)),
    st.tuples(st.just("turn"), st.integers(1, 3000)),
    st.tuples(st.just("free"), st.integers(0, 3000)),
    st.tuples(st.just("step"), st.just(0)),
)


@pytest.mark.parametrize("kind", CLASSIFIERS)
@given(
    st.lists(st.integers(0, 100), min_size=30, max_size=30),
    st.builds(
        Policy,
        threshold=st.sampled_from((0.1, 0.9, 1.0)),
        free=st.sampled_from((0.01, 0.2, 1.0)),
        urgent=st.sampled_from((0.0, 0.02, 1.0)),
        k=st.integers(1, 12),
    ),
    st.lists(st.tuples(st.sampled_from("ab"), moves), max_size=40),
)
def test_bounded_only_candidates_leave_and_every_call_ends(
    kind: str, sizes: list[int], drawn: Policy, moves: list[tuple[str, tuple[str, object]]]
) -> None:
    policy = replace(drawn, classifier=kind)
    queries = {name: PlainSubQuery(name, sizes) for name in "ab"}
    manager = Manager(list(queries.values()), policy)
    for name, (what, argument) in moves:
        query = queries[name]
        able = sum(int(q.sizes[q.candidates()].sum()) for q in queries.values())
        held = sum(q.bytes_held() for q in queries.values())
        done = sum(len(q.batches) for q in queries.values())
        if isinstance(argument, list):
            named = np.array(argument, dtype=np.int64)
            if what == "pin":
                query.pinned[:] = False
                query.pinned[named] = True
            else:
                query.open(manager, np.unique(named))
                query.dirty[named] = ~query.dirty[named]
                manager.note(name, named)
        elif what == "turn":
            assert isinstance(argument, int)
            manager.turn(limit=argument, held=held)
            assert sum(len(q.batches) for q in queries.values()) <= done + 1
        elif what == "free":
            assert isinstance(argument, int)
            freed = manager.free(argument)
            assert freed == held - sum(q.bytes_held() for q in queries.values())
            assert freed >= min(argument, able)
        else:
            manager.step()
        assert all(target > 0 for target in manager.targets.values())
    ends = 2 * len(sizes) + 2
    while not manager.step():
        ends -= 1
        assert ends > 0
    for query in queries.values():
        assert all(1 <= len(batch) <= policy.k for batch in query.batches)
        assert all(len(set(batch)) == len(batch) for batch in query.batches)
