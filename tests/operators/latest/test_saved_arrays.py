from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from icestream.operators.latest import saved_arrays
from icestream.operators.latest.saved_arrays import (
    SavedArrays,
    SavedParts,
    State,
    bytes_of,
    common_ranges,
    parts_of,
    records_of,
    state_of,
    table_of,
)
from icestream.state.arena import Arena
from icestream.state.budget import Budget, Refused
from icestream.state.identities import EVERY_ID, IdRange


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


def test_parts_come_back_from_their_files_and_from_records(tmp_path: Path) -> None:
    budget = Budget(64 << 10)
    arena = Arena.create(str(tmp_path), budget.account("arena"))
    parts = SavedParts(arena, "parts")
    assert parts.ranges == [EVERY_ID]
    assert parts.load(EVERY_ID) is None
    parts.save(EVERY_ID, sample())
    low, high = parts.split(EVERY_ID)
    assert parts.load(EVERY_ID) is None
    for ids, state in ((low, sample()), (high, {"numbers": np.arange(2)})):
        parts.save(ids, state)
        found = SavedParts(arena, "parts").load(ids)
        assert found is not None
        assert same(found, state)
    assert SavedParts(arena, "parts").ranges == [low, high]
    payloads = [*records_of(sample(), low), *records_of({"numbers": np.arange(2)}, high)]
    read = parts_of(payloads)
    assert list(read) == [low, high]
    assert same(read[low], sample())


def test_ranges_of_parents_are_cut_at_all_bounds() -> None:
    parents = [IdRange(0, 8), IdRange(8, 16), IdRange(0, 4), IdRange(4, 16)]
    assert common_ranges(parents) == [IdRange(0, 4), IdRange(4, 8), IdRange(8, 16)]
    assert IdRange(0, 8).within(IdRange(4, 16)) == IdRange(4, 8)
    assert not IdRange(0, 4).meets(IdRange(4, 8))
