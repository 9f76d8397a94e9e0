from __future__ import annotations

from pathlib import Path

import pytest

from bench.joins.stream_join import HOWS, ICESTREAM, SCALES, SPARK, judge, plot, summarise
from bench.registry import Size

RATES = {ICESTREAM: 50_000.0, SPARK: 2_000.0}
BOTH = [SPARK, ICESTREAM]


def test_every_kind_of_join_is_held_against_spark() -> None:
    figures = {how: summarise(RATES, BOTH) for how in HOWS}
    assert figures["full"]["ratio_spark"] == 25
    assert all(bar.holds for bar in judge(figures))


def test_rows_that_differ_are_no_agreement() -> None:
    figures = {how: summarise(RATES, BOTH) for how in HOWS}
    figures["left"] = summarise(RATES, [SPARK])
    assert [bar.name for bar in judge(figures) if not bar.holds] == ["left: systems that agree"]


def test_without_the_peer_no_ratio_holds() -> None:
    figures = {"inner": summarise({ICESTREAM: 1.0}, [ICESTREAM])}
    assert not any(bar.holds for bar in judge(figures))


def test_a_system_reads_its_batches_of_both_streams() -> None:
    for size in Size:
        scale = SCALES[size]
        batch = scale.rows_per_file * scale.files_per_trigger
        assert scale.rows(SPARK) == batch * scale.feeds[SPARK].batches
        assert all(feed.skip < feed.batches for feed in scale.feeds.values())


def test_the_figure_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot({how: summarise(RATES, BOTH) for how in HOWS}, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 1_000
