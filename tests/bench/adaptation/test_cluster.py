from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bench.adaptation.cluster import BENCH, ClusterRun, _others, plot


def report(rebuilt: list[int], milliseconds: int = 100, executors: str = "aabb") -> dict[str, Any]:
    own = {
        "parallelism": 2,
        "taskOfShard": [0, 0, 1, 1],
        "rebuiltShards": rebuilt,
        "shards": {"executors": [*executors]},
    }
    return {"icestream": own, "durationMs": {"triggerExecution": milliseconds}}


def test_a_task_is_at_home_if_none_of_its_shards_was_rebuilt() -> None:
    run = ClusterRun(reports={1: report([]), 2: report([0, 1]), 3: report([1, 2]), 4: report([])})
    assert run.at_home() == pytest.approx(1 - 3 / 6)


def test_versions_that_lost_an_executor_or_got_one_are_counted_apart() -> None:
    """Version 4 is struck by the death of b, 7 spreads tasks over c; in 6 one is away."""
    reports: dict[int, Mapping[str, Any]] = {v: report([]) for v in range(1, 4)}
    reports |= {4: report([2, 3], 900, "aaaa"), 5: report([], 100, "aaaa")}
    reports |= {6: report([3], 100, "aaaa"), 7: report([2, 3], 100, "aacc")}
    reports |= {8: report([], 100, "aacc")}
    run = ClusterRun(reports=reports, kills=[3])
    assert (run.struck, run.spread) == ({4, 5}, {7})
    assert run.at_home() == pytest.approx(1 - 1 / 8)
    assert run.at_home(everywhere=True) == pytest.approx(1 - 3 / 14)
    assert run.longest_after_kill == 900
    assert run.milliseconds == 100


def test_missing_versions_are_other_rows() -> None:
    right = ClusterRun(rows={1: (5, 50), 2: (6, 60), 3: (7, 70)})
    run = ClusterRun(rows={1: (5, 50), 2: (6, 61)})
    assert [_others(run, right, versions) for versions in (1, 2, 9)] == [0, 1, 2]


def test_figures_are_drawn(tmp_path: Path) -> None:
    figures = {
        "at_home": {"undisturbed": 1.0, "after kills": 0.97, "all versions": 0.9},
        "batch_ms": {"cluster": 500.0, "local mode": 300.0},
        "events_per_batch": 5_000,
    }
    plot(figures, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 0
    assert BENCH.name == "cluster"
