from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.harness import Silent
from bench.registry import Size
from bench.updates import staleness
from bench.updates.staleness_streams import TICKS, streams
from icestream.core.errors import InputError


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TICKS, raising=False)
    monkeypatch.setattr(staleness, "SERVICES", {Size.SMALL: 300, Size.FULL: 300})
    first = next(iter(staleness.OPTIMA.items()))
    monkeypatch.setattr(staleness, "OPTIMA", dict([first]))


@pytest.mark.slow
@pytest.mark.usefixtures("tiny")
def test_figures_are_the_same_every_time(tmp_path: Path) -> None:
    one, other = (staleness.measure(Size.SMALL, Silent()) for _ in range(2))
    figures: list[dict[str, Any]] = [dict(each.figures) for each in (one, other)]
    for each in figures:
        assert each.pop("events per second") > 0
    assert figures[0] == figures[1]
    bars = {bar.name: bar for bar in one.bars}
    assert bars["IN-PLACE over the optimum, equal rates"].holds
    assert all(bar.holds for bar in one.bars if "wait * cost" in bar.name)
    staleness.plot(one.figures, tmp_path / "staleness.png")
    assert (tmp_path / "staleness.png").stat().st_size > 10_000


def test_the_users_ticks_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ticks.csv"
    path.write_text("at,symbol\n" + "".join(f"{n * 60_000},S{n % 3}\n" for n in range(30)))
    monkeypatch.setenv(TICKS, f"{path}:at:symbol")
    made = streams()["ticks"](0, 500.0)
    assert (len(made), made.key_count) == (30, 3)
    assert made.load(1_000) == pytest.approx(2.0, rel=0.05)
    monkeypatch.setenv(TICKS, str(path))
    with pytest.raises(InputError, match="time column"):
        streams()
