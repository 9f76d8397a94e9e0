from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from icestream.bench.adaptation.cluster import BENCH, Run, plot


def report(rebuilt: list[int], milliseconds: int = 100) -> dict[str, Any]:
    own = {"parallelism": 2, "taskOfShard": [0, 0, 1, 1], "rebuiltShards": rebuilt}
    return {"icestream": own, "durationMs": {"triggerExecution": milliseconds}}


def test_a_task_is_at_home_if_none_of_its_shards_was_rebuilt() -> None:
    run = Run(reports={1: report([]), 2: report([0, 1]), 3: report([1, 2]), 4: report([])})
    assert run.at_home(struck=False) == pytest.approx(1 - 3 / 6)


def test_versions_that_lost_an_executor_are_counted_apart() -> None:
    reports = {version: report([]) for version in range(1, 8)}
    run = Run(reports={**reports, 4: report([0, 1], 900), 6: report([3])}, kills=[3])
    assert run.at_home(struck=False) == pytest.approx(1 - 1 / 8)
    assert run.at_home(struck=True) == pytest.approx(1 - 2 / 12)
    assert run.longest_after_kill == 900
    assert run.milliseconds == 100


def test_figures_are_drawn(tmp_path: Path) -> None:
    figures = {
        "at_home": {"undisturbed": 1.0, "between kills": 0.97, "with kills": 0.9},
        "batch_ms": {"cluster": 500.0, "local mode": 300.0},
        "events_per_batch": 5_000,
    }
    plot(figures, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 0
    assert BENCH.name == "cluster"
