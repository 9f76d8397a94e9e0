from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.dashboard.drawing import drawing
from tests.fixtures.histories import KINDS, PLANS


@pytest.mark.parametrize("kind", KINDS)
def test_arrows_lead_to_the_right(kind: str) -> None:
    drawn = drawing(PLANS[kind])
    assert drawn is not None
    columns = {box["id"]: box["column"] for box in drawn["boxes"]}
    assert drawn["arrows"]
    for arrow in drawn["arrows"]:
        assert columns[arrow["from"]] < columns[arrow["to"]]


def test_components_show_their_steps_and_what_leads_to_them() -> None:
    drawn = drawing(PLANS["groups"])
    assert drawn is not None
    boxes = {box["id"]: box["lines"] for box in drawn["boxes"]}
    assert boxes["component 0"] == ["group by user", "join where item1 <> item2 of 1, 1"]
    assert {"from": "component 1", "to": "result 0", "text": "update"} in drawn["arrows"]
    assert {"from": "component 0", "to": "component 1", "text": "by item1"} in drawn["arrows"]


def test_long_plans_are_cut_and_told_whole_beside() -> None:
    steps = [f"{n}: step {n} {'x' * 100}" for n in range(20)]
    plan: dict[str, Any] = {"sources": [], "edges": [], "components": [steps], "views": []}
    drawn = drawing(plan)
    assert drawn is not None
    [box] = drawn["boxes"]
    assert len(box["lines"]) == 8
    assert box["lines"][-1] == "and 13 more"
    assert all(len(line) <= 64 for line in box["lines"])
    assert len(box["all"]) == 20


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
NAMES = ("sources", "edges", "components", "views", "keys", "inputs")


@given(plan=st.dictionaries(st.sampled_from(NAMES), JSON))
def test_what_is_no_description_is_not_drawn(plan: dict[str, Any]) -> None:
    drawn = drawing(plan)
    assert drawn is None or set(drawn) == {"boxes", "arrows"}


def test_edges_in_a_circle_are_not_drawn() -> None:
    back = {"from": "component 1", "to": "component 0", "by": ["k"], "after": []}
    assert drawing({**PLANS["groups"], "edges": [back]}) is None
