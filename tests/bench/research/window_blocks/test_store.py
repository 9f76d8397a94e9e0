from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.research.window_blocks.layout import PAGE, BlockLayout, Frames
from bench.research.window_blocks.store import BlockStore, LogStore, SlotStore, move_in, move_out
from icestream.core.errors import DamageError, StorageError

LAYOUT = BlockLayout((("time", "i8"),), PAGE)
MakeStore = Callable[[str], BlockStore]


def log(folder: str) -> BlockStore:
    return LogStore(folder, PAGE, 3 * PAGE)


def slots(folder: str) -> BlockStore:
    return SlotStore(folder, PAGE)


@pytest.mark.parametrize("make", [log, slots])
@given(calls=st.lists(st.tuples(st.sampled_from("wfr"), st.integers(0, 6)), max_size=40))
@settings(max_examples=40)
def test_oracle_stores_answer_as_a_dict(
    make: MakeStore, calls: list[tuple[str, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = make(str(tmp_path_factory.mktemp("store")))
    frames, known = Frames(LAYOUT, 2), dict[int, int]()
    for value, (call, block) in enumerate(calls):
        assert (block in store) == (block in known)
        if call == "w" and block not in known:
            frames.columns[0][0] = value
            move_out(frames, 0, block, store.assign(block))
            known[block] = value
        elif call == "f" and block in known:
            store.forget(block)
            del known[block]
        elif call == "r" and block in known:
            move_in(frames, 1, block, store.find(block))
            assert (frames.columns[0][1] == known[block]).all()
    store.close()
    store.close()


def test_bounded_a_log_gives_space_back(tmp_path: Path) -> None:
    store, frames = LogStore(str(tmp_path), PAGE, 4 * PAGE), Frames(LAYOUT, 1)
    for block in range(41):
        move_out(frames, 0, block, store.assign(block))
        if block >= 6:
            store.forget(block - 6)
    assert store.file_bytes == (41 - 32) * PAGE
    store._removals.close()
    assert len(list(tmp_path.iterdir())) == 3
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == store.file_bytes
    store.close()
    assert not list(tmp_path.iterdir())


def test_bounded_slots_are_used_again(tmp_path: Path) -> None:
    store, frames = SlotStore(str(tmp_path), PAGE), Frames(LAYOUT, 1)
    for block in range(41):
        move_out(frames, 0, block, store.assign(block))
        if block >= 6:
            store.forget(block - 6)
    assert store.file_bytes == 7 * PAGE
    assert store.index_bytes < 1_000
    store.close()


def test_slots_are_taken_in_order_of_release(tmp_path: Path) -> None:
    store = SlotStore(str(tmp_path), PAGE)
    for block in range(4):
        store.assign(block)
    for block in (2, 0, 3):
        store.forget(block)
    assert [store.assign(block).offset // PAGE for block in (4, 5, 6, 7)] == [2, 0, 3, 4]
    #   block 8 takes the place of block 5, as a victim takes that of the block it makes room for
    assert store.assign(8, instead=5).offset == 0
    assert 5 not in store
    store.close()


@pytest.mark.parametrize("make", [log, slots])
def test_a_changed_block_is_damage(make: MakeStore, tmp_path: Path) -> None:
    store, frames = make(str(tmp_path)), Frames(LAYOUT, 1)
    move_out(frames, 0, 3, store.assign(3))
    (path,) = tmp_path.iterdir()
    data = bytearray(path.read_bytes())
    data[100] ^= 4
    path.write_bytes(data)
    with pytest.raises(DamageError, match="window block 3"):
        move_in(frames, 0, 3, store.find(3))
    os.truncate(path, 50)
    with pytest.raises(DamageError, match="ends after"):
        move_in(frames, 0, 3, store.find(3))
    store.close()


def test_refusals_of_the_disk_name_path_and_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, frames = log(str(tmp_path)), Frames(LAYOUT, 1)

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(StorageError, match="free space"):
        move_out(frames, 0, 0, store.assign(0))
    store.close()


def test_a_file_system_without_direct_transfers_serves_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def no_direct(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "not here")
        return opened(path, flags, mode)

    monkeypatch.setattr(os, "open", no_direct)
    store, frames = slots(str(tmp_path)), Frames(LAYOUT, 2)
    assert not store.direct
    frames.columns[0][0] = 9
    move_out(frames, 0, 0, store.assign(0))
    move_in(frames, 1, 0, store.find(0))
    assert (frames.columns[0][1] == 9).all()
    store.close()


def test_what_an_earlier_store_left_is_replaced(tmp_path: Path) -> None:
    first = slots(str(tmp_path))
    second = slots(str(tmp_path))
    frames = Frames(LAYOUT, 1)
    move_out(frames, 0, 0, second.assign(0))
    move_in(frames, 0, 0, second.find(0))
    second.close()
    first.close()
