from __future__ import annotations

import errno

import pytest

from icestream.core.errors import StorageError
from icestream.testing.simulated_disk import Crash, SimulatedDisk


def save(disk: SimulatedDisk, path: str, data: bytes, *, sync: bool = True) -> None:
    file = disk.create(path)
    file.write(data)
    if sync:
        file.sync()
    file.close()


def test_every_change_is_a_numbered_step() -> None:
    disk = SimulatedDisk()
    save(disk, "f/a", b"data")
    disk.rename("f/a", "f/b")
    disk.sync_folder("f")
    disk.unlink("f/b")
    assert disk.trace == [
        ("create", "f/a"),
        ("write", "f/a"),
        ("sync", "f/a"),
        ("rename", "f/b"),
        ("sync folder", "f"),
        ("unlink", "f/b"),
    ]
    assert disk.steps == 6
    disk.put("f/c", b"x")
    assert [what for what, _ in disk.trace[6:]] == [
        "create",
        "write",
        "sync",
        "link",
        "unlink",
        "sync folder",
    ]


def test_crash_happens_at_its_step_and_nowhere_else() -> None:
    for step in range(1, 4):
        disk = SimulatedDisk(crash_at=step)
        with pytest.raises(Crash):
            save(disk, "a", b"data")
        assert disk.steps == step
    save(SimulatedDisk(crash_at=4), "a", b"data")


def test_crash_is_not_an_exception_that_handlers_take() -> None:
    assert not issubclass(Crash, Exception)


def test_crash_is_final() -> None:
    disk = SimulatedDisk(crash_at=2)
    with pytest.raises(Crash):
        save(disk, "a", b"data")
    before = disk.files()
    for attempt in (
        lambda: disk.unlink("a"),
        lambda: disk.create("b"),
        lambda: disk.open("a"),
        lambda: disk.read("a"),
        lambda: disk.exists("a"),
        lambda: disk.list("."),
        lambda: disk.sync_folder("."),
    ):
        with pytest.raises(Crash):
            attempt()
    assert disk.files() == before


@pytest.mark.parametrize("seed", range(20))
def test_crash_keeps_what_was_synced(seed: int) -> None:
    disk = SimulatedDisk()
    file = disk.create("f/a")
    file.write(b"synced")
    file.sync()
    disk.sync_folder("f")
    file.write(b" not synced" * 100)
    assert disk.after_crash("drop").files() == {"f/a": b"synced"}
    torn = disk.after_crash("tear", tear=seed).files()["f/a"]
    assert torn.startswith(b"synced")
    assert len(torn) <= 6 + 1100
    assert disk.after_crash("keep").files() == {"f/a": b"synced" + b" not synced" * 100}


def test_crash_drops_a_name_whose_folder_was_not_synced() -> None:
    disk = SimulatedDisk()
    save(disk, "f/a", b"data")
    assert disk.after_crash("drop").files() == {}
    assert disk.after_crash("keep").files() == {"f/a": b"data"}
    disk.sync_folder("f")
    disk.unlink("f/a")
    assert disk.files() == {}
    assert disk.after_crash("drop").files() == {"f/a": b"data"}
    disk.sync_folder("f")
    assert disk.after_crash("drop").files() == {}


def test_crash_tears_into_many_different_outcomes() -> None:
    disk = SimulatedDisk()
    for name in "abc":
        save(disk, f"f/{name}", b"x" * 3000, sync=False)
    outcomes = [disk.after_crash("tear", tear=seed).files() for seed in range(50)]
    assert {len(files) for files in outcomes} == {0, 1, 2, 3}
    contents = [data for files in outcomes for data in files.values()]
    assert len({len(data) for data in contents}) > 10
    noisy = [data for data in contents if data.strip(b"x")]
    assert noisy
    for data in noisy:
        clean = (len(data) - 1) // 512 * 512
        assert data[:clean] == b"x" * clean
    assert outcomes == [disk.after_crash("tear", tear=seed).files() for seed in range(50)]


@pytest.mark.parametrize("seed", range(20))
def test_crash_never_splits_a_rename(seed: int) -> None:
    disk = SimulatedDisk()
    save(disk, "f/a", b"new")
    save(disk, "g/b", b"old")
    disk.sync_folder("f")
    disk.sync_folder("g")
    disk.rename("f/a", "g/b")
    before, after = {"f/a": b"new", "g/b": b"old"}, {"g/b": b"new"}
    assert disk.after_crash("drop").files() == before
    assert disk.after_crash("tear", tear=seed).files() in (before, after)
    disk.sync_folder("g")
    assert disk.after_crash("tear", tear=seed).files() == after


@pytest.mark.parametrize("seed", range(20))
def test_a_synced_rename_takes_the_creation_it_rests_on_along(seed: int) -> None:
    disk = SimulatedDisk()
    save(disk, "f/a", b"data")
    disk.rename("f/a", "g/a")
    disk.sync_folder("g")
    assert disk.after_crash("tear", tear=seed).files() == {"g/a": b"data"}


def test_a_torn_write_is_done_in_part() -> None:
    lengths = set()
    for seed in range(30):
        disk = SimulatedDisk(crash_at=2, tear=seed)
        with pytest.raises(Crash):
            save(disk, "a", b"x" * 100)
        lengths.add(len(disk.files()["a"]))
    assert len(lengths) > 5
    whole = SimulatedDisk(crash_at=2)
    with pytest.raises(Crash):
        save(whole, "a", b"x" * 100)
    assert whole.files() == {"a": b""}


def test_a_failed_step_raises_once_and_nothing_else_breaks() -> None:
    disk = SimulatedDisk(fail_at=2)
    file = disk.create("f/a")
    with pytest.raises(StorageError, match="f/a: the disk is full"):
        file.write(b"data")
    file.write(b"data")
    assert disk.files() == {"f/a": b"data"}


def test_a_failed_step_answers_what_it_is_told() -> None:
    denied = SimulatedDisk(fail_at=1, error=OSError(errno.EACCES, "Permission denied"))
    with pytest.raises(StorageError, match="grant"):
        denied.create("f/a")
    odd = SimulatedDisk(fail_at=1, error=OSError(errno.EBUSY, "Busy"))
    with pytest.raises(OSError, match="Busy"):
        odd.create("f/a")


def test_a_failed_put_leaves_nothing() -> None:
    for step in range(1, 5):
        disk = SimulatedDisk(fail_at=step)
        with pytest.raises(StorageError):
            disk.put("f/a", b"data")
        assert disk.files() == {}
        assert disk.put("f/a", b"data")


def test_flip_changes_one_byte() -> None:
    disk = SimulatedDisk()
    save(disk, "a", b"\x00\x00\x00")
    disk.flip("a", 1, 0x81)
    assert disk.read("a") == b"\x00\x81\x00"


def test_reads_and_open_handles_are_counted() -> None:
    disk = SimulatedDisk()
    save(disk, "a", b"0123456789")
    file = disk.open("a")
    file.read_at(2, 3)
    assert disk.reads == [("a", 2, 3)]
    assert disk.open_handles == 1
    file.close()
    file.close()
    assert disk.open_handles == 0
