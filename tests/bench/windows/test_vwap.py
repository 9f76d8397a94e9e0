from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.registry import Size
from bench.windows import vwap, vwap_on_spark
from bench.windows.vwap import VwapRun, judge, plot, run_fast, run_paced


def small(**changes: Any) -> VwapRun:
    return VwapRun(**{"name": "small", "range": 1, "rate": 20_000, **changes})


@pytest.mark.slow
def test_runs_agree_and_are_exact(tmp_path: Path) -> None:
    runs = [
        run_fast(small(), str(tmp_path / "a")),
        run_fast(small(behind=0, ahead=0), str(tmp_path / "b")),
        run_fast(small(mode="slots", pool=4), str(tmp_path / "c")),
    ]
    assert [run["wrong_results"] for run in runs] == [0, 0, 0]
    assert len({run["checksum"] for run in runs}) == 1
    assert runs[1]["on_the_way_bytes"] == 0
    for run in runs:
        assert run["requests_to_formula"] == pytest.approx(1, abs=0.2)


def test_a_rate_is_held(tmp_path: Path) -> None:
    found = run_paced(small(rate=10_000), 10_000, 0.2, str(tmp_path))
    assert found["events_per_second"] <= 10_100
    assert 0 < found["latency_ms"] <= found["latency_max_ms"]
    assert run_paced(small(), 0, 0.05, str(tmp_path))["rate"] is None


def figures() -> dict[str, Any]:
    run = {
        "events_per_second": 5e6,
        "window_bytes": 9e9,
        "pool_blocks": 2,
        "read_to_evicted": 1.0,
        "wrong_results": 0,
        "checksum": "a",
        "requests_to_formula": 1.001,
    }
    paced = {
        "rate": 50_000,
        "latency_ms": 0.1,
        "latency_max_ms": 3.0,
        "cores_used": 0.2,
        "disk_queue": None,
    }
    return {
        "overlapped": run,
        "two blocks only": {**run, "window_bytes": 1e9},
        "slots": {**run, "window_bytes": 1e9},
        "50,000/s": paced,
        "on Spark": {
            "weighted average": {
                "wrong_results": 0,
                "window_bytes": 24 * 360_000_000,
                "events_per_second": 1.1e6,
                "batch_p99_to_median": 1.5,
                "log_to_columns": 0.8,
            }
        },
        "least_window_bytes": 8 << 30,
    }


def test_every_bar_can_be_missed() -> None:
    assert all(bar.holds for bar in judge(figures()))
    for change in (
        {"events_per_second": 2e6},
        {"window_bytes": 1e9},
        {"pool_blocks": 3},
        {"read_to_evicted": None},
        {"wrong_results": 1},
        {"requests_to_formula": 1.2},
    ):
        changed = figures()
        changed["overlapped"] |= change
        assert not all(bar.holds for bar in judge(changed))
    for change in (
        {"wrong_results": 2},
        {"events_per_second": 0.9e6},
        {"batch_p99_to_median": 2.1},
        {"log_to_columns": 1.3},
    ):
        changed = figures()
        changed["on Spark"]["weighted average"] |= change
        assert not all(bar.holds for bar in judge(changed))
    changed = figures()
    changed["slots"] |= {"checksum": "b"}
    assert not all(bar.holds for bar in judge(changed))


def test_a_figure_is_drawn_also_without_a_queue(tmp_path: Path) -> None:
    plot(figures(), tmp_path / "figures" / "vwap.png")
    assert (tmp_path / "figures" / "vwap.png").stat().st_size > 0


def test_the_first_run_of_full_size_holds_8_gb() -> None:
    scale = vwap.SCALES[Size.FULL]
    assert scale.runs[0].events * 24 >= scale.least_window >= 8 << 30
    assert scale.runs[0].pool == 2
    on_spark = vwap_on_spark.SCALES[Size.FULL][vwap_on_spark.AVERAGE]
    assert on_spark.window == 360_000_000 <= on_spark.skip * on_spark.batch
