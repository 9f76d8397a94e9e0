"""Queries killed, or refused by the disk, at a sample of their steps; at all: bench `crash`."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.registry import Size
from bench.safety.crash import CASES, CRASH, FLIP, REFUSE, STOPPED, TIGHT, CrashFindings
from icestream.state.versions.commits import COMMITS
from icestream.state.versions.ownership import Place
from icestream.testing.crash_runs import MODES, ROOT, CrashRuns, Process, Script, staged
from icestream.testing.simulated_disk import Crash, CrashMode, SimulatedDisk


def rehearse(script: Script, folder: Path) -> tuple[CrashRuns, SimulatedDisk]:
    rehearsal = CrashRuns(script, str(folder))
    return rehearsal, rehearsal.undisturbed()


def test_crash_every_step_of_a_run(tmp_path: Path) -> None:
    with staged():
        rehearsal, disk = rehearse(Script(batches=27), tmp_path)
        assert disk.steps >= 1_000
        assert {"write", "sync", "link", "unlink", "sync folder"} <= {
            what for what, _ in disk.trace
        }
        rehearsal.crash_everywhere(lambda step: step % 29 == 0)
    assert rehearsal.points == disk.steps // 29
    assert rehearsal.differences == []


@pytest.mark.slow
def test_crash_every_step_of_a_run_whose_groups_exceed_the_quota(tmp_path: Path) -> None:
    with staged(tight=True):
        rehearsal, disk = rehearse(TIGHT, tmp_path)
        rehearsal.crash_everywhere(lambda step: step % 29 == 0)
    assert rehearsal.points == disk.steps // 29
    assert rehearsal.differences == []


@pytest.mark.slow
def test_crash_after_more_versions_than_a_listing_covers(tmp_path: Path) -> None:
    with staged():
        rehearsal, disk = rehearse(Script(batches=70, events=16), tmp_path)
        assert len(rehearsal.expected) > 64
        assert ("unlink", f"{ROOT}/{COMMITS}/{Place(1, 1).name}") in disk.trace
        late = range(int(disk.steps * 0.9), disk.steps, 41)
        rehearsal.crash_everywhere(lambda step: step in late)
    assert rehearsal.points == len(late)
    assert rehearsal.differences == []


@pytest.mark.parametrize("mode", MODES)
def test_crash_with_all_that_unwinds_in_the_dying_process(tmp_path: Path, mode: CrashMode) -> None:
    # here the exception runs through every handler of the process, as on a stop by an interrupt
    with staged():
        rehearsal, disk = rehearse(Script(batches=6), tmp_path)
        for step in range(5, disk.steps, 61):
            broken = SimulatedDisk(crash_at=step, tear=step)
            action = _die(rehearsal, broken)
            rehearsal.recover(broken.after_crash(mode), action, f"step {step}")
    assert rehearsal.differences == []


def _die(rehearsal: CrashRuns, disk: SimulatedDisk) -> int:
    """Run until the disk crashes; return the action it crashed in."""
    action = 0
    try:
        process = Process(rehearsal.script, disk, rehearsal.local())
        for action in range(len(rehearsal.expected)):
            process.act(action)
    except Crash:
        return action
    pytest.fail("the disk did not crash")


@pytest.mark.parametrize("restart", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_full_disk_at_any_step_loses_nothing(tmp_path: Path, restart: bool) -> None:
    with staged():
        rehearsal, disk = rehearse(Script(batches=6), tmp_path)
        steps = range(1 + restart, disk.steps + 1, 11)
        for step in steps:
            rehearsal.refuse(step, restart=restart)
    assert rehearsal.points == len(steps)
    assert rehearsal.differences == []


def test_a_full_disk_at_any_step_of_a_commit_loses_nothing(tmp_path: Path) -> None:
    with staged():
        rehearsal, disk = rehearse(Script(batches=3), tmp_path)
        commits = [n for n, (_, path) in enumerate(disk.trace, 1) if "/commits" in path]
        for step in commits:
            rehearsal.refuse(step, restart=False)
    assert len(commits) >= 5 * 4
    assert rehearsal.differences == []


def test_a_rehearsal_notices_a_wrong_row(tmp_path: Path) -> None:
    with staged():
        rehearsal, _ = rehearse(Script(batches=4), tmp_path)
        rows, late = rehearsal.expected[-1]
        rehearsal.expected[-1] = (rows[:-1], late)
        rehearsal.crash_everywhere(lambda step: step == 30)
    assert len(rehearsal.differences) == 2
    assert "action 5 differs in [1, 0] rows" in rehearsal.differences[0]


def test_a_rehearsal_notices_what_was_not_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SimulatedDisk, "sync_files", lambda _disk, _paths: None)
    with staged():
        rehearsal, _ = rehearse(Script(batches=4), tmp_path)
        rehearsal.crash_everywhere(lambda step: step % 9 == 0)
    assert rehearsal.differences
    assert not any("(keep)" in story for story in rehearsal.differences)
    assert any("is missing" in story for story in rehearsal.differences)


def test_a_rehearsal_has_what_can_go_wrong(tmp_path: Path) -> None:
    with staged():
        rehearsal, disk = rehearse(Script(batches=20), tmp_path)
    rows, late = zip(*rehearsal.expected, strict=True)
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
