from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.harness import Silent
from bench.joins.join_inputs import SETTINGS, JoinInputs
from bench.joins.join_tree import JoinTreeQuery, SpillPlan
from bench.joins.spill import CLEANED, MIXED, at_run_time, compared, judge, plot
from icestream.operators.multi_join.spill_strategies import (
    BOTTOM_UP,
    GLOBAL_OUTPUT,
    GLOBAL_OUTPUT_WITH_PENALTY,
    STRATEGIES,
)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    inputs = JoinInputs((3, 1, 1), 1_800)
    return compared(inputs, 40, tmp_path_factory.mktemp("spill"), Silent())


@pytest.mark.slow
def test_every_strategy_makes_the_exact_results(found: dict[str, Any]) -> None:
    assert found["wrong"] == 0
    for strategy in STRATEGIES:
        run = found[strategy]
        assert run["wrong"] == 0
        assert run["spills"] > 0
        assert run["late_results"] > 0


@pytest.mark.slow
def test_bounded_resident_rows_stay_below_the_threshold_and_a_batch(found: dict[str, Any]) -> None:
    assert found["state_bytes"] >= 10 * found["threshold"]
    for strategy in STRATEGIES:
        run = found[strategy]
        assert run["above"] == 0
        assert run["forced_spills"] == 0
        # a step is small beside the threshold, so that the bound says something
        assert run["largest_step"] < found["threshold"]


@pytest.mark.parametrize(("sample", "mixed"), [(1.0, False), (0.2, True)])
def test_oracle_a_tree_that_spills_makes_every_result_once(
    tmp_path: Path, sample: float, mixed: bool
) -> None:
    inputs = JoinInputs((3, 2, 3), 1_500, seed=2, mixed=mixed)
    spilling = SpillPlan(GLOBAL_OUTPUT_WITH_PENALTY, 200_000, sample=sample)
    tree = JoinTreeQuery(tmp_path, spilling, seed=2, quota=4_000_000)
    tree.run(inputs.batches(10))
    tree.clean_up()
    assert tree.course.results[-1] + tree.course.late_results == inputs.results
    assert tree.course.spills > 2
    assert tree.log_bytes == 0


@pytest.mark.slow
def test_bars_are_judged_by_the_worst_seed(found: dict[str, Any]) -> None:
    better = {**found, GLOBAL_OUTPUT: {**found[GLOBAL_OUTPUT], "share": 0.0}}
    name = "ratios " + ":".join(map(str, SETTINGS[0]))
    bars = judge({f"{name}, seed 1": better, f"{name}, seed 2": found})
    alone = judge({f"{name}, seed 2": found})
    judged = {bar.name: bar.measured for bar in bars}
    for bar in alone:
        if bar.measured is not None and "over local" not in bar.name:
            assert judged[bar.name] is not None
    lowest = next(value for key, value in judged.items() if "over local" in key)
    assert lowest == 0.0


@pytest.mark.slow
def test_mixed_streams_are_judged_beside_the_others(found: dict[str, Any], tmp_path: Path) -> None:
    inputs = JoinInputs((3, 1, 1), 1_800, mixed=True)
    mixed = at_run_time(inputs, 20, 200_000, tmp_path, Silent())
    assert all(mixed[strategy]["spills"] > 0 for strategy in MIXED)
    name = "ratios 3:1:1, seed 1"
    bars = judge({name: found, f"mixed {name}": mixed})
    (ratio,) = [bar.measured for bar in bars if bar.name.startswith("mixed")]
    printed, plain = (mixed[each]["share"] for each in (GLOBAL_OUTPUT_WITH_PENALTY, GLOBAL_OUTPUT))
    assert ratio == pytest.approx(printed / plain)
    assert {bar.name for bar in judge({name: found})} < {bar.name for bar in bars}


@pytest.mark.slow
def test_clean_ups_are_compared_round_by_round(found: dict[str, Any]) -> None:
    #: seconds of three rounds, the second of them on a busy machine
    taken = {strategy: [1.0, 3.0, 1.0] for strategy in CLEANED}
    taken[BOTTOM_UP] = [1.2, 3.3, 1.1]
    taken[GLOBAL_OUTPUT] = [0.9, 3.6, 1.0]
    timed = {
        strategy: {**found[strategy], "rounds": {"clean_up_cpu_seconds": seconds}}
        for strategy, seconds in taken.items()
    }
    bars = judge({"ratios 3:1:1, seed 1": {**found, **timed}})
    (ratio,) = [bar.measured for bar in bars if "clean-up after bottom up" in bar.name]
    assert ratio == pytest.approx(1.1)


@pytest.mark.slow
def test_figures_can_be_drawn(found: dict[str, Any], tmp_path: Path) -> None:
    plot({"ratios 3:1:1, seed 1": found}, tmp_path / "spill.png")
    assert (tmp_path / "spill.png").stat().st_size > 0
