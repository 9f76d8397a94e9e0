from __future__ import annotations

import errno
import os
import pickle
import threading
from pathlib import Path

import pytest

from icestream.core.errors import StorageError
from icestream.state.files import Files, LocalFiles
from icestream.state.stores.files import StoreFiles
from icestream.testing.simulated_disk import Crash, CrashMode, SimulatedDisk
from tests.fixtures.object_store import in_memory


@pytest.fixture(params=["local", "simulated", "store"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    if request.param == "store":
        return StoreFiles(copies=f"{tmp_path}/copies", connect=in_memory)
    return LocalFiles() if request.param == "local" else SimulatedDisk()


@pytest.fixture
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    chosen = request.getfixturevalue("files") if "files" in request.fixturenames else None
    return f"memory://bucket{tmp_path}" if isinstance(chosen, StoreFiles) else str(tmp_path)


def write(files: Files, path: str, *parts: bytes) -> None:
    file = files.create(path)
    for part in parts:
        file.write(part)
    file.sync()
    file.close()
    file.close()


def test_a_file_reads_back_what_was_written_and_its_folders_are_made(
    files: Files, root: str
) -> None:
    path = f"{root}/a/b/c"
    file = files.create(path)
    file.write(b"one ")
    file.write(bytearray(b"two "))
    file.write(memoryview(b"xthree")[1:])
    file.sync()
    file.close()
    assert files.read(path) == b"one two three"
    assert files.exists(path)
    assert files.exists(f"{root}/a")


def test_create_is_exclusive(files: Files, root: str) -> None:
    if isinstance(files, StoreFiles):
        pytest.skip("names of objects that are created contain a random number")
    write(files, f"{root}/a", b"first")
    with pytest.raises(FileExistsError):
        files.create(f"{root}/a")
    assert files.read(f"{root}/a") == b"first"


def test_read_at_returns_what_is_there(files: Files, root: str) -> None:
    write(files, f"{root}/a", b"0123456789")
    file = files.open(f"{root}/a")
    assert file.size == 10
    assert file.read_at(2, 3) == b"234"
    assert file.read_at(8, 5) == b"89"
    assert file.read_at(10, 5) == b""
    assert file.read_at(50, 5) == b""
    assert file.read_at(0, 0) == b""
    file.close()
    file.close()


def test_an_open_file_stays_readable_when_unlinked(files: Files, root: str) -> None:
    write(files, f"{root}/a", b"still here")
    file = files.open(f"{root}/a")
    files.unlink(f"{root}/a")
    assert not files.exists(f"{root}/a")
    assert file.read_at(0, 10) == b"still here"
    file.close()


def test_a_closed_file_refuses_to_be_read(files: Files, root: str) -> None:
    write(files, f"{root}/a", b"gone")
    file = files.open(f"{root}/a")
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.read_at(0, 1)


def test_a_missing_file_is_not_found(files: Files, root: str) -> None:
    with pytest.raises(FileNotFoundError):
        files.open(f"{root}/none")
    with pytest.raises(FileNotFoundError):
        files.read(f"{root}/none")
    with pytest.raises(FileNotFoundError):
        files.rename(f"{root}/none", f"{root}/other")
    files.unlink(f"{root}/none")
    assert not files.exists(f"{root}/none")
    assert files.list(f"{root}/none") == []


def test_rename_replaces_its_target(files: Files, root: str) -> None:
    write(files, f"{root}/a", b"new")
    write(files, f"{root}/b", b"old")
    files.rename(f"{root}/a", f"{root}/b")
    files.sync_folder(root)
    assert files.read(f"{root}/b") == b"new"
    assert files.list(root) == ["b"]


def test_list_is_sorted_and_hides_dot_files(files: Files, root: str) -> None:
    for name in ("b", "a", ".hidden", "folder/inside"):
        write(files, f"{root}/{name}", b"")
    assert files.list(root) == ["a", "b", "folder"]
    assert files.list(f"{root}/folder") == ["inside"]


def test_all_files_below_a_folder_are_found(files: Files, root: str) -> None:
    for name in ("b", ".hidden", "folder/inside", "folder/deep/er"):
        write(files, f"{root}/{name}", b"")
    assert sorted(files.walk(root)) == [".hidden", "b", "folder/deep/er", "folder/inside"]
    assert sorted(files.walk(f"{root}/folder")) == ["deep/er", "inside"]
    assert list(files.walk(f"{root}/b")) == list(files.walk(f"{root}/nothing")) == []


def test_put_is_exclusive_and_leaves_no_temporary(files: Files, root: str, tmp_path: Path) -> None:
    path = f"{root}/commits/7"
    assert files.put(path, b"winner")
    assert not files.put(path, b"loser")
    assert files.read(path) == b"winner"
    if isinstance(files, SimulatedDisk):
        assert list(files.files()) == [path]
    elif isinstance(files, LocalFiles):
        assert os.listdir(tmp_path / "commits") == ["7"]


def test_put_lets_one_of_many_threads_win(root: str) -> None:
    files, start = LocalFiles(), threading.Barrier(4)
    won: list[bytes] = []

    def compete(name: bytes) -> None:
        start.wait()
        if files.put(f"{root}/commits/1", name):
            won.append(name)

    threads = [threading.Thread(target=compete, args=(b"%d" % n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [files.read(f"{root}/commits/1")]
    assert os.listdir(f"{root}/commits") == ["1"]


def test_put_that_loses_the_race_says_so(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files = LocalFiles()
    files.put(f"{root}/1", b"winner")
    monkeypatch.setattr(LocalFiles, "exists", lambda self, path: False)
    assert not files.put(f"{root}/1", b"loser")
    assert files.read(f"{root}/1") == b"winner"
    assert os.listdir(root) == ["1"]


@pytest.mark.parametrize("mode", ["drop", "tear", "keep"])
def test_crash_at_any_step_of_put_leaves_all_or_nothing(mode: CrashMode) -> None:
    whole = SimulatedDisk()
    whole.put("commits/1", b"x" * 2000)
    outcomes = set()
    for step in range(1, whole.steps + 1):
        for seed in range(20):
            disk = SimulatedDisk(crash_at=step, tear=seed)
            with pytest.raises(Crash):
                disk.put("commits/1", b"x" * 2000)
            found = disk.after_crash(mode)
            survived = found.exists("commits/1")
            assert not survived or found.read("commits/1") == b"x" * 2000
            assert found.put("commits/1", b"y") is not survived
            outcomes.add(survived)
    assert outcomes == ({False} if mode == "drop" else {False, True})


def test_a_put_that_returned_survives_every_crash() -> None:
    disk = SimulatedDisk()
    disk.put("commits/1", b"kept")
    for seed in range(20):
        assert disk.after_crash("tear", tear=seed).files() == {"commits/1": b"kept"}
    assert disk.after_crash("drop").files() == {"commits/1": b"kept"}


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "free space"),
        (errno.EDQUOT, "quota"),
        (errno.EACCES, "grant"),
        (errno.EROFS, "read-only"),
        (errno.EIO, "check the disk"),
    ],
)
@pytest.mark.parametrize("call", ["open", "write", "fsync", "link"])
def test_refusals_of_the_disk_name_path_and_remedy(
    root: str, monkeypatch: pytest.MonkeyPatch, call: str, number: int, remedy: str
) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number))

    os.mkdir(f"{root}/commits")
    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        with pytest.raises(StorageError, match=remedy) as refused:
            LocalFiles().put(f"{root}/commits/1", b"data")
    assert f"{root}/commits/" in str(refused.value)
    assert os.listdir(f"{root}/commits") == []


def test_other_errors_of_the_system_pass_unchanged(root: str) -> None:
    write(LocalFiles(), f"{root}/file", b"")
    with pytest.raises(NotADirectoryError):
        LocalFiles().create(f"{root}/file/inside")


def test_new_folders_are_synced_into_their_parents(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = LocalFiles.sync_folder

    def note(self: LocalFiles, folder: str) -> None:
        synced.append(folder)
        real(self, folder)

    monkeypatch.setattr(LocalFiles, "sync_folder", note)
    LocalFiles().create(f"{root}/a/b/c").close()
    assert synced == [root, f"{root}/a"]
    LocalFiles().create(f"{root}/a/b/d").close()
    assert len(synced) == 2


def test_short_writes_and_reads_of_the_system_are_continued(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_write, real_pread = os.write, os.pread
    monkeypatch.setattr(os, "write", lambda fd, data: real_write(fd, bytes(data)[:3]))
    monkeypatch.setattr(os, "pread", lambda fd, n, at: real_pread(fd, min(n, 3), at))
    write(LocalFiles(), f"{root}/a", b"0123456789", b"abcd")
    assert LocalFiles().read(f"{root}/a") == b"0123456789abcd"
    file = LocalFiles().open(f"{root}/a")
    assert file.read_at(1, 8) == b"12345678"
    assert file.read_at(9, 80) == b"9abcd"
    file.close()


@pytest.mark.parametrize("count", [0, 1, 2, 40])
def test_files_are_synced_together_and_then_their_folders(
    root: str, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    paths = [f"{root}/{number % 2}/{number}" for number in range(count)]
    for path in paths:
        LocalFiles().create(path).close()
    synced: list[str] = []
    real = os.fsync

    def note(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    LocalFiles().sync_files(paths)
    assert sorted(synced[:count]) == sorted(paths)
    assert synced[count:] == [f"{root}/{number}" for number in range(min(count, 2))]


def test_a_disk_that_cannot_sync_one_of_many_files_names_it(root: str) -> None:
    write(LocalFiles(), f"{root}/a", b"there")
    with pytest.raises(FileNotFoundError, match=f"{root}/b"):
        LocalFiles().sync_files([f"{root}/a", f"{root}/b"])


@pytest.mark.parametrize("step", range(1, 6))
def test_crash_files_that_are_synced_together_survive_together(step: int) -> None:
    disk = SimulatedDisk()
    paths = ["x/a", "x/b", "y/c"]
    for path in paths:
        file = disk.create(path)
        file.write(b"data")
        file.close()
    disk.crash_at = disk.steps + step
    with pytest.raises(Crash):
        disk.sync_files(paths)
    assert disk.after_crash("drop").files() == (
        {} if step < 5 else {"x/a": b"data", "x/b": b"data"}
    )


def test_local_files_travel_in_closures() -> None:
    assert isinstance(pickle.loads(pickle.dumps(LocalFiles())), LocalFiles)


def test_a_file_in_the_place_of_a_parent_folder_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(StorageError, match="taken takes no folders; choose another location"):
        LocalFiles().create(f"{tmp_path}/taken/checkpoint/icestream/identity.json")
