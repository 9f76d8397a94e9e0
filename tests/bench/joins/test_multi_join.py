from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.joins.icestream_multi_join import told
from bench.joins.multi_join import (
    FLINK,
    ICESTREAM,
    PRESSED,
    REORDERED,
    SCALES,
    SMALL,
    SPARK,
    judge,
    plot,
    summarise,
)
from bench.joins.multi_join_agreement import ExpectedResults

RUNS: dict[str, dict[str, Any]] = {
    SPARK: {"eps": 2_000.0},
    REORDERED: {"eps": 5_000.0},
    ICESTREAM: {"eps": 50_000.0, "phases": [{"ingest": 1}, {"ingest": 2}, {}], "spilling": {}},
    SMALL: {"eps": 90_000.0},
    PRESSED: {"eps": 30_000.0},
}
RATES = {"rates": {"plain": 10_000.0, "mini-batch": 20_000.0}}
SAME = {name: (ExpectedResults(5, 77), ExpectedResults(5, 77)) for name in (*RUNS, FLINK)}


def test_each_system_is_held_against_what_is_expected_of_its_rows() -> None:
    figures = summarise(RUNS, RATES, SAME)
    assert figures["ratio_spark"] == 25
    assert figures["spark_reordered_eps"] == 5_000
    assert figures["ratio_flink"] == 2.5
    assert figures["phases"] == {ICESTREAM: {"ingest": 2}}
    assert all(bar.holds for bar in judge(figures, len(SAME)))


def test_a_checksum_that_differs_is_no_agreement() -> None:
    figures = summarise(
        RUNS, RATES, {**SAME, FLINK: (ExpectedResults(5, 78), ExpectedResults(5, 77))}
    )
    assert FLINK not in figures["agree"]
    assert not judge(figures, len(SAME))[-1].holds


def test_without_the_peers_no_bar_holds() -> None:
    figures = summarise({ICESTREAM: RUNS[ICESTREAM]}, {}, {ICESTREAM: SAME[ICESTREAM]})
    assert not any(bar.holds for bar in judge(figures, len(SAME)))


def test_clean_up_counts_in_the_rate() -> None:
    joins = [{"lateRows": 3}, {"lateRows": 4}]
    facts = {"spills": 2, "bytesSpilled": 10, "joins": joins, "peakMemoryBytes": 50}
    found = told(
        {"batches": [(100, 900), (100, 400), (100, 400), (0, 200)]}, [{"icestream": facts}] * 2, 1
    )
    assert found["eps"] == 200
    assert found["spilling"]["lateRows"] == 14
    assert found["spilling"]["clean_up_ms"] == 200


def test_icestream_and_spark_are_fed_alike() -> None:
    for scale in SCALES.values():
        cases = {case.name: case for case in scale.cases}
        assert cases[SPARK].batch == cases[ICESTREAM].batch
        assert all(case.skip < case.batches for case in scale.cases)
        assert scale.flink_compared <= scale.flink_rows


def test_the_figure_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot(summarise(RUNS, RATES, SAME), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 1_000
