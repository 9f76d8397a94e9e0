from __future__ import annotations

import errno
import os
import pickle
import random
from pathlib import Path

import pytest

from icestream.core.errors import DefinitionError, StorageError
from icestream.state.files import LocalFiles
from icestream.state.stores import copies
from icestream.state.stores.bucket import CHUNK, REQUESTS
from icestream.state.stores.copies import PAGE, LocalCopies
from icestream.state.stores.files import StoreFiles, files_at, store_scheme
from tests.fixtures.object_store import in_memory

SIZES = (0, 1, PAGE - 1, PAGE, PAGE + 1, CHUNK, 2 * CHUNK + 5)


@pytest.fixture
def root(tmp_path: Path) -> str:
    return f"memory://bucket{tmp_path}"


def files_in(folder: Path, limit: int = copies.LIMIT) -> StoreFiles:
    return StoreFiles(copies=str(folder), limit=limit, connect=in_memory)


def content_of(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def write(files: StoreFiles, path: str, data: bytes, step: int = PAGE) -> None:
    file = files.create(path)
    for first in range(0, len(data), step):
        file.write(data[first : first + step])
    file.sync()
    file.close()


@pytest.mark.parametrize("size", SIZES)
def test_files_in_a_store(root: str, tmp_path: Path, size: int) -> None:
    data = content_of(size)
    write(files_in(tmp_path / "a"), f"{root}/x", data, PAGE - 7 if size < CHUNK else PAGE)
    for folder in ("a", "b"):
        files = files_in(tmp_path / folder)
        REQUESTS.clear()
        opened = files.open(f"{root}/x")
        assert opened.size == size
        for first in (0, 3, PAGE - 2, CHUNK - 2, max(0, size - 1)):
            assert opened.read_at(first, 9) == data[first : first + 9]
        assert opened.read_at(0, size) == data
        assert opened.mapped(0) is None
        opened.close()
        copied = size and folder == "a"
        assert REQUESTS["get"] == (0 if copied else max(1, -(-size // CHUNK)))
        assert files.read(f"{root}/x") == data


def test_all_files_below_a_folder_of_a_store_are_found(root: str, tmp_path: Path) -> None:
    files = files_in(tmp_path)
    for name in ("b", "folder/inside", "folder/deep/er"):
        write(files, f"{root}/{name}", b"x")
    assert sorted(files.walk(root)) == ["b", "folder/deep/er", "folder/inside"]
    assert list(files.walk(f"{root}/b")) == list(files.walk(f"{root}/nothing")) == []


def test_a_file_is_read_before_it_is_synced(root: str, tmp_path: Path) -> None:
    files, data = files_in(tmp_path), content_of(CHUNK + 10)
    file = files.create(f"{root}/x")
    file.write(data)
    opened = files.open(f"{root}/x")
    assert opened.size == len(data)
    assert opened.read_at(CHUNK - 5, 100) == data[CHUNK - 5 :]
    file.close()
    assert not files.list(root)
    files.sync_files([f"{root}/x"])
    assert files.list(root) == ["x"]
    assert opened.read_at(CHUNK - 5, 100) == data[CHUNK - 5 :]
    assert files.open(f"{root}/x").read_at(0, 5) == data[:5]


def test_a_file_that_is_removed_before_it_is_synced_was_never_there(
    root: str, tmp_path: Path
) -> None:
    files = files_in(tmp_path)
    file = files.create(f"{root}/x")
    file.write(b"x")
    REQUESTS.clear()
    files.unlink(f"{root}/x")
    file.close()
    assert not REQUESTS
    assert not files.exists(f"{root}/x")
    assert not list(tmp_path.rglob("new-*/*"))


@pytest.mark.parametrize("place", [0, PAGE, 2 * PAGE + 3, -30, -20, -1])
def test_a_damaged_copy_is_fetched_again(root: str, tmp_path: Path, place: int) -> None:
    files, data = files_in(tmp_path), content_of(3 * PAGE)
    write(files, f"{root}/x", data)
    (copy,) = tmp_path.glob("*.0")
    damaged = bytearray(copy.read_bytes())
    damaged[place] ^= 1
    copy.write_bytes(damaged)
    REQUESTS.clear()
    opened = files.open(f"{root}/x")
    assert b"".join(opened.read_at(first, 1000) for first in range(0, 3 * PAGE, 1000)) == data
    assert REQUESTS["get"] == 1


def test_a_copy_of_another_object_is_no_copy(root: str, tmp_path: Path) -> None:
    files = files_in(tmp_path)
    write(files, f"{root}/x", b"this")
    (one,) = tmp_path.glob("*.0")
    write(files, f"{root}/y", b"that")
    (two,) = set(tmp_path.glob("*.0")) - {one}
    two.write_bytes(one.read_bytes())
    assert files.open(f"{root}/y").read_at(0, 4) == b"that"


def test_bounded_copies_on_the_local_disk(root: str, tmp_path: Path) -> None:
    limit = 40 * PAGE
    files = files_in(tmp_path, limit)
    for number in range(100):
        write(files, f"{root}/{number}", content_of(PAGE))
        assert sum(each.stat().st_size for each in tmp_path.glob("*.*")) <= limit * 17 / 16 + PAGE
    assert len(list(tmp_path.glob("*.*"))) >= 35
    REQUESTS.clear()
    assert files.open(f"{root}/99").size == PAGE
    assert not REQUESTS
    assert files.open(f"{root}/0").size == PAGE
    assert REQUESTS["get"] == 1


def test_copies_need_no_space(root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(files_in(tmp_path / "a"), f"{root}/x", content_of(PAGE))

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    opened = files_in(tmp_path / "b").open(f"{root}/x")
    assert opened.read_at(5, 100) == content_of(PAGE)[5:105]
    with pytest.raises(StorageError, match="free space"):
        write(files_in(tmp_path / "b"), f"{root}/y", b"y")


def test_what_a_dead_process_was_writing_is_removed(tmp_path: Path) -> None:
    (tmp_path / "new-999999999").mkdir()
    alive = LocalCopies(str(tmp_path)).begin()
    LocalCopies(str(tmp_path)).remove_unfinished()
    assert [str(each) for each in tmp_path.iterdir()] == [alive]


def test_files_travel_to_tasks(root: str, tmp_path: Path) -> None:
    write(files_in(tmp_path), f"{root}/x", b"x")
    travelled: StoreFiles = pickle.loads(pickle.dumps(files_in(tmp_path)))
    assert travelled.open(f"{root}/x").read_at(0, 1) == b"x"


def test_locations_have_their_files() -> None:
    assert isinstance(files_at("/a/folder"), LocalFiles)
    assert isinstance(files_at("s3://bucket/x"), StoreFiles)
    assert store_scheme("az://container") == "az"
    assert store_scheme("hdfs://name/x") is None
    with pytest.raises(DefinitionError, match="hdfs://name"):
        files_at("hdfs://name/x")
