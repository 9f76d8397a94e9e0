from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.cold import growth
from bench.cold.growth import Stream, judge, plot, relative, run_kind


def run(times: int, rate: float | None) -> dict[str, Any]:
    measured = {"events_per_second": rate, "read_bytes": 1, "process_bytes": 2}
    return {"times": times, "state_bytes": 100, **(measured if rate else {"refusal": "too little"})}


def test_rates_are_relative_to_the_run_in_memory() -> None:
    found = relative([run(0, 1_000.0), run(1, 900.0), run(10, 400.0)])
    assert found["of_all_in_memory"] == {"1": 0.9, "10": 0.4}
    assert found["state_bytes"] == 100
    (bar,) = judge({"sessions": found})
    assert (bar.measured, bar.holds) == (0.4, False)
    (bar,) = judge({"updates": found})
    assert bar.holds


def test_a_refused_budget_is_no_measurement() -> None:
    found = relative([run(0, 1_000.0), run(10, None)])
    assert found["runs"]["10"]["refusal"] == "too little"
    (bar,) = judge({"sessions": found})
    assert (bar.measured, bar.holds) == (None, False)
    assert not judge({"sessions": relative([])})[0].holds


def test_growth_is_drawn(tmp_path: Path) -> None:
    plot({"sessions": relative([run(0, 10.0), run(1, 9.0), run(3, None)])}, tmp_path / "g.png")
    assert (tmp_path / "g.png").stat().st_size > 1_000


@pytest.mark.slow
@pytest.mark.spark
def test_a_kind_of_state_runs_with_every_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(growth, "TIMES", (1, 100_000))
    run_kind("sessions", Stream(20_000, 4), tmp_path)
    all_in_memory, fits, refused = map(json.loads, capsys.readouterr().out.splitlines()[-3:])
    assert all_in_memory["events_per_second"] > 0
    assert fits["budget_bytes"] == all_in_memory["log_bytes"]
    assert fits["events_per_second"] > 0
    assert "too small" in refused["refusal"]
