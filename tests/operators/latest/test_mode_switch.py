from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.core.errors import DefinitionError
from icestream.operators.latest.pacing import ModeSwitch, QueueMode, SwitchPolicy

RULE = SwitchPolicy(enter=1.0, leave=0.8, patience=3, backlog=1_000)


def modes(loads: list[float], backlog: int = 0, start: ModeSwitch | None = None) -> list[QueueMode]:
    state, found = start or ModeSwitch(), []
    for load in loads:
        state = state.after(load, backlog, RULE)
        found.append(state.mode)
    return found


@given(st.lists(st.floats(0.8, 1.0), max_size=30), st.sampled_from(QueueMode))
def test_loads_between_the_thresholds_never_switch(loads: list[float], mode: QueueMode) -> None:
    assert set(modes(loads, start=ModeSwitch(mode))) <= {mode}


@given(st.lists(st.floats(0, 3), max_size=60))
def test_bounded_switches_are_at_least_patience_apart(loads: list[float]) -> None:
    found = [QueueMode.APPEND, *modes(loads)]
    at = [n for n in range(1, len(found)) if found[n] is not found[n - 1]]
    assert all(n >= RULE.patience for n in at)
    assert all(b - a >= RULE.patience for a, b in pairwise(at))


def test_overload_that_lasts_switches_to_update_and_its_end_back() -> None:
    a, u = QueueMode.APPEND, QueueMode.UPDATE
    assert modes([1.5, 1.5, 0.9, 1.5, 1.5, 1.5, 0.9]) == [a, a, a, a, a, u, u]
    assert modes([0.5, 0.5, 0.9, 0.5, 0.5, 0.5], start=ModeSwitch(u)) == [u, u, u, u, u, a]


def test_a_backlog_keeps_the_stream_in_update_mode() -> None:
    assert set(modes([0.1] * 9, backlog=500, start=ModeSwitch(QueueMode.UPDATE))) == {
        QueueMode.UPDATE
    }
    assert modes([0.1] * 3, backlog=100, start=ModeSwitch(QueueMode.UPDATE))[-1] is QueueMode.APPEND


def test_a_long_backlog_switches_at_once() -> None:
    assert ModeSwitch().after(0.5, 1_001, RULE).mode is QueueMode.UPDATE
    assert ModeSwitch().after(0.5, 1_000, RULE).mode is QueueMode.APPEND


def test_thresholds_that_would_flap_are_refused() -> None:
    for wrong in ({"enter": 0.8, "leave": 0.9}, {"patience": 0}, {"backlog": 0}, {"leave": 0.0}):
        with pytest.raises(DefinitionError, match="switching needs"):
            SwitchPolicy(**wrong)
