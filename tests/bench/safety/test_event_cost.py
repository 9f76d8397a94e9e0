"""What an event costs in little memory."""

from __future__ import annotations

from pathlib import Path

from bench.safety.budget import judge_costs
from bench.safety.event_cost import Events, batch_costs, object_rate

TINY = Events(60_000, (20_000, 60_000), 480_000, 120_000)


def test_batches_of_any_size_give_the_same_rows(tmp_path: Path) -> None:
    found = batch_costs(TINY, tmp_path)
    assert found["rows"]["20000"] == found["rows"]["60000"] > 50_000
    assert found["ratio"] >= 1


def test_objects_of_four_grouping_sets_are_counted(tmp_path: Path) -> None:
    found = object_rate(TINY, tmp_path)
    # a window has 231 groups: 200, 20, 10 and one of all; it moves every 60,000 events
    assert 231 * 6 <= found["rows"] <= 231 * 8


def test_costs_are_judged() -> None:
    costs = {"batches": {"ratio": 1.4}, "objects": {"events_per_cpu_second": 60_000}}
    assert [bar.holds for bar in judge_costs(costs)] == [False, True]
