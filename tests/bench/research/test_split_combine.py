from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.research.split_combine import (
    ComponentShape,
    ComponentStatistics,
    Evaluation,
    Form,
    account,
)
from icestream.core.errors import DefinitionError

#: 18 million rows at a microsecond each; 5 and 10 minutes of panes of one; 60 key groups
SIMPLE = ComponentStatistics(
    tuples=18e6,
    execution=1e-6,
    windows=2,
    panes=10,
    key_groups=60,
    moved=6,
    sending=0.02,
    moving=0.05,
    pause=0.5,
)
POSITIVE = st.floats(0.01, 1e6)
STATISTICS = st.builds(
    ComponentStatistics,
    tuples=POSITIVE,
    execution=POSITIVE,
    windows=st.integers(1, 50).map(float),
    panes=st.integers(1, 500).map(float),
    key_groups=st.integers(1, 256),
    moved=st.floats(0, 256),
    sending=POSITIVE,
    moving=POSITIVE,
    pause=POSITIVE,
)


def test_the_printed_formulas_come_out() -> None:
    found = account(SIMPLE, Form.PRINTED)
    assert found.cost[ComponentShape.SPLIT] == pytest.approx(18 + 10 * 0.05 * 60 + 6 * 0.05)
    assert found.cost[ComponentShape.COMBINED] == pytest.approx(18 * 2 + 6 * 0.05 * 10)
    assert found.pause == {ComponentShape.SPLIT: 0.0, ComponentShape.COMBINED: 3.0}


def test_with_shared_panes_a_combined_component_works_once_per_row() -> None:
    found = account(SIMPLE, Form.SHARED_PANES)
    assert found.cost[ComponentShape.SPLIT] == pytest.approx(18 + 10 * 0.02 * 60 + 6 * 0.02)
    assert found.cost[ComponentShape.COMBINED] == pytest.approx(18 + 6 * 0.05 * 10)
    # so many windows make the printed form split what shared panes leave together
    many = replace(SIMPLE, windows=6)
    assert account(many, Form.PRINTED).choice(99.0) is ComponentShape.SPLIT
    assert account(many, Form.SHARED_PANES).choice(99.0) is ComponentShape.COMBINED


def test_with_shared_panes_both_shapes_bring_every_pane_into_every_window() -> None:
    without = account(SIMPLE, Form.SHARED_PANES).cost
    found = account(replace(SIMPLE, consolidating=0.01), Form.SHARED_PANES).cost
    for shape in ComponentShape:
        assert found[shape] - without[shape] == pytest.approx(10 * 60 * 2 * 0.01)


@given(STATISTICS)
def test_both_forms_agree_where_nothing_is_shared(measured: ComponentStatistics) -> None:
    plain = replace(measured, windows=1.0, sending=measured.moving)
    assert account(plain, Form.PRINTED) == account(plain, Form.SHARED_PANES)


@given(STATISTICS, st.sampled_from(Form), st.floats(0, 1e6))
def test_oracle_the_cheaper_allowed_is_chosen(
    measured: ComponentStatistics, form: Form, longest: float
) -> None:
    found = account(measured, form)
    chosen = found.choice(longest)
    if found.pause[ComponentShape.COMBINED] > longest:
        assert chosen is ComponentShape.SPLIT
    else:
        assert found.cost[chosen] == min(found.cost.values())


def test_components_are_looked_at_once_per_period() -> None:
    control = Evaluation(longest_pause=5.0)
    assert not control.due("c", 0, 600)
    assert not control.due("c", 599, 600)
    assert control.due("c", 600, 600)
    split = {"c": ComponentShape.SPLIT}
    able = {"c": True}
    (change,) = control.changes(600, split, {"c": SIMPLE}, splittable=able)
    assert (change.component, change.shape) == ("c", ComponentShape.COMBINED)
    assert change.gain == pytest.approx(30.12 - 21.0)
    assert not control.due("c", 700, 600)
    assert control.due("c", 1200, 600)
    # a gain below the least is not worth a migration
    lazy = Evaluation(longest_pause=5.0, least_gain=0.5)
    assert lazy.changes(600, split, {"c": SIMPLE}, splittable=able) == []


def test_a_bound_on_pauses_asks_for_a_split_whatever_it_costs() -> None:
    control = Evaluation(longest_pause=1.0)
    both = {"c": ComponentShape.COMBINED}
    (change,) = control.changes(0, both, {"c": SIMPLE}, splittable={"c": True})
    assert change.shape is ComponentShape.SPLIT
    assert change.gain < 0
    assert control.changes(0, both, {"c": SIMPLE}, splittable={"c": False}) == []
    assert (
        control.changes(0, {"c": ComponentShape.SPLIT}, {"c": SIMPLE}, splittable={"c": True}) == []
    )


def test_the_best_gain_comes_first() -> None:
    control = Evaluation(longest_pause=5.0)
    more = replace(SIMPLE, key_groups=120)
    shapes = dict.fromkeys("ab", ComponentShape.SPLIT)
    found = control.changes(
        0, shapes, {"a": SIMPLE, "b": more}, splittable=dict.fromkeys("ab", True)
    )
    assert [change.component for change in found] == ["b", "a"]


def test_bounds_below_zero_are_refused() -> None:
    with pytest.raises(DefinitionError, match=">= 0"):
        Evaluation(longest_pause=-1.0)
