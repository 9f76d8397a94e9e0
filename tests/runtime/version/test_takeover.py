from __future__ import annotations

import json
import shutil
from pathlib import Path
from unittest import mock

import pytest

from icestream.core.errors import CheckpointError, DefinitionError, StorageError
from icestream.runtime.local import LocalQuery
from icestream.runtime.version import retention
from icestream.runtime.version.settings import Settings
from icestream.state.versions.commits import COMMITS, PLAN, RESULTS, SEGMENTS, VersionStore
from icestream.state.versions.ownership import TakenOver
from icestream.state.versions.sealed import opened, seal
from icestream.testing.simulated_disk import SimulatedDisk
from tests.suites.crash_runs import ROOT, CrashRuns, Script, staged
from tests.suites.takeovers import Contest

SCRIPT = Script(batches=6, events=12)
#: an action after some snapshots, with files to delete, and a flush
BUSY, FLUSH = 4, 3


def query(disk: SimulatedDisk, folder: Path, script: Script = SCRIPT) -> LocalQuery:
    return LocalQuery(script.plan, script.settings(str(folder)), disk)


def contest(folder: Path, *, together: bool = False) -> Contest:
    runs = CrashRuns(SCRIPT, str(folder / "rehearsal"))
    runs.undisturbed()
    return Contest(SCRIPT, str(folder), runs.expected, together=together)


@pytest.mark.parametrize("together", [False, True], ids=["two hosts", "one host"])
def test_crash_a_second_driver_at_every_step_of_a_version(tmp_path: Path, together: bool) -> None:
    with staged(), mock.patch.object(retention, "SWEEP_EVERY", 1):
        held = contest(tmp_path, together=together)
        step = 1
        # the second is stopped at a step of its opening, its first version or a later one
        while held.hold(BUSY, step, 1 + step * 17 % 150):
            step += 1
    assert held.differences == []
    assert step > 20
    assert 0 < held.survived < held.held


def test_crash_a_second_driver_at_every_step_of_a_flush(tmp_path: Path) -> None:
    with staged(), mock.patch.object(retention, "SWEEP_EVERY", 1):
        held = contest(tmp_path)
        step = 1
        while held.hold(FLUSH, step, 1 + step * 29 % 150):
            step += 1
    assert held.differences == []
    assert held.survived


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_crash_every_step_of_a_version_against_every_step_of_an_opening(tmp_path: Path) -> None:
    with staged(), mock.patch.object(retention, "SWEEP_EVERY", 1):
        held = contest(tmp_path)
        for second in range(1, 120, 3):
            step = 1
            while held.hold(BUSY, step, second):
                step += 2
    assert held.differences == []


def test_the_loser_is_reported_who_took_over(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    first = query(disk, tmp_path / "a")
    first.feed(SCRIPT.inputs[0])
    query(disk, tmp_path / "b")
    reported = r"taken over by a query \(process \d+ on \S+, since 20\S+\), .* from version 1"
    for _ in range(2):
        with pytest.raises(TakenOver, match=reported):
            first.feed(SCRIPT.inputs[1])
    with pytest.raises(TakenOver, match=reported):
        first.flush()


def test_the_loser_deletes_nothing(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    first = query(disk, tmp_path / "a")
    for number in range(3):
        first.feed(SCRIPT.inputs[number])
    second = query(disk, tmp_path / "b")
    before = disk.files()
    for _ in range(3):
        with pytest.raises(TakenOver):
            first.feed(SCRIPT.inputs[3])
    assert before.keys() <= disk.files().keys()
    for number in range(3, 6):
        second.feed(SCRIPT.inputs[number])


def test_a_sweep_leaves_files_of_newer_epochs_alone(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    with mock.patch.object(retention, "SWEEP_EVERY", 1):
        opened = query(disk, tmp_path)
        newer = [
            f"{ROOT}/{SEGMENTS}/0000000099-0000020123456789.seg",
            f"{ROOT}/{RESULTS}/000000000009-0-0000020123456789.rows",
            f"{ROOT}/{RESULTS}/000000000009-0000020123456789-late.rows",
        ]
        older = [path.replace("-000002", "-000001") for path in newer]
        for path in (*newer, *older):
            disk.put(path, b"not committed yet")
        opened.feed(SCRIPT.inputs[0])
    assert set(newer) <= disk.files().keys()
    assert disk.files().keys().isdisjoint(older)
    query(disk, tmp_path)
    assert disk.files().keys().isdisjoint(newer)


def test_a_commit_of_an_epoch_that_is_long_over_counts_for_nothing(tmp_path: Path) -> None:
    script = Script(batches=80, events=8)
    disk = SimulatedDisk()
    with staged():
        first = query(disk, tmp_path / "a", script)
        for number in range(3):
            first.feed(script.inputs[number])
        put = SimulatedDisk.put
        slept: list[bool] = []

        def sleepy(self: SimulatedDisk, path: str, data: bytes) -> bool:
            """Sleep before a commit, for so long that others clean up behind it."""
            if not slept and path.startswith(f"{ROOT}/{COMMITS}/"):
                slept.append(True)
                # two owners: the first takeover is kept for good, the second is not
                query(disk, tmp_path / "b", script)
                second = query(disk, tmp_path / "c", script)
                for number in range(3, 75):
                    second.feed(script.inputs[number])
                self.unlink(path)
                made = put(self, path, data)
                slept.append(made)
                return made
            return put(self, path, data)

        with mock.patch.object(SimulatedDisk, "put", sleepy), pytest.raises(TakenOver):
            first.feed(script.inputs[3])
        assert slept == [True, True]
        third = query(disk, tmp_path / "d", script)
        assert third.driver.last is not None
        assert third.driver.last.batch == 74
        versions = VersionStore(disk, ROOT).versions()
        assert 4 not in versions
        assert versions == list(range(versions[0], 76))
        assert VersionStore(disk, ROOT).load(75).epoch == 3


def test_a_program_that_may_not_run_takes_nothing_over(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    first = query(disk, tmp_path / "a")
    first.feed(SCRIPT.inputs[0])
    with pytest.raises(DefinitionError, match="too small for 9 shards"):
        query(disk, tmp_path / "b", Script(batches=6, events=12, shards=9))
    first.feed(SCRIPT.inputs[1])


def as_format_2(disk: SimulatedDisk) -> None:
    """Let a checkpoint be one of a release that knows no epochs."""
    store = VersionStore(disk, ROOT)
    bodies = {f"{ROOT}/{PLAN}": opened(PLAN, disk.read(f"{ROOT}/{PLAN}"))}
    for version in store.versions():
        value = opened("", disk.read(store.path(version)))
        del value["epoch"]
        bodies[f"{ROOT}/{COMMITS}/{version:012d}.json"] = value

    for path in [*disk.files()]:
        if path.startswith((f"{ROOT}/{COMMITS}/", f"{ROOT}/{PLAN}")):
            disk.unlink(path)
    for path, value in bodies.items():
        body = json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
        disk.put(path, body + b"\n" + seal(2, body))


def test_a_checkpoint_of_format_2_is_refused_and_left_alone(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    query(disk, tmp_path / "a").feed(SCRIPT.inputs[0])
    as_format_2(disk)
    before = {path: disk.read(path) for path in disk.files()}
    with pytest.raises(CheckpointError, match="was written in format 2, this Icestream reads 3"):
        query(disk, tmp_path / "b")
    assert {path: disk.read(path) for path in disk.files()} == before


def ticking(disk: SimulatedDisk, folder: Path) -> LocalQuery:
    settings = Settings(ROOT, str(folder), SCRIPT.budget, shards=2, ticker=True)
    return LocalQuery(SCRIPT.plan, settings, disk)


def test_a_rolled_back_state_is_noticed_under_a_ticker_too(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    opened = ticking(disk, tmp_path / "a")
    for number in range(3):
        opened.feed(SCRIPT.inputs[number], number)
    copy = disk.after_crash("keep")
    for number in range(3, 6):
        opened.feed(SCRIPT.inputs[number], number)
    restored = ticking(copy, tmp_path / "b")
    with pytest.raises(CheckpointError, match="up to 2, but Spark sends batch 6"):
        restored.feed([[]], 6)
    with pytest.raises(CheckpointError, match="no batch, but Spark sends batch 6"):
        ticking(SimulatedDisk(), tmp_path / "c").feed([[]], 6)


def test_quiet_batches_are_remembered_across_restarts(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    opened = ticking(disk, tmp_path / "a")
    for number in range(4):
        opened.feed([[]], number)
    opened = ticking(disk, tmp_path / "b")
    opened.feed(SCRIPT.inputs[0], 4)
    for number in range(5, 9):
        opened.feed([[]], number)
    assert len(disk.list(f"{ROOT}/idle")) == 1
    opened = ticking(disk, tmp_path / "c")
    assert opened.feed([[]], 8).num_rows == 0
    opened.flush()
    opened = ticking(disk, tmp_path / "d")
    assert opened.feed([[]], 8).num_rows == 0
    with pytest.raises(CheckpointError, match="Spark sends batch 7"):
        opened.feed([[]], 7)
    opened.feed(SCRIPT.inputs[3], 9)
    assert opened.driver.last is not None
    assert (opened.driver.last.version, opened.driver.last.batch) == (3, 9)


def test_a_loser_without_events_is_reported_as_well(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    first = ticking(disk, tmp_path / "a")
    first.feed([[]], 0)
    ticking(disk, tmp_path / "b")
    with pytest.raises(TakenOver):
        first.feed([[]], 1)


def test_a_local_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    from icestream.runtime.version.run_folders import new_run, remove_other_runs

    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"file/x: Not a directory; .* option 'localDir'"):
        remove_other_runs(new_run(f"{tmp_path}/file/x", 1))


def test_a_checkpoint_in_the_folder_of_runs_is_left_alone(tmp_path: Path) -> None:
    settings = Settings(root=f"{tmp_path}/checkpoint", local=str(tmp_path), budget=1 << 26)
    for version in (1, 2):
        query = LocalQuery(SCRIPT.plan, settings)
        query.feed(SCRIPT.inputs[version])
        assert query.driver.last is not None
        assert query.driver.last.version == version
        query.close()
    assert [each.name for each in tmp_path.iterdir()] == ["checkpoint"]


def test_the_folder_of_a_run_that_took_over_is_left_alone(tmp_path: Path) -> None:
    from icestream.runtime.version.run_folders import new_run, remove_other_runs

    older, own, newer = (new_run(str(tmp_path), epoch) for epoch in (1, 2, 3))
    for run in (older, own, newer, str(tmp_path / "0123456789ab")):
        Path(run, "arenas").mkdir(parents=True)
    remove_other_runs(own)
    assert sorted(tmp_path.iterdir()) == [Path(own), Path(newer)]
    shutil.rmtree(newer)
