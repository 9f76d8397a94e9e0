from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from bench.cold.recommender import Histories, clean_groups, histories, judge
from bench.cold.recommender_figures import plot
from bench.cold.recommender_for_ever import Lasting, RunningModel, for_ever
from bench.cold.recommender_over_time import (
    EVICT,
    EVICT_ALL,
    ROUNDS,
    SWITCHED,
    Compared,
    Scale,
    compare,
    figures_of,
    flow_of,
    moved,
)
from examples.recommender.generator import Ratings
from examples.recommender.offline import SimilarityModel

SCALE = Scale(600, 300, 1_600, 800, 30, 1, settling=1)


@pytest.fixture(scope="module")
def compared(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Compared:
    assert spark.version
    folder = tmp_path_factory.mktemp("recommender")
    return compare(flow_of(SCALE.window), SCALE, 1, folder, SWITCHED)


@pytest.mark.spark
def test_oracle_all_answer_as_the_offline_model(compared: Compared) -> None:
    assert compared.wrong == 0
    assert list(compared.sides) == list(SWITCHED)
    assert compared.sides["enough"].run.cold["left"] == 0
    assert all(
        side.run.events == [SCALE.warm_batch] * 2 + [SCALE.batch] * 6
        for side in compared.sides.values()
    )


@pytest.mark.spark
def test_bounded_state_stays_below_its_limit(compared: Compared) -> None:
    enough, little = (compared.sides[name].run for name in ("enough", "little"))
    assert little.peak <= compared.budget
    assert little.held[-1] < enough.held[-1]


@pytest.mark.spark
def test_clean_groups_are_written_only_where_they_are_asked_to_be(compared: Compared) -> None:
    found = moved(compared)
    assert found["enough"]["reads_per_second"] == 0
    assert found["enough"]["bytes_evicted"] == 0
    assert found[EVICT]["bytes_written"] == found[EVICT]["bytes_evicted"]
    free, written = (compared.sides[name].run.cold for name in (EVICT, EVICT_ALL))
    assert 0 < free["evicted"] < written["evicted"]
    assert free["extents"] <= free["left"]
    assert written["extents"] == written["left"]


@pytest.mark.spark
def test_figures_are_judged_and_drawn(compared: Compared, tmp_path: Path) -> None:
    found = figures_of(compared, SCALE)
    assert len(found["ratios"]) == len(found["cpu_ratios"]) == ROUNDS
    assert len(found["lines"]["enough"]) == len(found["lines"]["little"]) == ROUNDS
    figures: dict[str, Any] = {
        "recommend only": found,
        "recommend only, large batches": found,
        "mixed": found,
        **{f"mixed: {name}": each for name, each in moved(compared).items()},
        "updates 10 %": {"memory_saved_at_the_end": 0.3},
        "histories": {"peak_bytes": 400 << 20, "wrong": 1},
        "ratings for ever": {
            "ratings_per_cpu_second_at_the_end": 1_200,
            "log_to_live": 2.5,
            "lines": found["lines"],
        },
    }
    assert set(clean_groups(figures)) == {
        f"{what} saved, {mode}"
        for what in ("bytes_evicted", "groups_written")
        for mode in ("evict", "log")
    }
    bars = {bar.name: bar for bar in judge(figures)}
    assert bars["MB of state for all histories"].holds
    assert not bars["wrong answers"].holds
    plot(figures, tmp_path / "figures" / "recommender.png")
    assert (tmp_path / "figures" / "recommender.png").stat().st_size > 0


@pytest.mark.spark
def test_oracle_ratings_for_ever_are_answered_as_by_the_offline_model(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ICESTREAM_RATINGS", raising=False)
    assert spark.version
    figures = for_ever(Lasting(100, 60, 400, 100, 8 << 20), flow_of(None), tmp_path)
    assert (figures["ratings"], figures["of_a_file"], figures["wrong"]) == (400, False, 0)
    assert figures["answers_compared"] == 100
    assert 0 < figures["live_bytes"] < figures["log_bytes"]


def test_oracle_the_running_model_is_the_offline_model() -> None:
    ratings, model = Ratings(40, 25, 300).table(), RunningModel()
    users, items, values = (ratings.column(n).to_numpy().copy() for n in ("user", "item", "rating"))
    # a user may rate an item more than once, and some items are hated by all
    items[::50], values[items % 5 == 0] = items[1], 0.0
    ratings = ratings.set_column(2, "item", pa.array(items)).set_column(
        3, "rating", pa.array(values)
    )
    for row in range(300):
        model.rate(int(users[row]), int(items[row]), float(values[row]))
    last = int(ratings.column("time").cast(pa.int64()).to_numpy()[-1])
    offline = SimilarityModel.at(ratings, last)
    assert model.pairs > len(offline.neighbour) > 0
    for user in np.unique(users).tolist():
        wanted, found = offline.scores(user), model.scores(user)
        assert found[0].tolist() == wanted[0].tolist()
        np.testing.assert_allclose(found[1], wanted[1], rtol=1e-12)


def test_oracle_histories_are_exact_in_little_memory(tmp_path: Path) -> None:
    scale = Histories(500, 200, 40_000, 10_000, 1_000, 500, 2 << 20)
    figures = histories(scale, tmp_path)
    assert figures["wrong"] == 0
    assert figures["groups_left"] > 0
    assert figures["peak_bytes"] <= scale.budget
