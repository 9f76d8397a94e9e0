from __future__ import annotations

from pathlib import Path

import pytest

from bench.joins.pair_agreement import JoinPairs
from bench.joins.stream_join import ICESTREAM, SCALES, SPARK, judge, plot, summarise
from bench.registry import Size

RATES = {ICESTREAM: 50_000.0, SPARK: 2_000.0}
SAME = {
    SPARK: (JoinPairs(5, 77), JoinPairs(5, 77)),
    ICESTREAM: (JoinPairs(9, 12), JoinPairs(9, 12)),
}


def test_each_system_is_held_against_what_is_expected_of_its_rows() -> None:
    figures = summarise(RATES, SAME)
    assert figures["ratio_spark"] == 25
    assert figures["agree"] == [SPARK, ICESTREAM]
    assert all(bar.holds for bar in judge(figures))


def test_a_checksum_that_differs_is_no_agreement() -> None:
    figures = summarise(RATES, {**SAME, ICESTREAM: (JoinPairs(9, 13), JoinPairs(9, 12))})
    assert figures["agree"] == [SPARK]
    assert not judge(figures)[-1].holds


def test_without_the_peer_no_ratio_holds() -> None:
    figures = summarise({ICESTREAM: 1.0}, {ICESTREAM: SAME[ICESTREAM]})
    assert not any(bar.holds for bar in judge(figures))


def test_a_system_reads_its_batches_of_both_streams() -> None:
    for size in Size:
        scale = SCALES[size]
        batch = scale.rows_per_file * scale.files_per_trigger
        assert scale.rows(SPARK) == batch * scale.feeds[SPARK].batches
        assert all(feed.skip < feed.batches for feed in scale.feeds.values())


def test_the_figure_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot(summarise(RATES, SAME), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 1_000
