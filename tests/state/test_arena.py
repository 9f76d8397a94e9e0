from __future__ import annotations

import errno
import json
import multiprocessing
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from icestream.core.errors import StorageError
from icestream.state import arena as arena_module
from icestream.state.arena import PAGE, Arena, sweep
from icestream.state.budget import Account, Budget, Refused


def account(total: int = 1 << 30) -> Account:
    return Budget(total).account("arena")


def check_books(arena: Arena, holder: Account) -> None:
    assert arena.bytes == holder.held
    assert holder.held == holder.budget.held


def released(parent: Path, name: str = "shard-0.v1.a") -> str:
    arena = Arena.create(str(parent), account())
    arena.array("counts", np.int64, capacity=10).view[:3] = [1, 2, 3]
    arena.header["version"] = 1
    arena.release(name)
    return name


def test_an_arena_comes_back_as_it_was_released(tmp_path: Path) -> None:
    first = Arena.create(str(tmp_path), account())
    first.header = {"version": 7, "names": ["a", "b"], "horizon": -(2**63), "none": None}
    first.array("counts", np.int64, capacity=5).view[:5] = [1, 2, 3, 4, 5]
    first.array("rows", np.float64, width=3, capacity=2).view[1] = [1.5, 2.5, np.nan]
    first.array("empty", np.uint8)
    Path(first.path("cold.image")).write_bytes(b"cold")
    first.release("shard-0.v7.x")

    holder = account()
    again = Arena.claim(str(tmp_path), "shard-0.v7.x", holder)
    assert again is not None
    check_books(again, holder)
    assert again.header == {"version": 7, "names": ["a", "b"], "horizon": -(2**63), "none": None}
    assert again.array("counts", np.int64).view[:6].tolist() == [1, 2, 3, 4, 5, 0]
    rows = again.array("rows", np.dtype(np.float64), width=3)
    assert rows.view.shape == (PAGE // 24, 3)
    np.testing.assert_array_equal(rows.view[1], [1.5, 2.5, np.nan])
    assert again.array("empty", np.uint8).capacity == 0
    assert Path(again.path("cold.image")).read_bytes() == b"cold"


def test_capacities_are_whole_pages(tmp_path: Path) -> None:
    holder = account()
    arena = Arena.create(str(tmp_path), holder)
    array = arena.array("rows", np.int64, width=3, capacity=1)
    assert (array.capacity, array.bytes) == (PAGE // 24, PAGE)
    array.resize(array.capacity)
    assert (array.capacity, array.bytes) == (PAGE // 24, PAGE)
    array.resize(array.capacity + 1)
    assert (array.capacity, array.bytes) == (2 * PAGE // 24, 2 * PAGE)
    assert array.view.flags.c_contiguous
    assert array.view.flags.writeable
    assert array.view.ctypes.data % PAGE == 0
    array.resize(0)
    assert (array.capacity, array.bytes, array.view.shape) == (0, 0, (0, 3))
    check_books(arena, holder)


def test_opening_an_array_ensures_its_capacity_but_never_shrinks_it(tmp_path: Path) -> None:
    arena = Arena.create(str(tmp_path), account())
    array = arena.array("counts", np.int64, capacity=2000)
    assert arena.array("counts", np.int64) is array
    assert arena.array("counts", np.int64, capacity=10).capacity >= 2000
    assert arena.array("counts", np.int64, capacity=5000).capacity >= 5000


def test_new_bytes_are_zero_also_after_shrinking(tmp_path: Path) -> None:
    array = Arena.create(str(tmp_path), account()).array("counts", np.int64, capacity=1)
    array.view[:] = -1
    array.resize(2000)
    assert (array.view[:512] == -1).all()
    assert (array.view[512:] == 0).all()
    array.view[:] = -1
    array.resize(512)
    array.resize(2000)
    assert (array.view[:512] == -1).all()
    assert (array.view[512:] == 0).all()


def test_a_row_cut_by_the_last_page_comes_back_as_zeros(tmp_path: Path) -> None:
    """A page holds 204.8 rows of 20 bytes: row 204 lies across its end."""
    array = Arena.create(str(tmp_path), account()).array("rows", np.int32, width=5, capacity=205)
    array.view[:] = -1
    array.resize(204)
    assert array.capacity == 204
    array.resize(205)
    assert (array.view[:204] == -1).all()
    assert (array.view[204:] == 0).all()


def test_a_refused_resize_changes_nothing(tmp_path: Path) -> None:
    holder = account(3 * PAGE)
    arena = Arena.create(str(tmp_path), holder)
    array = arena.array("counts", np.int64, capacity=1024)
    array.view[:] = np.arange(1024)
    with pytest.raises(Refused):
        array.resize(2048)
    with pytest.raises(Refused):
        arena.array("more", np.int64, capacity=1024)
    assert array.view.tolist() == list(range(1024))
    assert os.path.getsize(array.path) == 2 * PAGE
    check_books(arena, holder)
    assert arena.array("more", np.int64, capacity=512).capacity == 512


def test_a_full_disk_is_a_storage_error_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = account()
    arena = Arena.create(str(tmp_path), holder)
    array = arena.array("counts", np.int64, capacity=512)
    array.view[:] = np.arange(512)

    def full(handle: int, offset: int, length: int) -> None:
        os.ftruncate(handle, offset + length // 2)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        with pytest.raises(StorageError, match=r"counts\.array: No space left.*free space"):
            array.resize(4096)
        with pytest.raises(StorageError):
            arena.array("more", np.int64, capacity=1)
    assert array.view.tolist() == list(range(512))
    assert os.path.getsize(array.path) == PAGE
    check_books(arena, holder)
    array.resize(4096)
    assert (array.view[512:] == 0).all()


def test_a_kept_view_stays_coherent_when_the_array_grows(tmp_path: Path) -> None:
    array = Arena.create(str(tmp_path), account()).array("counts", np.int64, capacity=512)
    kept = array.view
    array.resize(5000)
    array.view[3] = 33
    assert kept[3] == 33


def test_a_kept_view_refuses_shrinking_and_changes_nothing(tmp_path: Path) -> None:
    holder = account()
    arena = Arena.create(str(tmp_path), holder)
    array = arena.array("counts", np.int64, capacity=1024)
    kept = array.view[1000:]
    for smaller in (0, 512):
        with pytest.raises(BufferError, match="drop the view"):
            array.resize(smaller)
        assert array.capacity == 1024
        check_books(arena, holder)
    kept[0] = 1
    assert array.view[1000] == 1
    del kept
    array.resize(512)
    assert os.path.getsize(array.path) == PAGE
    check_books(arena, holder)


def test_an_array_of_another_shape_is_refused(tmp_path: Path) -> None:
    arena = Arena.create(str(tmp_path), account())
    arena.array("counts", np.int64, capacity=1)
    for dtype, width in ((np.uint64, 1), (np.int64, 2)):
        with pytest.raises(ValueError, match="discard the arena"):
            arena.array("counts", dtype, width)
    with pytest.raises(ValueError, match="plain numbers"):
        arena.array("objects", np.dtype(object))


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "working.1", "header.json", "x.array"])
def test_names_that_leave_the_arena_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        Arena.create(str(tmp_path), account()).path(name)


def test_a_released_arena_gives_its_bytes_back_and_takes_no_calls(tmp_path: Path) -> None:
    holder = account()
    arena = Arena.create(str(tmp_path), holder)
    arena.array("counts", np.int64, capacity=1000)
    arena.release("shard-0.v1.a")
    check_books(arena, holder)
    assert holder.held == 0
    with pytest.raises(ValueError, match="released"):
        arena.array("counts", np.int64)
    with pytest.raises(ValueError, match="released"):
        arena.release("shard-0.v1.b")
    arena.discard()
    assert os.listdir(tmp_path) == ["shard-0.v1.a"]


def test_a_name_is_released_once_and_the_loser_can_still_discard(tmp_path: Path) -> None:
    name = released(tmp_path)
    arena = Arena.create(str(tmp_path), account())
    with pytest.raises(FileExistsError):
        arena.release(name)
    arena.discard()
    claimed = Arena.claim(str(tmp_path), name, account())
    assert claimed is not None
    assert claimed.array("counts", np.int64).view[:3].tolist() == [1, 2, 3]


def test_a_header_that_is_not_json_fails_before_anything_moves(tmp_path: Path) -> None:
    arena = Arena.create(str(tmp_path), account())
    arena.header["bad"] = object()
    with pytest.raises(TypeError):
        arena.release("shard-0.v1.a")
    del arena.header["bad"]
    arena.release("shard-0.v1.a")


def test_discard_removes_the_folder_and_gives_the_bytes_back(tmp_path: Path) -> None:
    holder = account()
    arena = Arena.create(str(tmp_path), holder)
    arena.array("counts", np.int64, capacity=1000)
    arena.discard()
    arena.discard()
    check_books(arena, holder)
    assert os.listdir(tmp_path) == []


def test_claiming_what_is_missing_gives_none(tmp_path: Path) -> None:
    holder = account()
    assert Arena.claim(str(tmp_path), "shard-9.v1.a", holder) is None
    assert Arena.claim(str(tmp_path / "nowhere"), "shard-9.v1.a", holder) is None
    assert holder.held == 0


@pytest.mark.parametrize("damage", ["cut", "json", "type", "short", "gone", "format", "dtype"])
def test_an_unreadable_arena_is_not_claimed(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / released(tmp_path)
    header = folder / "header.json"
    content = json.loads(header.read_text())
    if damage == "cut":
        header.write_text(header.read_text()[:-5])
    elif damage == "json":
        header.write_bytes(b"\xff\xfe")
    elif damage == "type":
        header.write_text("[]")
    elif damage == "short":
        os.truncate(folder / "counts.array", 100)
    elif damage == "gone":
        os.unlink(folder / "counts.array")
    elif damage == "format":
        header.write_text(json.dumps({**content, "format": 99}))
    else:
        header.write_text(json.dumps({**content, "arrays": {"counts": ["nonsense", 1, PAGE]}}))
    holder = account()
    assert Arena.claim(str(tmp_path), folder.name, holder) is None
    assert holder.held == 0


def test_an_arena_of_an_earlier_boot_is_not_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = released(tmp_path)
    monkeypatch.setattr(arena_module, "_boot_id", lambda: "another")
    assert Arena.claim(str(tmp_path), name, account()) is None


def test_a_refused_claim_leaves_the_arena_in_place(tmp_path: Path) -> None:
    name = released(tmp_path)
    small = account(100)
    with pytest.raises(Refused):
        Arena.claim(str(tmp_path), name, small)
    assert small.held == 0
    assert Arena.claim(str(tmp_path), name, account()) is not None


def test_only_one_of_many_claims_succeeds(tmp_path: Path) -> None:
    name, holder = released(tmp_path), account()
    claims = [Arena.claim(str(tmp_path), name, holder) for _ in range(3)]
    assert [claim is not None for claim in claims] == [True, False, False]
    assert holder.held == PAGE


def test_only_one_of_many_claims_at_once_succeeds(tmp_path: Path) -> None:
    for attempt in range(30):
        name, holder = released(tmp_path, f"shard-0.v{attempt}.a"), account()
        with ThreadPoolExecutor(4) as pool:
            futures = [pool.submit(Arena.claim, str(tmp_path), name, holder) for _ in range(4)]
            claims = [future.result() for future in futures]
        assert sum(claim is not None for claim in claims) == 1
        assert holder.held == PAGE


def _die_while_working(parent: str) -> None:
    arena = Arena.claim(parent, "shard-0.v1.a", account())
    assert arena is not None
    arena.array("counts", np.int64).view[:] = -1
    os._exit(1)


def test_crash_before_release_leaves_nothing_to_claim(tmp_path: Path) -> None:
    name = released(tmp_path)
    process = multiprocessing.get_context("fork").Process(
        target=_die_while_working, args=(str(tmp_path),)
    )
    process.start()
    process.join()
    assert Arena.claim(str(tmp_path), name, account()) is None
    assert len(sweep(str(tmp_path), set())) == 1
    assert os.listdir(tmp_path) == []


def test_sweep_removes_arenas_that_are_not_named_and_nothing_else(tmp_path: Path) -> None:
    old, named = released(tmp_path, "shard-0.v1.a"), released(tmp_path, "shard-0.v2.b")
    working, live = (Arena.create(str(tmp_path), account()) for _ in range(2))
    (tmp_path / "exchange").mkdir()
    (tmp_path / "note.txt").write_text("mine")
    assert sweep(str(tmp_path), {named, live.name}) == sorted([old, working.name])
    assert set(os.listdir(tmp_path)) == {named, live.name, "exchange", "note.txt"}
    assert sweep(str(tmp_path / "nowhere"), set()) == []


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3000)), max_size=12),
    st.integers(1, 8),
)
def test_oracle_any_sequence_of_resizes_keeps_content_and_books(
    tmp_path: Path, resizes: list[tuple[int, int]], pages: int
) -> None:
    holder = account(pages * PAGE)
    arena = Arena.create(str(tmp_path), holder)
    arrays = [arena.array(f"a{w}", np.int32, width=w) for w in (1, 2, 5)]
    content = [np.zeros((0, w), np.int32) for w in (1, 2, 5)]
    for index, capacity in resizes:
        array, old = arrays[index], content[index]
        others = holder.held - array.bytes
        if others + array.bytes_for(capacity) > pages * PAGE:
            with pytest.raises(Refused):
                array.resize(capacity)
        else:
            array.resize(capacity)
            assert capacity <= array.capacity
            fresh = np.zeros((array.capacity, array.width), np.int32)
            kept = min(len(old), array.capacity)
            fresh[:kept] = old[:kept]
            np.testing.assert_array_equal(array.view.reshape(fresh.shape), fresh)
            array.view[:] = index + capacity
            content[index] = array.view.reshape(fresh.shape).copy()
        check_books(arena, holder)
    for array, expected in zip(arrays, content, strict=True):
        np.testing.assert_array_equal(array.view.reshape(expected.shape), expected)
    arena.discard()
    assert holder.held == 0


def test_parts_of_an_arena_have_arrays_and_books_of_their_own(tmp_path: Path) -> None:
    def opened(arena: Arena, budget: Budget) -> list[Arena]:
        return [
            arena.part(scope, budget.part(scope, 5 * PAGE).account("groups"))
            for scope in ("1.", "10.")
        ]

    budget = Budget(20 * PAGE)
    arena = Arena.create(str(tmp_path), budget.account("whole"))
    arena.array("rows", np.int64, capacity=1)
    for number, part in enumerate(opened(arena, budget)):
        part.array("rows", np.int64, capacity=600).view[:] = number
        part.header["number"] = number
        with pytest.raises(Refused):
            part.array("rows", np.int64).resize(6 * PAGE)
    assert budget.holders() == {"1.": 2 * PAGE, "10.": 2 * PAGE, "whole": PAGE}
    arena.release("left")
    assert budget.held == 0

    again = Budget(20 * PAGE)
    claimed = Arena.claim(str(tmp_path), "left", again.account("whole"))
    assert claimed is not None
    for number, part in enumerate(opened(claimed, again)):
        assert part.header == {"number": number}
        assert part.bytes == 2 * PAGE
        assert (part.array("rows", np.int64).view == number).all()
        assert part.path("file") != claimed.path("file")
    assert again.holders() == {"1.": 2 * PAGE, "10.": 2 * PAGE, "whole": PAGE}
    claimed.discard()
    assert again.held == 0
