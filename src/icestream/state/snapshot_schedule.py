"""When a shard writes a snapshot of its state.

Idea: a snapshot bounds what a restore has to read, and what is dead on the log until then. It is
due after some versions once it costs no more than what was logged since the last one; at once if
that is a megabyte more; and after many versions in any case. The count is in the header of the
arena, so that every task of a shard continues it.

Invariants:
1. Between two snapshots are at most `AT_LATEST` versions, and at least `AFTER` unless they logged
   `SLACK` bytes more than a snapshot has (`test_bounded_versions_between_snapshots`).
2. A restored shard continues the count (`test_a_restored_count_goes_on`).
3. A snapshot that was demanded is taken with the next version
   (`test_a_demanded_snapshot_is_taken_once`).
4. No snapshot is taken while it is held back (`test_a_snapshot_that_is_held_back_waits`).
5. Shards that begin with a version do not all take their snapshots in the same ones
   (`test_shards_take_their_snapshots_in_turns`).
6. Operators in step take their snapshots in the same versions
   (`test_operators_in_step_take_snapshots_together`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal

#: a snapshot is due after this many versions, if it costs less than what was logged meanwhile
AFTER = 16
#: and after this many in any case
AT_LATEST = 128
#: bytes that may be logged beyond the size of a snapshot before one is due at once
SLACK = 1 << 20
#: versions by which a shard is ahead of the one before, until `AFTER`, which it has no divisor with
_STEP = 7
#: whether a version ends with a snapshot
When = Literal["due", "now", "later"]
#: how the names of schedules in headers end
_NAME = "snapshots"


class SnapshotSchedule:
    """Counts versions and bytes since the last snapshot of a shard."""

    def __init__(self, header: dict[str, Any], name: str = _NAME) -> None:
        """Continue the count in an arena's header, or start one."""
        self._since: dict[str, int] = header.setdefault(
            name, {"versions": 0, "bytes": 0, "taken": 0}
        )

    @property
    def taken(self) -> bool:
        """Return whether the last version has a snapshot."""
        return self._since["versions"] == 0 and self._since["taken"] > 0

    def log(self, size: int) -> None:
        """Count bytes that a restore would have to read."""
        self._since["bytes"] += size

    def version_ends(self, size: int) -> bool:
        """Count a version; return whether it should end with a snapshot of about `size` bytes."""
        self._since["versions"] += 1
        self._since["size"] = size
        if "due" in self._since:
            return self._since["due"] > 0
        return _due([self._since])

    def demand(self) -> None:
        """Let the next version end with a snapshot."""
        self._since["demanded"] = 1

    def hold(self, *, back: bool) -> None:
        """Let versions not end with snapshots, or again when these are due."""
        if back:
            self._since["held"] = 1
        else:
            self._since.pop("held", None)

    def hasten(self, versions: int) -> None:
        """Count more versions than there were."""
        self._since["versions"] += versions

    def resume(self, versions: int, size: int) -> None:
        """Continue after a restore that replayed `versions` versions of `size` bytes."""
        self._since.update(versions=versions, bytes=size)

    def take(self) -> None:
        """Restart the count: the current version has a snapshot."""
        self._since.update(versions=0, bytes=0, taken=self._since["taken"] + 1)
        self._since.pop("demanded", None)


def in_step(headers: Iterable[dict[str, Any]]) -> None:
    """Schedule snapshots of a shard's operators, each with a header, in the same versions.

    Call it before the version that may end with one: its cost is known from the last.
    """
    counts = [SnapshotSchedule(header)._since for header in headers]
    due = _due([{**each, "versions": each["versions"] + 1} for each in counts])
    for each in counts:
        each["due"] = int(due)


def schedule_all(header: dict[str, Any], when: When) -> None:
    """Say when operators whose schedules a header has end a version with a snapshot."""
    for schedule in _schedules(header):
        schedule.hold(back=when == "later")
        if when == "now":
            schedule.demand()


def stagger_all(header: dict[str, Any], shard: int) -> None:
    """Begin the counts of a shard on a new arena ahead, so that shards take turns."""
    for schedule in _schedules(header):
        schedule.hasten(shard * _STEP % AFTER)


def _schedules(header: dict[str, Any]) -> Iterator[SnapshotSchedule]:
    for name, value in header.items():
        if isinstance(value, dict):
            if name.endswith(_NAME):
                yield SnapshotSchedule(header, name)
            else:
                yield from _schedules(value)


def _due(counts: list[dict[str, int]]) -> bool:
    """Return whether snapshots are due, given versions, bytes and size of each."""
    if any("demanded" in each for each in counts):
        return True
    if any("held" in each for each in counts):
        return False
    versions = min(each["versions"] for each in counts)
    logged, size = (sum(each.get(name, 0) for each in counts) for name in ("bytes", "size"))
    if versions < AFTER:
        return logged >= size + SLACK
    return logged >= size or versions >= AT_LATEST
