from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.adaptation import split_combine
from bench.registry import Size
from bench.research.migration import Way
from bench.research.split_combine import ComponentShape

CASE = replace(split_combine.CASES[Size.SMALL], keys=(20,), rows=40, minutes=6)


@pytest.mark.slow
def test_only_smooth_combining_takes_windows_to_end(tmp_path: Path) -> None:
    found = split_combine.changes(tmp_path, 20)
    assert {name: row["minutes"] for name, row in found.items()} == {
        "split": 0.0,
        "combine, smooth": 10.0,
        "combine, disruptive": 0.0,
        "combine, handover": 0.0,
    }


@pytest.mark.slow
def test_both_shapes_and_moves_are_timed(tmp_path: Path) -> None:
    for shape in ComponentShape:
        assert split_combine.throughput(tmp_path, shape, "2 windows", 20, CASE) > 0
    assert split_combine.moved_run(tmp_path, Way.INSTANT, 0.5, 10) > 0


def measured(*, six: float) -> dict[str, list[float]]:
    """Rates in which two windows combined are the unit."""
    return {
        "combined, 2 windows": [1.0],
        "split, 2 windows": [0.8],
        "combined, 4 windows": [2 / (1 + six)],
        "split, 4 windows": [0.8],
        "combined, 6 windows": [1 / six],
        "split, 6 windows": [0.8],
    }


def test_the_printed_model_counts_windows_and_the_other_what_goes_into_them() -> None:
    found = split_combine.model(measured(six=1.1), CASE)
    assert round(found["combined, printed"], 6) == 3
    assert round(found["combined, shared panes"], 6) == 1.1
    assert (found["choice, printed"], found["choice, shared panes"]) == ("split", "combined")
    assert found["choice, measured"] == "combined"


def figures(six: float) -> dict[str, Any]:
    changing = {
        "split": [{"pause_ms": 1.0, "minutes": 0.0}],
        "combine, disruptive": [{"pause_ms": 10.0, "minutes": 0.0}],
        "combine, smooth": [{"pause_ms": 1.0, "minutes": 10.0}],
    }
    return {
        "keys": [20],
        "consolidation": measured(six=six),
        "group keys": [20],
        "changing": changing,
        "parts": [0.0],
        "moving": {"instant": [1.0]},
        "model": split_combine.model(measured(six=six), CASE),
    }


def test_bars_ask_for_the_better_model() -> None:
    assert all(bar.holds for bar in split_combine.bars(figures(1.1)))
    crooked = figures(1.1)
    crooked["model"]["combined, measured"] = 2.5
    assert [bar.holds for bar in split_combine.bars(crooked)] == [True, True, False]


def test_all_three_are_drawn(tmp_path: Path) -> None:
    split_combine.plot(figures(1.0), tmp_path / "shapes.png")
    assert (tmp_path / "shapes.png").stat().st_size > 0
