"""Dataflows killed at a sample of their steps, on disks that are full, and with flipped bits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from icestream.core.errors import DamageError
from icestream.runtime.local import LocalExecutor
from icestream.runtime.version.task import ShardReport, ShardTask
from icestream.runtime.work.dataflow.work import DataflowWork
from icestream.state.versions.commits import SEGMENTS, VersionStore
from icestream.testing.simulated_disk import SimulatedDisk
from tests.faults.bit_flips import HARMLESS, NOTICED
from tests.suites.crash_runs import ROOT, CrashRuns, Process
from tests.suites.dataflow_conformance import small_sizes
from tests.suites.dataflow_crash_runs import DataflowBitFlips, DataflowScript

SCRIPT = DataflowScript(batches=6, budget=8 << 20)


def test_crash_every_step_of_a_run(tmp_path: Path) -> None:
    with small_sizes():
        runs = CrashRuns(SCRIPT, str(tmp_path))
        disk = runs.undisturbed()
        assert any(rows for rows, _ in runs.expected)
        every = disk.steps // 24
        runs.crash_everywhere(lambda step: step % every == 0)
    assert runs.points >= 24
    assert runs.differences == []


@pytest.mark.parametrize("restart", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_full_disk_at_any_step_loses_nothing(tmp_path: Path, restart: bool) -> None:
    with small_sizes():
        runs = CrashRuns(DataflowScript(batches=4, budget=8 << 20), str(tmp_path))
        disk = runs.undisturbed()
        for step in range(1 + restart, disk.steps + 1, disk.steps // 9):
            runs.refuse(step, restart=restart)
    assert runs.points >= 9
    assert runs.differences == []


class _Dies(Exception):
    pass


def test_crash_between_two_components_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = LocalExecutor.run

    def only_the_first(self: LocalExecutor, tasks: list[ShardTask]) -> list[ShardReport]:
        if tasks[0].shard >= SCRIPT.shards and tasks[0].version == 3:
            raise _Dies
        return run(self, tasks)

    with small_sizes():
        runs = CrashRuns(SCRIPT, str(tmp_path))
        runs.undisturbed()
        assert len(SCRIPT.plan.components) == 2
        disk = SimulatedDisk()
        process = Process(SCRIPT, disk, runs.local())
        assert [process.act(action) for action in range(2)] == runs.expected[:2]
        before = set(disk.list(f"{ROOT}/{SEGMENTS}"))
        with monkeypatch.context() as patched:
            patched.setattr(LocalExecutor, "run", only_the_first)
            with pytest.raises(_Dies):
                process.act(2)
        assert set(disk.list(f"{ROOT}/{SEGMENTS}")) > before
        assert VersionStore(disk, ROOT).versions()[-1] == 2
        again = Process(SCRIPT, disk, runs.local())
        assert set(disk.list(f"{ROOT}/{SEGMENTS}")) == before
        found = [again.act(action) for action in range(2, len(SCRIPT.actions))]
    assert found == runs.expected[2:]


def test_a_version_names_the_shards_of_all_components() -> None:
    work = DataflowWork(SCRIPT.plan)
    assert SCRIPT.plan.jobs == 2
    assert work.ordinals(3) == 3 * sum(len(spec.lifetimes) for spec in SCRIPT.plan.specs)


@pytest.fixture(scope="module")
def flips(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DataflowBitFlips]:
    with small_sizes(snapshot=3):
        runs = CrashRuns(SCRIPT, str(tmp_path_factory.mktemp("rot")))
        runs.undisturbed()
        yield DataflowBitFlips(runs, 5)


KINDS = (
    "plan",
    "last commit",
    "commit of a snapshot",
    "snapshot",
    "rows",
    "forever-0",
    "results",
    "late events",
)


@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", KINDS)
def test_damage_in_any_durable_file_is_noticed_and_named(
    flips: DataflowBitFlips, kind: str
) -> None:
    path = flips.durable_files()[kind]
    size = flips.size(path)
    flips.flip_durable(kind, path, range(3, size, max(1, size // 6)))
    assert flips.undetected == []
    assert set(flips.outcomes[kind]) <= {NOTICED, HARMLESS}
    assert flips.outcomes[kind][NOTICED] > 0


def test_damage_in_the_exchange_is_noticed_and_the_batch_can_be_fed_again(
    flips: DataflowBitFlips,
) -> None:
    size = flips.parcel_size()
    flips.flip_parcel(range(5, size, size // 8))
    assert flips.undetected == []
    assert set(flips.outcomes["parcel"]) == {NOTICED}


def test_a_missing_segment_is_damage_that_is_named(tmp_path: Path) -> None:
    with small_sizes():
        disk = SimulatedDisk()
        process = Process(SCRIPT, disk, str(tmp_path / "a"))
        for action in range(2):
            process.act(action)
        gone = f"{ROOT}/{SEGMENTS}/{disk.list(f'{ROOT}/{SEGMENTS}')[-1]}"
        disk.unlink(gone)
        again = Process(SCRIPT, disk, str(tmp_path / "b"))
        with pytest.raises(DamageError, match=gone):
            again.act(2)
