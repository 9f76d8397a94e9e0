from __future__ import annotations

from pathlib import Path

import pytest

from bench.adaptation import scale


def test_a_small_checkpoint_stays_as_large_as_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(scale, "WARM", scale.SNAPSHOTS + 2)
    monkeypatch.setattr(scale, "scratch", lambda *_: tmp_path)
    row = scale.measured(scale.Case(4, 1_000))
    # a segment of each shard is added and another one expires, and one has a snapshot at times
    assert 8 <= row["changed"] <= 10
    assert row["written"] > 0
    assert 1_000 <= row["live"] <= 1_000 + 4 * (scale.SNAPSHOTS + 2)
