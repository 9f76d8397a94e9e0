from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.operators.grid.slices import SLICE, SliceDirectory, Slices
from icestream.state.arena import Arena
from icestream.state.budget import Budget, Refused

actions = st.lists(
    st.tuples(st.just("append"), st.lists(st.integers(-3, 6), max_size=5))
    | st.tuples(st.just("drop"), st.integers(-3, 6)),
    max_size=12,
)


def slices(panes: list[int], marker: int) -> Slices:
    return np.array([(p, marker + i, 1, 0, 9) for i, p in enumerate(panes)], dtype=SLICE)


@given(actions)
@settings(max_examples=40)
def test_parity_directory_beside_a_sorted_list(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[tuple[str, list[int] | int]]
) -> None:
    folder = tmp_path_factory.mktemp("arena")
    arena = Arena.create(str(folder), Budget(1 << 20).account("test"))
    directory = SliceDirectory(arena)
    known: list[tuple[int, int]] = []
    marker = 0
    for action, value in drawn:
        if isinstance(value, list):
            directory.append(slices(value, marker))
            known.extend((pane, marker + i) for i, pane in enumerate(value))
            known.sort()
            marker += len(value)
        else:
            assert action == "drop"
            directory.drop_before(value)
            known = [each for each in known if each[0] >= value]
        found = directory.all
        assert list(zip(found["pane"].tolist(), found["marker"].tolist(), strict=True)) == known
        for first in (-3, 0, 2):
            panes = [pane for pane, _ in known]
            later = [pane for pane in panes if pane >= first]
            assert directory.first_from(first) == (later[0] if later else None)
            between = directory.between(first, first + 2)["pane"].tolist()
            assert between == [pane for pane in panes if first <= pane < first + 2]
    arena.discard()


def test_bounded_a_refused_append_changes_nothing(tmp_path: Path) -> None:
    arena = Arena.create(str(tmp_path), Budget(4096).account("test"))
    directory = SliceDirectory(arena)
    directory.append(slices([1] * 80, 0))
    before = directory.all.tolist()
    with pytest.raises(Refused):
        directory.append(slices([0] * 30, 100))
    assert directory.all.tolist() == before


def test_slices_come_back_with_the_arena(tmp_path: Path) -> None:
    account = Budget(1 << 20).account("test")
    arena = Arena.create(str(tmp_path), account)
    SliceDirectory(arena).append(slices([2, 1], 5))
    arena.release("kept")
    again = Arena.claim(str(tmp_path), "kept", account)
    assert again is not None
    assert SliceDirectory(again).all["marker"].tolist() == [6, 5]
