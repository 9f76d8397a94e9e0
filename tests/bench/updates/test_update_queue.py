from __future__ import annotations

from pathlib import Path

import pytest

from bench.updates import update_queue
from bench.updates.spilled_keys import spilled
from icestream.state.queue.order import SCHEDULES


@pytest.mark.parametrize("schedule", [*SCHEDULES, "append"])
def test_rates_are_measured(schedule: str) -> None:
    found = update_queue.operations(schedule, 1, keys=1000)
    assert found["enqueues_per_second"] > 0
    assert found["dequeues_per_second"] > 0


def test_rates_with_more_keys_than_fit_are_measured() -> None:
    found = spilled("inplace", 1, little=2 << 20)
    assert found["keys"] == 8 * found["keys that fit"]
    assert found["enqueues_per_processor_second"] > 0
    assert found["dequeues_by_all_in_memory"] > 0


def test_on_demand_paging_keeps_no_location_that_nobody_waits_for() -> None:
    kept = update_queue.usage(0.9, 50, naive=False, results=50)
    naive = update_queue.usage(0.9, 50, naive=True, results=50)
    assert kept["effective_use"] == 1.0
    assert naive["effective_use"] < 1.0
    assert kept["locations"] < naive["locations"]


def test_pages_go_back_after_a_burst_and_can_be_drawn(tmp_path: Path) -> None:
    pages = {
        name: update_queue.bursts(naive=name == "naive", keys=500, steps=24)
        for name in ("on demand", "naive")
    }
    assert pages["on demand"][-1] == 0
    assert pages["naive"][-1] == max(pages["naive"])
    memory = [
        {"skew": 0.0, "rate": 20, "manager": manager, "effective_use": 1.0, "locations": 3.0}
        for manager in pages
    ]
    rates = [{"schedule": "fifo", "enqueues_per_second": 1.0, "dequeues_per_second": 1.0}]
    target = tmp_path / "figure.png"
    update_queue.plot({"rates": rates, "memory": memory, "pages": pages}, target)
    assert target.stat().st_size > 0
