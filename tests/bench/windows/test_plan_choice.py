from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.windows.plan_choice import Case, judge, plot, run_case, verdict

CASES = (
    Case("few groups", (5,), 60, 24, versions=24, measured=16),
    Case("three groupings", (300, 400, 500), 12, 120, inputs=2, versions=24, measured=16),
)


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return {case.name: run_case(case, tmp_path_factory.mktemp("choice")) for case in CASES}


def test_both_stores_emit_as_many_rows(figures: dict[str, Any]) -> None:
    for row in figures.values():
        assert row["panes rows"] == row["tuples rows"] > 0


def test_few_groups_take_panes_and_the_estimate_is_near(figures: dict[str, Any]) -> None:
    row = figures["few groups"]
    assert row["chosen"] == row["best"] == "panes"
    # segments of some hundred bytes are mostly headers here
    assert 0.5 < row["tuples log_bytes to estimate"] < 3
    assert 0.5 < figures["three groupings"]["panes log_bytes to estimate"] < 2
    assert {bar.name for bar in judge(figures) if "log" in bar.name}


def test_a_case_is_clear_away_from_half_of_the_log() -> None:
    row = {
        "subtracted": True,
        "chosen": "tuples",
        "panes log_bytes": 8.0,
        "tuples log_bytes": 2.0,
        "panes cpu_us_per_event": 1.0,
        "tuples cpu_us_per_event": 3.0,
    }
    expected = {"best": "tuples", "clear": True, "right": True}
    assert verdict(row) == {**expected, "log_to_other": 0.25, "cpu_to_other": 3.0}
    near = verdict({**row, "tuples log_bytes": 4.5, "chosen": "panes"})
    assert (near["best"], near["clear"], near["right"]) == ("panes", False, True)
    less = verdict({**row, "tuples log_bytes": 7.0})
    assert (less["best"], less["clear"], less["right"]) == ("panes", True, False)
    # folded again: what moves counts, too
    moved = {"panes moved_bytes_per_event": 1.0, "tuples moved_bytes_per_event": 5.0}
    assert verdict({**row, **moved, "subtracted": False})["best"] == "panes"


def test_a_figure_is_drawn(figures: dict[str, Any], tmp_path: Path) -> None:
    plot(figures, tmp_path / "figures" / "plan-choice.png")
    assert (tmp_path / "figures" / "plan-choice.png").stat().st_size > 0
