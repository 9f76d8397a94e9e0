"""State of ten times the budget, in small; with more of everything: bench `budget`."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from bench.processes import results
from bench.safety.budget import CONSTANT, Case, differences, judge
from icestream.testing.simulated_disk import SimulatedDisk
from tests.suites.crash_runs import Process, Script, staged

CASES = (
    Case("panes", 1 << 20, 1_500, 121, 10, 170, 1, 5, shards=1),
    pytest.param(
        Case("groups", 1 << 20, 216_000, 2, 1, 3, 1, 1, shards=1),
        marks=pytest.mark.slow,
        id="groups",
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bounded_state_of_ten_times_the_budget(tmp_path: Path, case: Case) -> None:
    # a process of its own, so that what it takes can be told from what this one takes
    command = [sys.executable, "-m", "bench.safety.budget"]
    (figure,) = results(command, {"case": asdict(case), "folder": str(tmp_path)}, limit=250)
    assert figure["state_bytes"] >= 10 * case.budget
    assert figure["arena_peak_bytes"] <= case.budget
    assert figure["rss_excess_bytes"] <= CONSTANT
    assert (figure["partitions"] > 1) == case.tiny
    wrong, rows = differences(case, tmp_path / "results")
    assert wrong == 0
    assert rows > case.keys
    # the comparison sees a difference where there is one
    os.unlink(sorted((tmp_path / "results").iterdir())[0])
    assert differences(case, tmp_path / "results")[0] > 0


def test_bounded_rows_do_not_depend_on_the_budget(tmp_path: Path) -> None:
    with staged(tight=True):
        ample = Script(batches=8, keys=400, events=800, shards=1)
        small = Script(batches=8, keys=400, events=800, shards=1, budget=60 << 10)
        one = Process(ample, SimulatedDisk(), str(tmp_path / "a"))
        two = Process(small, SimulatedDisk(), str(tmp_path / "b"))
        for action in range(len(ample.actions)):
            assert one.act(action) == two.act(action)


def test_bounded_the_process_stays_within_budget_and_constant() -> None:
    held = {
        "budget_bytes": 100,
        "state_to_budget": 10,
        "wrong_rows": 0,
        "arena_peak_bytes": 100,
        "rss_excess_bytes": CONSTANT,
    }
    assert all(bar.holds for bar in judge({"a": held}))
    for name, value in (
        ("state_to_budget", 9.9),
        ("wrong_rows", 1),
        ("arena_peak_bytes", 101),
        ("rss_excess_bytes", CONSTANT + (1 << 20)),
    ):
        broken = judge({"a": held, "b": {**held, name: value}})
        assert sum(not bar.holds for bar in broken) == 1
