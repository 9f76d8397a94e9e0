"""Points of the bench `density`, without running any system."""

from __future__ import annotations

import pytest

from bench.windows import density
from icestream.core.units import parse_interval


def test_medians_are_compared_and_a_peer_has_at_least_its_rate_in_the_search() -> None:
    flink = {"best": "heap|plain", "heap|plain": 5.0, "rocksdb|plain": 1.0, "version": "2"}
    runs: dict[str, list[float | None]] = {
        "icestream": [9.0, 30.0, 12.0],
        "spark": [0.5, None, 0.3],
        "flink": [4.0, 4.5, 3.0],
    }
    found = density.summarise(runs, flink)
    assert found["ratio_flink"] == pytest.approx(12 / 5)
    assert found["ratio_spark"] == pytest.approx(12 / 0.4)
    assert found["flink_search"] == {"heap|plain": 5.0, "rocksdb|plain": 1.0}


def test_a_peer_that_did_not_run_has_no_ratio() -> None:
    found = density.summarise({"icestream": [3.0], "spark": [], "flink": []}, {})
    assert found["icestream_eps"] == 3.0
    assert found["ratio_flink"] is None
    assert found["ratio_spark"] is None


@pytest.mark.parametrize("point", density.POINTS, ids=lambda point: str(point.name))
def test_windows_are_full_before_icestream_is_measured(point: density.Point) -> None:
    feed = point.icestream
    batch = feed.rows_per_file * feed.files_per_trigger
    window = parse_interval(point.range) // 1_000 * point.shape.per_tick
    assert feed.skip * batch >= window
    assert feed.batches > feed.skip
    assert feed.batches * batch <= 100_000_000
