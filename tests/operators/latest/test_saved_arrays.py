from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from icestream.operators.latest import saved_arrays
from icestream.operators.latest.saved_arrays import (
    SavedArrays,
    State,
    bytes_of,
    records_of,
    state_of,
    table_of,
)
from icestream.state.arena import Arena
from icestream.state.budget import Budget, Refused


def sample() -> State:
    table = pa.table({"symbol": ["a", None, "b"], "price": [1, 2, 3]})
    return {
        "numbers": np.arange(5000),
        "pairs": np.arange(6.0).reshape(3, 2),
        "none": np.empty((0, 2), dtype=np.int64),
        "table": bytes_of(table),
    }


def same(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and np.array_equal(one[name], other[name])
        for name in one
    )


def test_arrays_come_back_from_the_arena_and_from_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_arrays, "RECORD_BYTES", 1000)
    budget = Budget(1 << 20)
    arena = Arena.create(str(tmp_path), budget.account("arena"))
    assert SavedArrays(arena, budget.account("copies")).load() is None
    for state in (sample(), {**sample(), "numbers": np.arange(3)}):
        SavedArrays(arena, budget.account("copies")).save(state)
        found = SavedArrays(arena, budget.account("copies")).load()
        assert found is not None
        assert same(found, state)
        assert same(state_of(records_of(state)), state)
    assert table_of(sample()["table"]).column("symbol").to_pylist() == ["a", None, "b"]


def test_bounded_arrays_are_inside_the_budget(tmp_path: Path) -> None:
    budget = Budget(64 << 10)
    arena = Arena.create(str(tmp_path), budget.account("arena"))
    with pytest.raises(Refused):
        SavedArrays(arena, budget.account("copies")).save({"large": np.zeros(100_000)})
