from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.harness import Silent
from bench.joins.join_inputs import JoinInputs
from bench.joins.spill import FETCH, TIMES, compared, group_name, judge, plot, reported
from icestream.operators.multi_join.spill_strategies import (
    GLOBAL_OUTPUT,
    GLOBAL_OUTPUT_WITH_PENALTY,
    LOCAL_OUTPUT,
    STRATEGIES,
)

NAME = f"{group_name(10.5, 1, 'tuples')}, ratios 3:1:1, seed"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[float, dict[str, Any]]:
    inputs = JoinInputs((3, 1, 1), 1_500)
    return dict(compared(inputs, 8, tmp_path_factory.mktemp("spill"), Silent()))


@pytest.mark.slow
def test_every_strategy_makes_the_exact_results(found: dict[float, dict[str, Any]]) -> None:
    assert set(found) == set(TIMES)
    for case in found.values():
        assert case["wrong"] == 0
        assert case[FETCH]["wrong"] == 0
        assert case[FETCH]["share"] == 1
        for strategy in STRATEGIES:
            run = case[strategy]
            assert run["wrong"] == run["bytesUnranked"] == 0
            assert run["spills"] > 0
            assert run["late_results"] > 0
            assert max(run["resident"]) < case["state_bytes"]


@pytest.mark.slow
def test_claims_are_judged_by_the_cases_in_which_they_hold(
    found: dict[float, dict[str, Any]],
) -> None:
    case = found[10.5]
    shares = {GLOBAL_OUTPUT: 0.5, GLOBAL_OUTPUT_WITH_PENALTY: 0.4, LOCAL_OUTPUT: 0.1}
    other = {**case, **{each: {**case[each], "share": part} for each, part in shares.items()}}
    better = {**other, GLOBAL_OUTPUT_WITH_PENALTY: {**other[GLOBAL_OUTPUT], "share": 0.6}}
    bars = judge({f"{NAME} 1": other, f"{NAME} 2": better})
    (penalty,) = [bar for bar in bars if "penalty over global" in bar.name]
    assert penalty.measured == 1


@pytest.mark.slow
def test_figures_can_be_drawn(found: dict[float, dict[str, Any]], tmp_path: Path) -> None:
    made = reported({f"{NAME} {seed}": found[10.5] for seed in (1, 2)})
    (group,) = made.figures["groups"].values()
    assert group["cases"] == 2
    assert group["median_share"][FETCH] == 1
    assert "results" not in made.figures["cases"][f"{NAME} 2"][FETCH]
    plot(made.figures, tmp_path / "spill.png")
    assert (tmp_path / "spill.png").stat().st_size > 0
