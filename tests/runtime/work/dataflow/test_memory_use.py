from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from icestream.runtime.version.quotas import ShardMemory
from icestream.runtime.version.task import ShardReport
from icestream.runtime.work.dataflow.memory_use import MemoryUse


def report(shard: int, needed: int, read: int = 0) -> ShardReport:
    reported: dict[str, Any] = {"needed_bytes": needed, "cold": {"bytes_read": read}}
    return ShardReport(
        shard=shard,
        arena="",
        segments=[],
        rows=[],
        snapshot=False,
        rebuilt=False,
        released=(),
        parcel=None,
        statistics=reported,
    )


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), min_size=1, max_size=5))
def test_nobody_holds_more_than_was_given(shards: list[tuple[int, int]]) -> None:
    reports = [report(number, needed) for number, (needed, _) in enumerate(shards)]
    given_out = [quota for _, quota in shards]
    found = MemoryUse.after(MemoryUse(), reports, given_out)
    assert sum(each.held for each in found.of.values()) <= sum(given_out)
    assert MemoryUse.from_json(found.to_json()) == found


def test_who_reads_groups_back_asks_for_more() -> None:
    first = MemoryUse.after(MemoryUse(), [report(0, 50), report(1, 50, 10)], [100, 100])
    assert first.of == {0: ShardMemory(50, 50), 1: ShardMemory(50, 60)}
    then = MemoryUse.after(first, [report(0, 70), report(1, 50, 90)], [100, 100])
    assert then.of == {0: ShardMemory(70, 20 + 25), 1: ShardMemory(50, 80 + 30)}


def test_an_arena_that_is_new_has_read_nothing_less() -> None:
    before = MemoryUse({0: ShardMemory(80, 4)}, {0: 1_000})
    after = MemoryUse.after(before, [report(0, 20, 5)], [100])
    assert after.of == {0: ShardMemory(20, 2)}
