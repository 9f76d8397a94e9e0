from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.disk import Sample, between, raw_speed, sample


def test_what_happened_is_the_difference() -> None:
    used = between(Sample(1.0, 0.5, 100, 10, 2_000), Sample(3.0, 1.5, 400, 20, 5_000))
    assert (used.seconds, used.cpu, used.read, used.written, used.queue) == (2.0, 0.5, 300, 10, 1.5)


def test_a_missing_counter_stays_missing() -> None:
    used = between(Sample(1.0, 0.5, None, None, None), Sample(3.0, 1.5, None, None, None))
    assert (used.read, used.written, used.queue) == (None, None, None)


def test_raw_transfers_reach_the_device_and_leave_nothing(tmp_path: Path) -> None:
    before = sample(tmp_path)
    try:
        speeds = raw_speed(tmp_path, 1 << 20, 64 << 10)
    except OSError:
        pytest.skip("no direct transfers on this file system")
    used = between(before, sample(tmp_path))
    assert set(speeds) == {"write", "read", "both"}
    assert min(speeds.values()) > 0
    assert used.read is None or used.read >= 2 << 20
    assert not os.listdir(tmp_path)
