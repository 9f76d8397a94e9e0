from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import icestream as ice
from bench.adaptation import fast_job
from bench.adaptation.fast_job import BENCH, CASES, measure, plot, simple_job
from bench.harness import Silent
from bench.registry import Size


def _components(job: ice.Tuples, capsys: pytest.CaptureFixture[str]) -> int:
    job.explain()
    return sum(line.startswith("component ") for line in capsys.readouterr().out.splitlines())


@pytest.mark.spark
def test_jobs_have_as_many_components_as_they_are_measured_with(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = spark.readStream.format("rate").load().selectExpr("timestamp AS ts", "value AS user")
    loans = ice.job(ice.stream(frame.selectExpr("*", "1.0D AS amount"), time="ts"))
    counts = {fused: _components(fast_job.fast_job(loans, fused), capsys) for fused in (0, 2, 3, 4)}
    assert counts == {0: 4, 2: 3, 3: 2, 4: 1}
    assert [_components(simple_job(loans, count), capsys) for count in (1, 2)] == [1, 2]


@pytest.mark.slow
@pytest.mark.spark
def test_fused_and_unfused_are_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(CASES, Size.SMALL, (3, 1, 400))
    monkeypatch.setattr(fast_job, "workspace", lambda: tmp_path)
    found = measure(Size.SMALL, Silent())
    assert set(found.figures["seconds_per_batch"]) == {
        *(f"{fused} fused" for fused in (0, 2, 3, 4)),
        *(f"simple, {count} components" for count in (1, 2)),
    }
    assert len(found.bars) == 3
    plot(found.figures, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 0
    assert BENCH.name == "fused-job"
