from __future__ import annotations

from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.core.errors import CheckpointError
from icestream.kernels.grid.groups import FIELDS
from icestream.operators.folding.fields import Field, Layout, SlidingLayout
from icestream.operators.folding.fold import ID_HIGH_COLUMN, ID_LOW_COLUMN, LAST, identity_schema
from icestream.operators.grid import groups as module
from icestream.operators.grid.groups import ID_HIGH_END, ResidentGroups
from icestream.state.arena import Arena
from icestream.state.budget import Budget, Refused
from icestream.state.keys import KeyCodec

KEYS = pa.schema([("name", pa.string())])
CODEC = KeyCodec(KEYS)
LAYOUT = Layout.of((Field("max", "x"),))


def keys_of(numbers: list[int], width: int = 1) -> pa.Table:
    names = pa.record_batch([pa.array([f"{n}" * width for n in numbers], pa.string())], schema=KEYS)
    id_high, id_low = CODEC.identify(names)
    last = pa.array([0] * len(numbers), pa.int64())
    columns = [pa.array(id_high), pa.array(id_low), last, names.column(0)]
    return pa.Table.from_arrays(columns, schema=identity_schema(KEYS))


def admit(groups: ResidentGroups, keys: pa.Table, pane: int = 0) -> list[int]:
    id_high, id_low = (keys.column(name).to_numpy() for name in (ID_HIGH_COLUMN, ID_LOW_COLUMN))
    last = keys.column(LAST).to_numpy() + pane
    return [int(i) for i in groups.admit(id_high, id_low, last, keys)]


def names(groups: ResidentGroups) -> list[str]:
    found = [keys.column(0).to_pylist() for _, keys in groups.image(0, ID_HIGH_END)]
    return sorted(name for part in found for name in part)


def make(folder: Path, total: int = 1 << 22) -> ResidentGroups:
    arena = Arena.create(str(folder), Budget(total).account("groups"))
    return ResidentGroups(LAYOUT, CODEC, arena)


@given(st.lists(st.lists(st.integers(0, 200), unique=True, max_size=60), max_size=8))
@settings(max_examples=25)
def test_parity_groups_that_come_and_go_beside_a_set(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[list[int]]
) -> None:
    groups = make(tmp_path_factory.mktemp("groups"))
    known: set[int] = set()
    for step, numbers in enumerate(drawn):
        keys = keys_of(numbers)
        fresh = admit(groups, keys)
        assert [numbers[i] for i in fresh] == [n for n in numbers if n not in known]
        known |= set(numbers)
        gone = numbers[:: 1 + step % 3]
        if gone:
            table = np.zeros((len(gone), LAYOUT.entry_width), dtype=np.int64)
            table[:, 0] = keys_of(gone).column(ID_HIGH_COLUMN).to_numpy().view(np.int64)
            table[:, 1] = keys_of(gone).column(ID_LOW_COLUMN).to_numpy().view(np.int64)
            slots = groups.locate(table)
            assert groups.keys(slots).column(0).to_pylist() == [str(n) for n in gone]
            groups.release(slots)
            known -= set(gone)
        assert len(groups) == len(known)
        assert names(groups) == sorted(map(str, known))


def test_an_image_gives_back_the_groups_it_was_made_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IMAGE_CHUNK", 7)
    groups = make(tmp_path)
    admit(groups, keys_of(list(range(100))), pane=3)
    groups.rows[:, FIELDS] = np.arange(100)
    chunks = list(groups.image(0, ID_HIGH_END))
    assert len(chunks) == 15
    other = make(tmp_path)
    other.load(chunks)
    before = {tuple(row) for row in groups.rows.tolist()}
    assert {tuple(row) for row in other.rows.tolist()} == before
    assert names(other) == names(groups)
    halves = [list(groups.image(0, 1 << 63)), list(groups.image(1 << 63, ID_HIGH_END))]
    sizes = [sum(len(rows) for rows, _ in half) for half in halves]
    assert sum(sizes) == 100
    assert min(sizes) > 20


def test_rows_of_a_snapshot_are_filled_up_with_the_next_suffix_and_back(tmp_path: Path) -> None:
    groups = make(tmp_path)
    admit(groups, keys_of([1, 2, 3]), pane=3)
    groups.rows[:, FIELDS] = [7, 8, 9]
    layout = SlidingLayout(LAYOUT.fields)
    arena = Arena.create(str(tmp_path), Budget(1 << 20).account("groups"))
    other = ResidentGroups(layout, CODEC, arena)
    other.load(groups.image(0, ID_HIGH_END))
    behind = layout.group_identity[LAYOUT.group_width :].tolist()
    assert other.rows.tolist() == [[*row, *behind] for row in groups.rows.tolist()]


def test_bounded_a_refused_admission_changes_nothing(tmp_path: Path) -> None:
    groups = make(tmp_path, total=64 * 1024)
    admit(groups, keys_of(list(range(50))))
    before = names(groups)
    for width in (1, 400):
        with pytest.raises(Refused):
            admit(groups, keys_of(list(range(40, 2000)), width))
        assert len(groups) == 50
        assert names(groups) == before
    assert admit(groups, keys_of([49, 50])) == [1]


def test_cleared_groups_give_their_memory_back(tmp_path: Path) -> None:
    budget = Budget(1 << 22)
    arena = Arena.create(str(tmp_path), budget.account("groups"))
    groups = ResidentGroups(LAYOUT, CODEC, arena)
    admit(groups, keys_of(list(range(5000)), 20))
    held = budget.held
    groups.clear()
    assert len(groups) == 0
    assert budget.held < held // 50
    assert admit(groups, keys_of([1])) == [0]


def test_keys_of_groups_that_come_many_times_are_looked_up_once(tmp_path: Path) -> None:
    groups = make(tmp_path)
    admit(groups, keys_of([5, 6, 7]))
    groups.release(np.array([1]))
    few, many = np.array([2, 0, 1]), np.array([2, 0, 1] * 4)
    expected = ["7", "5", None]
    assert groups.keys(few).column(0).to_pylist() == expected
    assert groups.keys(many).column(0).to_pylist() == 4 * expected
    with mock.patch.object(groups._keys, "take", wraps=groups._keys.take) as take:
        groups.keys(many)
    assert [len(asked.args[0]) for asked in take.call_args_list] == [3]


def test_a_slice_of_an_unknown_group_is_refused(tmp_path: Path) -> None:
    groups = make(tmp_path)
    with pytest.raises(CheckpointError, match="groups that the checkpoint does not know"):
        groups.locate(np.zeros((1, LAYOUT.entry_width), dtype=np.int64))


def test_groups_without_keys_are_one_group(tmp_path: Path) -> None:
    codec = KeyCodec(pa.schema([]))
    arena = Arena.create(str(tmp_path), Budget(1 << 20).account("groups"))
    groups = ResidentGroups(LAYOUT, codec, arena)
    ids = pa.Table.from_arrays(
        [pa.array([5], pa.uint64()), pa.array([6], pa.uint64()), pa.array([0])],
        schema=identity_schema(pa.schema([])),
    )
    assert admit(groups, ids) == [0]
    ((rows, keys),) = groups.image(0, ID_HIGH_END)
    assert (len(rows), keys.num_rows, keys.num_columns) == (1, 1, 0)
