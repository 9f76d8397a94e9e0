from __future__ import annotations

from pathlib import Path

import pytest

from bench.adaptation import shard_cost
from bench.adaptation.shard_cost import Batches, cost_of_shards, per_shard
from bench.registry import Size


def test_versions_are_timed_by_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_cost, "CASES", {Size.SMALL: (Batches(40, 10, 1),)})
    monkeypatch.setattr(shard_cost, "SHARDS", (1, 3))
    found = cost_of_shards(Size.SMALL, tmp_path)
    assert [(row["events"], row["shards"]) for row in found] == [(40, 1), (40, 3)]
    assert all(row["ms"] > 0 < row["processor_ms"] for row in found)


def test_a_further_shard_is_told_by_the_smallest_batches() -> None:
    rows = [
        {"events": 1_000, "shards": 2, "ms": 20.0, "processor_ms": 10.0},
        {"events": 1_000, "shards": 8, "ms": 24.0, "processor_ms": 12.0},
        {"events": 1_000, "shards": 12, "ms": 30.0, "processor_ms": 15.0},
        {"events": 500_000, "shards": 2, "ms": 198.0, "processor_ms": 99.0},
    ]
    assert per_shard(rows, "processor_ms") == 0.5
    assert per_shard(rows, "ms") == 1.0
