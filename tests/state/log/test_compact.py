from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.core.errors import DamageError
from icestream.core.times import INFINITY
from icestream.state.log.compact import compact
from icestream.state.log.format import NO_MARKER, ordinal_of
from icestream.state.log.reader import Log
from icestream.state.log.writer import SegmentWriter
from icestream.testing.log_machine import join_payloads
from icestream.testing.simulated_disk import SimulatedDisk


def store(
    disk: SimulatedDisk, versions: list[dict[int, bytes]], expiry: int = INFINITY
) -> tuple[Log, dict[int, int]]:
    """A log with one segment per version, holding a delta of some groups each."""
    log, heads = Log(disk, "log", {}), dict[int, int]()
    for ordinal, deltas in enumerate(versions):
        writer = SegmentWriter(disk, f"log/{ordinal}", ordinal, block_bytes=64)
        for group, delta in deltas.items():
            heads[group] = writer.append(
                delta,
                operator=4,
                synopsis=2,
                group=group,
                rows=len(delta),
                expiry=expiry,
                back=heads.get(group, NO_MARKER),
            )
        log.add(writer.finish())
    return log, heads


DELTAS = st.dictionaries(st.integers(-5, 5), st.binary(max_size=80), max_size=8)


@given(versions=st.lists(DELTAS, max_size=6), groups_at_once=st.integers(1, 12))
@settings(deadline=None)
def test_oracle_compaction_equals_merging_each_chain(
    versions: list[dict[int, bytes]], groups_at_once: int
) -> None:
    disk = SimulatedDisk()
    log, heads = store(disk, versions)
    writer = SegmentWriter(disk, "log/99", 99, block_bytes=64)
    moved = compact(
        log, heads, writer, join_payloads, count_rows=len, groups_at_once=groups_at_once
    )
    log.add(writer.finish())
    expected = {group: b"".join(version.get(group, b"") for version in versions) for group in heads}
    assert moved.keys() == expected.keys()
    for group, marker in moved.items():
        (record,) = log.chain(marker)
        assert record.payload == expected[group]
        assert (record.operator, record.synopsis, record.group) == (4, 2, group)
        assert (record.rows, record.expiry) == (len(expected[group]), INFINITY)
    assert sorted(moved, key=moved.__getitem__) == sorted(moved)


def test_compaction_leaves_the_old_chains_readable() -> None:
    disk = SimulatedDisk()
    log, heads = store(disk, [{1: b"a", 2: b"b"}, {1: b"c"}])
    before = {group: list(log.chain(marker)) for group, marker in heads.items()}
    files = {name: data for name, data in disk.files().items() if name != "log/9"}
    writer = SegmentWriter(disk, "log/9", 9)
    moved = compact(log, heads, writer, join_payloads)
    log.add(writer.finish())
    assert {group: list(log.chain(marker)) for group, marker in heads.items()} == before
    assert {name: data for name, data in disk.files().items() if name != "log/9"} == files
    assert {ordinal_of(marker) for marker in moved.values()} == {9}


def test_bounded_compaction_reads_each_block_once_per_round() -> None:
    #  3 versions of 8 groups, 4 payloads of 16 bytes to a block: 2 blocks per segment, 3 rounds
    disk = SimulatedDisk()
    log, heads = store(disk, [{group: bytes(16) for group in range(8)}] * 3)
    writer = SegmentWriter(disk, "log/9", 9)
    disk.reads.clear()
    compact(log, heads, writer, join_payloads)
    blocks = [read for read in disk.reads if read[2] == 64 and 32 <= read[1] < 32 + 128]
    assert len(blocks) == len(set(blocks)) == 6


def test_a_group_of_which_everything_expired_is_left_out() -> None:
    disk = SimulatedDisk()
    log, heads = store(disk, [{1: b"old"}], expiry=10)
    log.expire(10)
    with SegmentWriter(disk, "log/9", 9) as writer:
        assert compact(log, heads | {2: NO_MARKER}, writer, join_payloads) == {}
        assert writer.records == 0


def test_a_chain_that_wanders_into_another_group_is_refused() -> None:
    disk = SimulatedDisk()
    log, heads = store(disk, [{1: b"a", 2: b"b"}])
    with (
        SegmentWriter(disk, "log/9", 9) as writer,
        pytest.raises(ValueError, match="chain of group 1 leads to"),
    ):
        compact(log, {1: heads[2]}, writer, join_payloads)


def test_damage_in_a_chain_stops_compaction() -> None:
    disk = SimulatedDisk()
    log, heads = store(disk, [{1: b"a"}, {1: b"b"}])
    disk.flip("log/0", 33)
    with (
        SegmentWriter(disk, "log/9", 9) as writer,
        pytest.raises(DamageError, match="log/0"),
    ):
        compact(log, heads, writer, join_payloads)
    assert not disk.exists("log/9")
