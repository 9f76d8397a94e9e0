from __future__ import annotations

from pathlib import Path

from bench.adaptation import migration
from bench.research.split_combine import ComponentShape


def test_every_way_is_measured_and_only_copies_count_bytes(tmp_path: Path) -> None:
    found = migration.moves(tmp_path, ComponentShape.SPLIT, 50, 2)
    assert {*found} == {name for name, _, _ in migration.KINDS[ComponentShape.SPLIT]}
    assert all(row["pause_ms"] > 0 for row in found.values())
    assert [name for name, row in found.items() if "bytes" in row] == ["disruptive"]


def figures(*, instant: float, growth: float, copy: float) -> dict[str, object]:
    def row(pause: float) -> dict[str, float]:
        return {"pause_ms": pause, "processor_ms": pause, "raw_processor_ms": copy * pause}

    return {
        "keys": [1_000, 50_000, 100_000],
        "split": {
            "disruptive": [row(10), row(100), row(210)],
            "instant": [row(1), row(instant), row(1 + growth)],
        },
        "combined": {"disruptive": [row(20), row(200), row(420)]},
    }


def test_bars_are_held_at_fifty_thousand_keys() -> None:
    good = migration.bars(figures(instant=10, growth=10, copy=0.5))
    assert all(bar.holds for bar in good)
    bad = migration.bars(figures(instant=11, growth=11, copy=0.4))
    assert not any(bar.holds for bar in bad)


def test_pauses_are_drawn(tmp_path: Path) -> None:
    migration.plot(figures(instant=1, growth=1, copy=1), tmp_path / "pauses.png")
    assert (tmp_path / "pauses.png").stat().st_size > 0
