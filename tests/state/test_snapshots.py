"""When snapshots are due."""

from __future__ import annotations

from typing import Any

from icestream.state.snapshots import AFTER, AT_LATEST, SnapshotSchedule


def versions_until_due(logged: int, size: int) -> int:
    schedule = SnapshotSchedule({})
    for version in range(1, 1000):
        schedule.log(logged)
        if schedule.version_ends(size):
            schedule.take()
            assert schedule.taken
            return version
    return 1000


def test_bounded_versions_between_snapshots() -> None:
    assert versions_until_due(logged=1000, size=10) == AFTER
    assert versions_until_due(logged=10, size=10 * 50) == 50
    assert versions_until_due(logged=0, size=10) == AT_LATEST


def test_a_restored_count_goes_on() -> None:
    header: dict[str, Any] = {}
    for _ in range(AFTER - 1):
        assert not SnapshotSchedule(header).version_ends(0)
    assert not SnapshotSchedule(header).taken
    assert SnapshotSchedule(header).version_ends(0)
    rebuilt = SnapshotSchedule({})
    rebuilt.resume(AFTER - 1, 100)
    assert rebuilt.version_ends(100)
