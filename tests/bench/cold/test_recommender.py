from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from icestream.bench.cold.recommender import Histories, histories, judge
from icestream.bench.cold.recommender_over_time import (
    Compared,
    Scale,
    compare,
    figures_of,
    flow_of,
    plot,
)

SCALE = Scale(600, 300, 1_600, 800, 150, 30, 2, settling=1)


@pytest.fixture(scope="module")
def compared(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Compared:
    assert spark.version
    folder = tmp_path_factory.mktemp("recommender")
    return compare(flow_of(SCALE.window), SCALE, SCALE.ratings, 1, folder)


@pytest.mark.spark
def test_oracle_both_answer_as_the_offline_model(compared: Compared) -> None:
    assert compared.wrong == 0
    assert compared.enough.cold["left"] == 0
    assert compared.enough.events == compared.little.events


@pytest.mark.spark
def test_bounded_state_stays_below_its_limit(compared: Compared) -> None:
    assert compared.little.peak <= compared.budget
    assert compared.little.held[-1] < compared.enough.held[-1]


@pytest.mark.spark
def test_figures_are_judged_and_drawn(compared: Compared, tmp_path: Path) -> None:
    found = figures_of(compared, SCALE)
    assert len(found["ratios"]) == 2
    assert len(found["lines"]["enough"]) == len(found["lines"]["little"]) == 4
    assert found["enough_reads_per_second"] == 0
    figures: dict[str, Any] = {
        "recommend only": found,
        "mixed": found,
        "updates 10 %": {"memory_saved_at_the_end": 0.3},
        "histories": {"peak_bytes": 400 << 20, "wrong": 1},
    }
    bars = {bar.name: bar for bar in judge(figures)}
    assert bars["MB of state for all histories"].holds
    assert not bars["wrong answers"].holds
    plot(figures, tmp_path / "figures" / "recommender.png")
    assert (tmp_path / "figures" / "recommender.png").stat().st_size > 0


def test_oracle_histories_are_exact_in_little_memory(tmp_path: Path) -> None:
    scale = Histories(500, 200, 40_000, 10_000, 1_000, 500, 2 << 20)
    figures = histories(scale, tmp_path)
    assert figures["wrong"] == 0
    assert figures["groups_left"] > 0
    assert figures["peak_bytes"] <= scale.budget
