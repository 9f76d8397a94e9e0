from __future__ import annotations

from pathlib import Path

import pytest

from bench.adaptation import fusion
from bench.adaptation.random_jobs import ATTRIBUTES, ROWS, random_job
from bench.harness import Silent
from bench.registry import Size
from icestream.plan.fuse.fusion import violations
from icestream.plan.fuse.operator_graph import Graph


def test_the_same_seed_gives_the_same_job() -> None:
    assert random_job(50, 3) == random_job(50, 3)
    assert random_job(50, 3) != random_job(50, 4)


@pytest.mark.parametrize("seed", range(5))
def test_jobs_have_levels_and_send_what_they_have(seed: int) -> None:
    job = random_job(50, seed)
    assert len(job.operators) == 50
    assert all(0 < mask < 1 << ATTRIBUTES for mask in job.operators)
    assert job.operators[0].bit_count() == ATTRIBUTES // 2
    depth = [0] * 50
    for edge in job.edges:
        depth[edge.target] = max(depth[edge.target], depth[edge.origin] + 1)
    # in order, and to the next level only, to every operator of it
    assert depth == sorted(depth)
    assert 3 <= depth[-1] + 1 <= 37
    assert {(edge.origin, edge.target) for edge in job.edges} == {
        (one, other) for one in range(50) for other in range(50) if depth[other] == depth[one] + 1
    }
    for origin in range(50):
        assert sum(edge.rate for edge in job.edges if edge.origin == origin) <= ROWS


def test_what_is_measured_is_valid() -> None:
    for seed in range(3):
        job: Graph = random_job(50, seed)
        for fusing in fusion.WAYS.values():
            assert violations(job, fusing(job, seed)) == []
        for fusing in fusion.CIRCLES.values():
            assert violations(job, fusing(job, seed), circles=True) == []


def test_figures_are_the_same_every_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusion, "JOBS", {Size.SMALL: 2})
    monkeypatch.setattr(fusion, "STEP_JOBS", {Size.SMALL: 1})
    monkeypatch.setattr(fusion, "STEPS", (3,))
    monkeypatch.setattr(fusion, "join_then_aggregate", lambda *_: {"10 events": {"ratio": 2.0}})
    one, other = (fusion.measure(Size.SMALL, Silent()) for _ in range(2))
    assert one == other
    fusion.plot(one.figures, tmp_path / "fusion.png")
    assert (tmp_path / "fusion.png").stat().st_size > 10_000
