from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.registry import Size
from bench.updates.overload import ON_SPARK, SCALES, judge, judge_paced, judge_rare, plot, summarise
from bench.updates.paced_batches import longest_batches, waits_of_rare_keys
from bench.updates.paced_on_spark import CASES


def found(staleness: float, batches: list[float]) -> dict[str, Any]:
    return {
        "staleness": staleness,
        "batches": batches,
        "reported": staleness,
        "answers_per_second": 60.0,
    }


def test_streams_are_held_against_each_other(tmp_path: Path) -> None:
    runs = {
        "inplace at 5": found(1.0, [0.9, 1.1]),
        "append at 5": found(20.0, [5.0, 25.0]),
        "shedding at 5": found(3.0, [1.0]),
    }
    figures = summarise(runs, SCALES[Size.SMALL])
    assert figures["load 5"]["append_times"] == 20
    *bars, answers = judge(figures, Size.FULL)
    assert len(bars) == 4
    assert all(bar.holds for bar in bars)
    assert answers.name == "load 5: answers / possible"
    assert not answers.holds
    plot({"loads": figures}, tmp_path / "overload.png")
    assert (tmp_path / "overload.png").exists()


def test_a_run_that_failed_holds_no_bar() -> None:
    figures = summarise({}, SCALES[Size.SMALL])
    assert not any(bar.holds for bar in judge(figures, Size.FULL))


def test_paced_batches_are_the_same_every_time() -> None:
    slow = longest_batches()
    assert slow == longest_batches()
    assert all(bar.holds for bar in judge_paced(slow))
    assert all(bar.holds for bar in judge_rare({"inplace": waits_of_rare_keys("inplace")}))


def test_every_case_on_spark_is_run() -> None:
    assert set(CASES) == set(ON_SPARK)
