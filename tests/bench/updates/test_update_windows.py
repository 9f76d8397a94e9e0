from __future__ import annotations

from pathlib import Path

import pytest

from bench.harness import Silent
from bench.registry import Measurement, Size
from bench.updates import update_windows as bench


@pytest.fixture(scope="module")
def measured() -> Measurement:
    return bench.measure(Size.SMALL, Silent())


def test_windows_of_one_key_are_as_stale_as_computed_by_hand(measured: Measurement) -> None:
    claims = measured.figures["claims"]
    assert all(
        verdict["holds"]
        for claim, verdict in claims.items()
        if claim.startswith(("tumbling", "sliding"))
    )


def test_every_bar_holds_on_a_small_run(measured: Measurement) -> None:
    assert [bar.name for bar in measured.bars if not bar.holds] == []


def test_claims_that_do_not_hold_are_reported(measured: Measurement) -> None:
    claims = measured.figures["claims"]
    assert not claims["ten keys, common time, in turn: EAGER is fresher than LAZY at every size"][
        "holds"
    ]


def test_the_figures_are_drawn(measured: Measurement, tmp_path: Path) -> None:
    bench.plot(measured.figures, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000
