from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from threading import current_thread, main_thread

import pytest

from icestream.core.errors import BudgetError, StorageError
from icestream.plan.nodes.queries import Plan
from icestream.runtime.local import LocalQuery
from icestream.runtime.version import task as tasks
from icestream.runtime.version.task import ShardTask
from icestream.runtime.work.windows.shard import WindowShard
from icestream.state.arena import Arena
from icestream.state.budget import Budget, Refused
from icestream.state.files import LocalFiles
from icestream.state.log.segments import SegmentTable
from icestream.testing.simulated_disk import SimulatedDisk
from tests.suites.crash_runs import CrashRuns, Process, Script, staged

SCRIPT = Script(batches=12)


@pytest.mark.parametrize("tight", [False, True])
def test_crash_a_shard_whose_arena_is_lost_emits_the_same_rows(tmp_path: Path, tight: bool) -> None:
    script = Script(batches=8, keys=400, events=800, shards=1, budget=60 << 10) if tight else SCRIPT
    with staged(tight=tight):
        runs = CrashRuns(script, str(tmp_path))
        runs.undisturbed()
        local = tmp_path / "losing"
        process = Process(script, SimulatedDisk(), str(local))
        for action, expected in enumerate(runs.expected):
            assert process.act(action) == expected
            for run in os.listdir(local):
                shutil.rmtree(local / run / "arenas")


def test_a_rebuilt_shard_says_so_and_the_others_do_not(tmp_path: Path) -> None:
    query = LocalQuery(SCRIPT.plan, SCRIPT.settings(str(tmp_path)), SimulatedDisk())
    query.feed(SCRIPT.inputs[0])
    (run,) = os.listdir(tmp_path)
    arenas = tmp_path / run / "arenas"
    shutil.rmtree(next(arenas / name for name in os.listdir(arenas) if name.startswith("shard-1")))
    (delivery,) = query.driver.batch(1, SCRIPT.inputs[1])
    assert delivery.progress["icestream"]["rebuiltShards"] == [1]
    (delivery,) = query.driver.batch(2, SCRIPT.inputs[2])
    assert delivery.progress["icestream"]["rebuiltShards"] == []


def test_a_run_leaves_no_file_open(tmp_path: Path) -> None:
    with staged():
        disk = SimulatedDisk()
        for life in range(3):
            process = Process(SCRIPT, disk, str(tmp_path / f"{life}"))
            for action in range(4 * life, 4 * life + 4):
                process.act(action)
            assert disk.open_handles == 0


def test_crash_an_attempt_changes_no_file_of_another(tmp_path: Path) -> None:
    with staged():
        disk = SimulatedDisk()
        process = Process(SCRIPT, disk, str(tmp_path))
        for action in range(6):
            process.act(action)
            before = disk.files()
        first = process.query.driver.last
        process.act(6)
        after = disk.files()
        assert first is not None
        assert all(after[path] == data for path, data in before.items() if path in after)


def test_bounded_a_quota_without_room_for_one_group_says_who_holds_what(tmp_path: Path) -> None:
    with staged(tight=True):
        tiny = Script(batches=4, keys=40, events=80, shards=1, budget=12 << 10)
        process = Process(tiny, SimulatedDisk(), str(tmp_path))
        with pytest.raises(BudgetError, match=r'Give the query at least \.memory\("\d+ [KM]B"\)'):
            process.act(0)


def test_bounded_a_segment_without_room_in_the_table_is_sealed_later(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    budget = Budget(64 << 10)
    arena = Arena.create(str(tmp_path), budget.account("groups"))
    plan = SCRIPT.plan
    assert isinstance(plan, Plan)
    task = ShardTask(
        work=WindowShard(plan), files=disk, root="checkpoint", arenas=str(tmp_path), place=0,
        shard=0,
        version=1, watermark=0, first_ordinal=0, quota=64 << 10, arena=None, parcels=(),
        parcel_files=disk,
    )  # fmt: skip
    space = task.space(budget, arena, "00c0ffee00c0ffee")
    space.segment("panes").append(b"pane", expiry=10)
    room = budget.free
    space.account.reserve(room)
    with pytest.raises(Refused):
        space.seal("panes")
    assert space.sealed == []
    space.account.release(room)
    info = space.seal("panes")
    assert info is not None
    assert dict(SegmentTable(arena)) == {0: info}
    assert space.seal("panes") is None


class Disk(LocalFiles):
    """A disk that records what is synced early, and can fail at it."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.early: list[str] = []
        self.late: list[str] = []

    def sync_files(self, paths: Collection[str]) -> None:
        if current_thread() is main_thread():
            self.late += paths
        else:
            self.early += paths
            if self.fails:
                msg = "the device reports an input/output error"
                raise StorageError(msg)
        super().sync_files(paths)


def test_large_segments_are_synced_while_rows_are_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {}
    for least in (1, 1 << 30):
        monkeypatch.setattr(tasks, "EARLY_BYTES", least)
        disk = Disk()
        settings = replace(SCRIPT.settings(str(tmp_path)), root=str(tmp_path / f"{least}"))
        with staged():
            query = LocalQuery(SCRIPT.plan, settings, disk)
            found[least] = [query.feed(SCRIPT.inputs[n]).to_pylist() for n in range(4)]
            query.close()
        segments = [path for path in disk.late if path.endswith(".seg")]
        assert bool(disk.early) == (least == 1)
        assert bool(segments) == (least > 1)
        assert not {*disk.early} & {*disk.late}
    assert found[1] == found[1 << 30]


def test_a_version_whose_segments_are_not_durable_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "EARLY_BYTES", 1)
    disk = Disk(fails=True)
    settings = replace(SCRIPT.settings(str(tmp_path)), root=str(tmp_path / "checkpoint"))
    query = LocalQuery(SCRIPT.plan, settings, disk)
    with pytest.raises(StorageError, match="input/output error"):
        query.feed(SCRIPT.inputs[0])
    assert query.driver.store.versions() == []
    disk.fails = False
    query.feed(SCRIPT.inputs[0])
    query.close()
