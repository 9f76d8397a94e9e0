"""Mappings that outlive a version, and files that change hands meanwhile."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from icestream.state import arena as arena_module
from icestream.state.arena import PAGE, Arena, sweep
from icestream.state.budget import Account, Budget
from icestream.state.mapping_cache import LARGE as LARGE_BYTES
from icestream.state.mapping_cache import MappingCache

#: rows of eight bytes of a large array
LARGE = LARGE_BYTES // 8


@pytest.fixture(autouse=True)
def kept() -> Iterator[MappingCache]:
    with mock.patch.object(arena_module, "KEPT", MappingCache()) as mine:
        yield mine


def account() -> Account:
    return Budget(1 << 30).account("arena")


def released(parent: Path, name: str, arrays: int = 1) -> None:
    arena = Arena.create(str(parent), account())
    for number in range(arrays):
        arena.array(f"a{number}", np.int64, capacity=LARGE).view[:] = number + 1
    arena.array("small", np.int64, capacity=1).view[:] = 7
    arena.release(name)


def claimed(parent: Path, name: str) -> Arena:
    arena = Arena.claim(str(parent), name, account())
    assert arena is not None
    return arena


def test_a_mapping_is_used_again_by_whoever_released_it(tmp_path: Path, kept: MappingCache) -> None:
    released(tmp_path, "v1")
    assert len(kept) == 2
    with mock.patch("mmap.mmap", wraps=mmap.mmap) as mapping:
        arena = claimed(tmp_path, "v1")
        assert mapping.call_count == 0
    assert len(kept) == 0
    array = arena.array("a0", np.int64)
    assert (array.view == 1).all()
    array.resize(2 * LARGE)
    assert (array.view[LARGE:] == 0).all()
    array.view[:] = 2
    arena.release("v2")
    again = claimed(tmp_path, "v2").array("a0", np.int64)
    assert again.bytes == 2 * LARGE_BYTES
    assert (again.view == 2).all()
    again.resize(0)
    again.resize(LARGE)
    assert (again.view == 0).all()


def _works(parent: str, rows: int) -> None:
    arena = Arena.claim(parent, "v1", account())
    assert arena is not None
    array = arena.array("a0", np.int64)
    array.resize(rows)
    array.view[:] = rows
    arena.release("v2")
    (Path(parent) / "v2").rename(Path(parent) / "v1")


@pytest.mark.parametrize("rows", [LARGE // 2, LARGE, 2 * LARGE])
def test_a_kept_mapping_shows_what_others_wrote(
    tmp_path: Path, kept: MappingCache, rows: int
) -> None:
    """Another process shrinks, rewrites or grows the file and leaves it under the same name."""
    released(tmp_path, "v1")
    process = multiprocessing.get_context("fork").Process(target=_works, args=(str(tmp_path), rows))
    process.start()
    process.join()
    assert len(kept) == 2
    array = claimed(tmp_path, "v1").array("a0", np.int64)
    assert array.view.tolist() == [rows] * rows


def test_a_mapping_serves_only_the_file_it_is_of(tmp_path: Path, kept: MappingCache) -> None:
    released(tmp_path, "v1")
    other = tmp_path / "other"
    shutil.copytree(tmp_path / "v1", other)
    np.full(LARGE, 9).tofile(other / "a0.array")
    shutil.rmtree(tmp_path / "v1")
    other.rename(tmp_path / "v1")
    assert len(kept) == 2
    array = claimed(tmp_path, "v1").array("a0", np.int64)
    assert (array.view == 9).all()


def test_mappings_of_arenas_that_are_gone_are_let_go(tmp_path: Path, kept: MappingCache) -> None:
    released(tmp_path, "v1")
    released(tmp_path, "v2")
    assert len(kept) == 4
    (tmp_path / "v1").rename(tmp_path / "working.elsewhere")
    kept.prune()
    assert len(kept) == 2
    released(tmp_path, "v3")
    sweep(str(tmp_path), {"v3"})
    assert len(kept) == 2
    claimed(tmp_path, "v3").discard()
    assert len(kept) == 0


def test_bounded_few_mappings_are_kept(tmp_path: Path) -> None:
    few = MappingCache(most=3)  # one of them for large arrays alone
    with mock.patch.object(arena_module, "KEPT", few):
        for number, arrays in enumerate((2, 2, 1)):
            released(tmp_path, f"v{number}", arrays)
        assert len(few) == 3
        for number, arrays in enumerate((2, 2, 1)):
            arena = claimed(tmp_path, f"v{number}")
            assert arena.bytes == arrays * LARGE_BYTES + PAGE
            assert (arena.array(f"a{arrays - 1}", np.int64).view == arrays).all()


def test_folders_are_not_checked_for_every_arena(tmp_path: Path) -> None:
    few = MappingCache(most=32)
    with mock.patch.object(arena_module, "KEPT", few), mock.patch("os.path.isdir") as checks:
        for number in range(32):
            released(tmp_path, f"v{number}")
        assert len(few) == 32
        assert checks.call_count < 4 * 32


def test_bounded_a_process_opens_few_files_for_arenas(tmp_path: Path) -> None:
    """`select` knows the first 1,024 files, and py4j uses it for the callbacks of queries."""
    before = len(os.listdir("/proc/self/fd"))
    with mock.patch.object(arena_module, "KEPT", MappingCache()):
        for number in range(150):
            released(tmp_path, f"v{number}", 9)
        assert len(os.listdir("/proc/self/fd")) - before < 900
