"""When snapshots are due."""

from __future__ import annotations

from typing import Any

from icestream.state.snapshot_schedule import (
    AFTER,
    AT_LATEST,
    SLACK,
    SnapshotSchedule,
    in_step,
    schedule_all,
    stagger_all,
)


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
    # what is logged beyond a snapshot is limited
    assert versions_until_due(logged=SLACK // 4, size=SLACK) == 8
    assert versions_until_due(logged=2 * SLACK, size=10) == 1


def test_a_restored_count_goes_on() -> None:
    header: dict[str, Any] = {}
    for _ in range(AFTER - 1):
        assert not SnapshotSchedule(header).version_ends(0)
    assert not SnapshotSchedule(header).taken
    assert SnapshotSchedule(header).version_ends(0)
    rebuilt = SnapshotSchedule({})
    rebuilt.resume(AFTER - 1, 100)
    assert rebuilt.version_ends(100)


def test_operators_in_step_take_snapshots_together() -> None:
    headers: list[dict[str, Any]] = [{}, {}]
    taken = []
    for version in range(3 * AT_LATEST):
        in_step(headers)
        schedules = [SnapshotSchedule(header) for header in headers]
        schedules[0].log(10)
        # the first alone would take one as soon as it may, the second as late as it must
        due = [each.version_ends(size) for each, size in zip(schedules, (1, 10**4), strict=True)]
        assert due[0] == due[1]
        if due[0]:
            taken.append(version)
            for each in schedules:
                each.take()
        assert all(each.taken == due[0] for each in schedules)
    assert taken == [AT_LATEST - 1, 2 * AT_LATEST - 1, 3 * AT_LATEST - 1]


def test_a_demanded_snapshot_is_taken_once() -> None:
    header: dict[str, Any] = {}
    plain, joins = SnapshotSchedule(header), SnapshotSchedule(header, "join-1.snapshots")
    part = SnapshotSchedule(header.setdefault("0.", {}))
    for each in (plain, joins, part):
        assert not each.version_ends(10)
    schedule_all(header, "now")
    for each in (plain, joins, part):
        assert each.version_ends(10)
        each.take()
        assert not each.version_ends(10)
    schedule_all(header, "now")
    in_step([header, header["0."]])
    assert plain.version_ends(10)
    assert part.version_ends(10)


def test_shards_take_their_snapshots_in_turns() -> None:
    headers: list[dict[str, Any]] = [{} for _ in range(2 * AFTER)]
    schedules = [SnapshotSchedule(header) for header in headers]
    for shard, header in enumerate(headers):
        stagger_all(header, shard)
    for _ in range(4 * AFTER):
        taken = 0
        for schedule in schedules:
            schedule.log(100)
            if schedule.version_ends(50):
                schedule.take()
                taken += 1
        assert taken == 2


def test_a_snapshot_that_is_held_back_waits() -> None:
    header: dict[str, Any] = {}
    schedule = SnapshotSchedule(header)
    schedule.log(10 * SLACK)
    schedule_all(header, "later")
    assert not any(schedule.version_ends(10) for _ in range(2 * AT_LATEST))
    schedule_all(header, "due")
    assert schedule.version_ends(10)
