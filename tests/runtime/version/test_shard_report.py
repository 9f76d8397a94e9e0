from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from icestream.core.times import INFINITY
from icestream.runtime.version.shard_report import key_group_facts, shard_facts
from icestream.runtime.version.task import ShardReport
from icestream.state.log.format import SegmentInfo
from icestream.state.log.segments import segment_name
from icestream.state.versions.commits import EVENTS, NO_SHARD, Commit, LiveSegment
from icestream.state.versions.live_segments import LiveSegments
from tests.fixtures.checkpoints import events, opened


def segment(ordinal: int, size: int) -> SegmentInfo:
    return SegmentInfo(ordinal, segment_name(ordinal, "0" * 16), size, 1, INFINITY, 0)


def report(shard: int, memory: int, written: int, **statistics: Any) -> ShardReport:
    reported = {"memory_bytes": memory, "groups": 3, "seconds": 0.25, **statistics}
    segments = [("groups", segment(shard, written))]
    return ShardReport(shard, "arena", segments, [2, 1], False, False, statistics=reported)


def test_oracle_operators_add_up_to_the_whole() -> None:
    cold = {"directory_bytes": 10, "indexed": 4}
    reports = [report(shard, 100 + shard, 7, cold=cold) for shard in range(4)]
    live = [LiveSegment(shard, 1, "groups", segment(shard, 50 + shard)) for shard in range(4)]
    live.append(LiveSegment(NO_SHARD, 1, EVENTS, segment(9, 1000)))
    segments = LiveSegments()
    segments.advance(Commit(1, 0, added=tuple(live), bases=(0,) * 4))
    facts = shard_facts(reports, segments, jobs=2)
    first, second = facts["operators"]
    assert first == {
        "memoryBytes": 201,
        "indexBytes": 20,
        "logBytes": 101,
        "groups": 6,
        "coldGroups": 8,
    }
    assert first["memoryBytes"] + second["memoryBytes"] == sum(facts["shards"]["memoryBytes"])
    on_disk = first["logBytes"] + second["logBytes"] + facts["eventsBytes"]
    assert on_disk == sum(each.info.bytes for each in live)


def test_every_list_has_a_place_for_each_shard() -> None:
    facts = shard_facts([report(shard, 1, 5) for shard in range(6)], LiveSegments(), jobs=3)
    assert {len(each) for each in facts["shards"].values()} == {6}
    assert facts["shards"]["writtenBytes"] == [5] * 6
    assert facts["shards"]["resultRows"] == [3] * 6


def test_oracle_key_groups_add_up_to_what_was_sent() -> None:
    reported = key_group_facts([{0: 5, 3: 1}, {3: 2}], [0, 0, 1, 1, 0])
    assert reported == {
        "keyGroups": {"entries": [5, 0, 0, 3, 0], "owners": [[0, 2], [1, 2], [0, 1]]},
    }


def test_a_batch_that_sent_nothing_reports_nothing_of_key_groups() -> None:
    assert key_group_facts([{}], [0, 1]) == {}


@pytest.mark.parametrize("kind", ["windows", "groups", "updates"])
def test_parity_key_groups_of_a_batch_add_up_to_its_entries(kind: str, tmp_path: Path) -> None:
    query = opened(kind, str(tmp_path))
    [delivered] = query.driver.batch(0, events(query.plan, 0))
    reported = delivered.progress["icestream"]
    assert sum(reported["keyGroups"]["entries"]) == reported["entries"] > 0
    assert sum(many for _, many in reported["keyGroups"]["owners"]) == query.plan.key_groups
    query.close()
