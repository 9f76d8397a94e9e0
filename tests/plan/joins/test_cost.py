from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.core.errors import DefinitionError
from icestream.plan.joins.cost import (
    FLAT,
    HEAD_BYTES,
    MOST,
    TREE,
    StreamStatistics,
    join_plans,
    results_of,
)

#: a stream by its name, or two trees that are joined
Tree = str | tuple["Tree", "Tree"]


def stream(name: str, rows: float, keys: float, row_bytes: float = 16) -> StreamStatistics:
    return StreamStatistics(name, rows, keys, row_bytes)


some_streams = st.lists(
    st.tuples(st.integers(1, 1000), st.integers(1, 1000), st.integers(0, 100)),
    min_size=3,
    max_size=4,
).map(
    lambda rows: [
        stream("abcd"[at], count, min(count, keys), size)
        for at, (count, keys, size) in enumerate(rows)
    ]
)


def trees(names: Sequence[str]) -> Iterator[Tree]:
    """Yield every tree of binary joins over some streams."""
    if len(names) == 1:
        yield names[0]
    for chosen in range(1, 1 << (len(names) - 1)):
        left = [name for at, name in enumerate(names) if chosen >> at & 1]
        right = [name for name in names if name not in left]
        for one in trees(left):
            for other in trees(right):
                yield one, other


def kept(tree: Tree, streams: dict[str, StreamStatistics], *, root: bool = True) -> float:
    """Add up the bytes of results on the way, the slow, obvious way."""
    if isinstance(tree, str):
        return 0.0
    below = sum(kept(each, streams, root=False) for each in tree)
    if root:
        return below
    inside = [streams[name] for name in leaves(tree)]
    return below + results_of(inside) * (sum(each.row_bytes for each in inside) + HEAD_BYTES)


def leaves(tree: Tree) -> list[str]:
    return [tree] if isinstance(tree, str) else [name for each in tree for name in leaves(each)]


@given(some_streams)
def test_oracle_no_tree_costs_less_than_the_best(streams: list[StreamStatistics]) -> None:
    by_name = {each.name: each for each in streams}
    least = min(kept(tree, by_name) for tree in trees([each.name for each in streams]))
    plans = join_plans(streams)
    assert plans.tree is not None
    assert plans.tree.between == pytest.approx(least)
    assert plans.tree.state == pytest.approx(plans.flat.state + least)


@given(some_streams, st.randoms(use_true_random=False))
def test_results_do_not_depend_on_the_plan(streams: list[StreamStatistics], dice: object) -> None:
    expected = join_plans(streams).results
    dice.shuffle(streams)  # type: ignore[attr-defined]
    assert join_plans(streams).results == pytest.approx(expected)


def test_oracle_expected_results_are_those_of_evenly_spread_keys() -> None:
    # 10, 20 and 40 keys, each alike often, the smaller sets inside the larger
    sizes = ((10, 30), (20, 40), (40, 120))
    counts = [np.where(np.arange(40) < keys, rows / keys, 0.0) for keys, rows in sizes]
    streams = [stream(name, rows, keys) for name, (keys, rows) in zip("abc", sizes, strict=True)]
    assert results_of(streams) == pytest.approx(float(np.prod(counts, axis=0).sum()))


def test_many_rows_of_a_key_are_joined_flat() -> None:
    # every pair makes 100 times as many rows as came: nothing like that should be kept
    plans = join_plans([stream(name, 100_000, 1_000) for name in "abc"])
    assert plans.chosen == FLAT
    assert plans.why.startswith("flat: one join of 3 stores")
    assert "intermediate results" in plans.why


def test_streams_that_hardly_meet_are_joined_as_a_tree() -> None:
    # a and b make 20 rows; flat, each row of b would be taken along a thousand rows of c
    plans = join_plans(
        [stream("a", 10, 10), stream("b", 100_000, 50_000), stream("c", 10**6, 1_000)]
    )
    assert plans.tree is not None
    assert plans.tree.text == "((a, b), c)"
    assert plans.chosen == TREE
    assert "both store about the same" in plans.why


def test_the_tree_begins_with_the_streams_that_make_the_least() -> None:
    plans = join_plans(
        [stream("big", 10**6, 10**3), stream("small", 10**3, 10**3), stream("tiny", 10, 10)]
    )
    assert plans.tree is not None
    assert plans.tree.text == "(big, (small, tiny))"


def test_two_streams_are_one_join() -> None:
    plans = join_plans([stream("a", 10, 10), stream("b", 10, 10)])
    assert plans.chosen == FLAT
    assert plans.tree is None
    assert plans.why == "flat: two streams are one join"


def test_more_streams_than_can_be_searched_are_joined_flat() -> None:
    plans = join_plans([stream(f"s{at}", 10, 10) for at in range(MOST + 1)])
    assert plans.chosen == FLAT
    assert "too many" in plans.why


def test_a_stream_without_rows_makes_no_results() -> None:
    plans = join_plans([stream("a", 0, 0), stream("b", 10, 5), stream("c", 10, 5)])
    assert plans.results == 0
    assert plans.tree is not None


@pytest.mark.parametrize(
    ("rows", "keys", "size"), [(-1.0, 0.0, 8.0), (10.0, 11.0, 8.0), (10.0, 5.0, -8.0)]
)
def test_numbers_that_cannot_be_are_refused(rows: float, keys: float, size: float) -> None:
    with pytest.raises(DefinitionError, match="are invalid"):
        stream("a", rows, keys, size)


def test_one_stream_is_no_join() -> None:
    with pytest.raises(DefinitionError, match="at least two streams"):
        join_plans([stream("a", 1, 1)])
