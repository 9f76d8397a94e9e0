from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.core.errors import DefinitionError
from icestream.state.groups.cold.targets import Rule, SubQueryLoad, excess, spread

loads = st.lists(
    st.builds(
        SubQueryLoad,
        subquery=st.sampled_from("abcdefgh"),
        bytes=st.integers(0, 10**12),
        weight=st.sampled_from((0.5, 1.0, 3.0)),
        misses=st.integers(0, 500).map(float),
        cost=st.integers(0, 10**6).map(float),
        exposure=st.integers(0, 10**12).map(float),
    ),
    max_size=8,
    unique_by=lambda load: load.subquery,
)
rules = st.sampled_from(("proportional", "benefit"))


@given(loads, st.integers(0, 10**13), rules)
def test_targets_add_up_and_fit(found: list[SubQueryLoad], need: int, rule: Rule) -> None:
    shares = spread(found, need, rule)
    assert sum(shares) == min(need, sum(load.bytes for load in found))
    for load, share in zip(found, shares, strict=True):
        assert 0 <= share <= load.bytes


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=6), st.integers(0, 10**9))
def test_without_measurements_both_rules_agree(sizes: list[int], need: int) -> None:
    found = [SubQueryLoad(str(i), size) for i, size in enumerate(sizes)]
    one, other = (spread(found, need, rule) for rule in ("proportional", "benefit"))
    for a, b in zip(one, other, strict=True):
        assert abs(a - b) <= len(sizes)


@given(loads.filter(len), st.integers(0, 10**12), st.data())
def test_worth_is_kept(found: list[SubQueryLoad], need: int, data: st.DataObject) -> None:
    found = [replace(load, cost=load.misses) for load in found]
    at = data.draw(st.integers(0, len(found) - 1))
    if not any(load.misses for load in found):
        return
    more = [*found]
    more[at] = replace(more[at], misses=2 * found[at].misses + 5, cost=2 * found[at].misses + 5)
    before, after = spread(found, need, "benefit")[at], spread(more, need, "benefit")[at]
    assert after <= before + len(found)


def test_every_sub_query_gives_in_proportion_to_its_bytes() -> None:
    found = [SubQueryLoad("a", 600), SubQueryLoad("b", 300), SubQueryLoad("c", 100)]
    assert spread(found, 200, "proportional") == [120, 60, 20]


def test_weights_shift_targets_and_what_one_cannot_give_others_do() -> None:
    found = [SubQueryLoad("a", 600, weight=1.0), SubQueryLoad("b", 300, weight=4.0)]
    assert spread(found, 300, "proportional") == [100, 200]
    assert spread(found, 600, "proportional") == [300, 300]


def test_the_sub_query_that_misses_more_for_its_bytes_gives_less() -> None:
    busy = SubQueryLoad("busy", 1000, misses=90, cost=90, exposure=10_000)
    quiet = SubQueryLoad("quiet", 1000, misses=10, cost=10, exposure=10_000)
    of_busy, of_quiet = spread([busy, quiet], 400, "benefit")
    assert of_busy + of_quiet == 400
    assert of_busy < 100


def test_a_dear_read_counts_as_many_cheap_ones() -> None:
    dear = SubQueryLoad("dear", 1000, misses=10, cost=100, exposure=10_000)
    cheap = SubQueryLoad("cheap", 1000, misses=10, cost=10, exposure=10_000)
    of_dear, of_cheap = spread([dear, cheap], 400, "benefit")
    assert of_dear < of_cheap


def test_nothing_leaves_below_the_threshold_and_enough_above_it() -> None:
    assert excess(899, 1000, 0.9, 0.2) == 0
    assert excess(900, 1000, 0.9, 0.2) == 180
    assert excess(1500, 1000, 0.9, 0.2) == 600


def test_an_unknown_rule_is_named() -> None:
    with pytest.raises(DefinitionError, match="proportional, benefit"):
        spread([], 0, "fair")  # type: ignore[arg-type]
