"""Trees of joins that spill and clean up, killed at a sample of their steps and on full disks."""

from __future__ import annotations

from pathlib import Path

import pytest

from icestream.state.versions.commits import VersionStore
from tests.suites.crash_runs import ROOT, CrashRuns
from tests.suites.dataflow_conformance import small_sizes
from tests.suites.dataflow_crash_runs import JoinScript, spills_by_version

SCRIPT = JoinScript(batches=6, events=16)


@pytest.mark.slow
def test_crash_any_step_of_a_run_with_spills_and_clean_ups(tmp_path: Path) -> None:
    with small_sizes(), spills_by_version():
        runs = CrashRuns(SCRIPT, str(tmp_path))
        disk = runs.undisturbed()
        rows = [len(rows) for rows, _ in runs.expected]
        # the flushes clean up: they emit what spills have kept back
        cleaned = [place for place, action in enumerate(SCRIPT.actions) if action is None]
        assert all(rows[place] for place in cleaned)
        last = VersionStore(disk, ROOT).load(len(SCRIPT.actions))
        assert not any(last.decisions["joins"]["owing"].values())
        every = disk.steps // 12
        runs.crash_everywhere(lambda step: step % every == 0)
    assert runs.points >= 12
    assert runs.differences == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_crash_every_step_of_a_run_with_spills_and_clean_ups(tmp_path: Path) -> None:
    with small_sizes(), spills_by_version():
        runs = CrashRuns(SCRIPT, str(tmp_path))
        disk = runs.undisturbed()
        runs.crash_everywhere()
    assert runs.points == disk.steps
    assert runs.differences == []


@pytest.mark.parametrize("restart", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_full_disk_at_any_step_of_a_clean_up_loses_nothing(tmp_path: Path, restart: bool) -> None:
    with small_sizes(), spills_by_version():
        runs = CrashRuns(JoinScript(batches=4, events=16), str(tmp_path))
        disk = runs.undisturbed()
        for step in range(1 + restart, disk.steps + 1, disk.steps // 4):
            runs.refuse(step, restart=restart)
    assert runs.points >= 4
    assert runs.differences == []
