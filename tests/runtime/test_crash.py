"""Queries killed, or refused by the disk, at a sample of their steps; at all: bench `crash`."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.registry import Size
from bench.safety.crash import CASES, CRASH, FLIP, REFUSE, STOPPED, TIGHT, CrashFindings
from icestream.state.versions.commits import COMMITS
from icestream.state.versions.ownership import Place
from icestream.testing.simulated_disk import Crash, CrashMode, SimulatedDisk
from tests.suites.crash_runs import MODES, ROOT, CrashRuns, Process, Script, staged


def run_crashes(script: Script, folder: Path) -> tuple[CrashRuns, SimulatedDisk]:
    runs = CrashRuns(script, str(folder))
    return runs, runs.undisturbed()


def test_crash_every_step_of_a_run(tmp_path: Path) -> None:
    with staged():
        runs, disk = run_crashes(Script(batches=27), tmp_path)
        assert disk.steps >= 1_000
        assert {"write", "sync", "link", "unlink", "sync folder"} <= {
            what for what, _ in disk.trace
        }
        runs.crash_everywhere(lambda step: step % 29 == 0)
    assert runs.points == disk.steps // 29
    assert runs.differences == []


@pytest.mark.slow
def test_crash_every_step_of_a_run_whose_groups_exceed_the_quota(tmp_path: Path) -> None:
    with staged(tight=True):
        runs, disk = run_crashes(TIGHT, tmp_path)
        runs.crash_everywhere(lambda step: step % 29 == 0)
    assert runs.points == disk.steps // 29
    assert runs.differences == []


@pytest.mark.slow
def test_crash_after_more_versions_than_a_manifest_covers(tmp_path: Path) -> None:
    with staged():
        runs, disk = run_crashes(Script(batches=70, events=16), tmp_path)
        assert len(runs.expected) > 64
        assert ("unlink", f"{ROOT}/{COMMITS}/{Place(1, 1).name}") in disk.trace
        late = range(int(disk.steps * 0.9), disk.steps, 41)
        runs.crash_everywhere(lambda step: step in late)
    assert runs.points == len(late)
    assert runs.differences == []


@pytest.mark.parametrize("mode", MODES)
def test_crash_with_all_that_unwinds_in_the_dying_process(tmp_path: Path, mode: CrashMode) -> None:
    # here the exception runs through every handler of the process, as on a stop by an interrupt
    with staged():
        runs, disk = run_crashes(Script(batches=6), tmp_path)
        for step in range(5, disk.steps, 61):
            broken = SimulatedDisk(crash_at=step, tear=step)
            action = _die(runs, broken)
            runs.recover(broken.after_crash(mode), action, f"step {step}")
    assert runs.differences == []


def _die(runs: CrashRuns, disk: SimulatedDisk) -> int:
    """Run until the disk crashes; return the action it crashed in."""
    action = 0
    try:
        process = Process(runs.script, disk, runs.local())
        for action in range(len(runs.expected)):
            process.act(action)
    except Crash:
        return action
    pytest.fail("the disk did not crash")


@pytest.mark.parametrize("restart", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_full_disk_at_any_step_loses_nothing(tmp_path: Path, restart: bool) -> None:
    with staged():
        runs, disk = run_crashes(Script(batches=6), tmp_path)
        steps = range(1 + restart, disk.steps + 1, 11)
        for step in steps:
            runs.refuse(step, restart=restart)
    assert runs.points == len(steps)
    assert runs.differences == []


def test_a_full_disk_at_any_step_of_a_commit_loses_nothing(tmp_path: Path) -> None:
    with staged():
        runs, disk = run_crashes(Script(batches=3), tmp_path)
        commits = [n for n, (_, path) in enumerate(disk.trace, 1) if "/commits" in path]
        for step in commits:
            runs.refuse(step, restart=False)
    assert len(commits) >= 5 * 4
    assert runs.differences == []


def test_crash_runs_notice_a_wrong_row(tmp_path: Path) -> None:
    with staged():
        runs, _ = run_crashes(Script(batches=4), tmp_path)
        rows, late = runs.expected[-1]
        runs.expected[-1] = (rows[:-1], late)
        runs.crash_everywhere(lambda step: step == 30)
    assert len(runs.differences) == 2
    assert "action 5 differs in [1, 0] rows" in runs.differences[0]


def test_crash_runs_notice_what_was_not_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SimulatedDisk, "sync_files", lambda _disk, _paths: None)
    with staged():
        runs, _ = run_crashes(Script(batches=4), tmp_path)
        runs.crash_everywhere(lambda step: step % 9 == 0)
    assert runs.differences
    assert not any("(keep)" in scenario for scenario in runs.differences)
    assert any("is missing" in scenario for scenario in runs.differences)


def test_crash_runs_have_what_can_go_wrong(tmp_path: Path) -> None:
    with staged():
        runs, disk = run_crashes(Script(batches=20), tmp_path)
    rows, late = zip(*runs.expected, strict=True)
    assert sum(map(len, rows)) > 100
    assert sum(map(len, late)) > 20
    unlinked = [path for what, path in disk.trace if what == "unlink"]
    assert any("/segments/" in path for path in unlinked)


def test_the_bench_covers_every_way_to_fail() -> None:
    for size in Size:
        assert {case.what for case in CASES[size]} == {CRASH, REFUSE, FLIP}
        assert all(case.script.actions[STOPPED] is not None for case in CASES[size]
                   if case.what == FLIP)  # fmt: skip
    assert max(len(case.script.actions) for case in CASES[Size.FULL]) > 64
    total, part = CrashFindings(points=1), CrashFindings(points=2, versions=3, failures=["x"])
    total.add(part)
    assert (total.points, total.versions, total.failures) == (3, 3, ["x"])
