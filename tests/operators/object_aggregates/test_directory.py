"""The directory of nodes beside a sorted list."""

from __future__ import annotations

import tempfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.operators.object_aggregates.directory import SLICE, NodeDirectory
from icestream.state.arena import Arena
from icestream.state.budget import Budget, Refused

Described = tuple[int, int, int, int, int, int]

SLICES = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.integers(-9, 9),
        st.integers(0, 2**64 - 1),
        st.integers(1, 99),
        st.integers(0, 2**63),
        st.integers(2**63, 2**64 - 1),
    ),
    max_size=8,
)


@given(st.lists(SLICES, max_size=6), st.integers(-9, 9))
def test_parity_directory_beside_a_sorted_list(batches: list[list[Described]], least: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        arena = Arena.create(folder, Budget(1 << 20).account("arena"))
        directory, listed = NodeDirectory(arena), list[Described]()
        for batch in batches:
            directory.append(np.array(batch, dtype=SLICE))
            listed = sorted([*listed, *batch], key=lambda each: each[:2])
            assert directory.all.tolist() == listed
        directory.keep(directory.all["place"] >= least)
        listed = [each for each in listed if each[1] >= least]
        again = NodeDirectory(arena)
        for level in range(4):
            places = sorted({each[1] for each in listed if each[0] == level})
            assert again.nodes(level) == places
            for place in range(-9, 10):
                expected = [each for each in listed if each[:2] == (level, place)]
                assert again.node(level, place).tolist() == expected
        arena.discard()


def test_bounded_refused_slices_change_nothing() -> None:
    with tempfile.TemporaryDirectory() as folder:
        arena = Arena.create(folder, Budget(4096).account("arena"))
        directory = NodeDirectory(arena)
        few = np.zeros(3, dtype=SLICE)
        directory.append(few)
        with pytest.raises(Refused):
            directory.append(np.zeros(200, dtype=SLICE))
        assert directory.all.tolist() == few.tolist()
        arena.discard()
