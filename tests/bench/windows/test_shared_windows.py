from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.windows.shared_windows import Case, Scale, judge, plot, run_case, summarise

SCALE = Scale((2, 8), 5_000, 20, 40, 45, 1 << 18)


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    runs: dict[int, dict[str, Any]] = {}
    for case in SCALE.cases():
        kind = f"{'shared' if case.shared else 'unshared'}, {case.mode}"
        folder = tmp_path_factory.mktemp("blocks")
        runs.setdefault(case.windows, {})[kind] = run_case(case, str(folder))
        assert not [path for path in folder.rglob("*") if path.is_file()]
    rates = {"2 queries per slide": 5e6, "32 queries per slide": 3e6}
    logged = {f"{n} windows per event": {"logged_bytes": 1e9 + n} for n in (1, 8)}
    return {**summarise(runs, SCALE), "per slide": rates, "per event": logged}


def test_small_cases_are_exact_and_shared_asks_less(figures: dict[str, Any]) -> None:
    few, many = figures["2 windows"], figures["8 windows"]
    assert few["wrong_windows"] == many["wrong_windows"] == 0
    # the space of shared windows is that of the longest, whatever their number
    assert many["shared_space_bytes"] == pytest.approx(few["shared_space_bytes"], rel=0.1)
    assert many["space_ratio"] < few["space_ratio"] / 3
    assert many["request_ratio"] < few["request_ratio"] / 3


def test_formulas_stand_beside_what_was_counted(figures: dict[str, Any]) -> None:
    bars = {bar.name: bar for bar in judge(figures)}
    assert bars["error of formula 4.2"].holds
    assert bars["formula 4.1 - counted"].holds
    assert bars["slowdown from 2 to 32 queries per slide"].holds
    for row in (figures["2 windows"], figures["8 windows"]):
        assert row["shared_requests_per_block"] == pytest.approx(
            row["requests_formula_steady"], abs=0.1
        )


def test_windows_are_spread_evenly() -> None:
    case = Case(5, 10, 100, 200, 9, True, "log", 1.0, 1.0, 1 << 20)
    assert case.ranges == [seconds * 1_000_000 for seconds in (100, 125, 150, 175, 200)]


def test_a_figure_is_drawn(figures: dict[str, Any], tmp_path: Path) -> None:
    plot(figures, tmp_path / "figures" / "shared-windows.png")
    assert (tmp_path / "figures" / "shared-windows.png").stat().st_size > 0
