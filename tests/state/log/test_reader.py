from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from icestream.core.errors import DamageError
from icestream.core.times import INFINITY
from icestream.state.files import Files, LocalFiles
from icestream.state.log.format import NO_MARKER, SegmentInfo
from icestream.state.log.reader import Log, SegmentReader
from icestream.state.log.writer import SegmentWriter
from icestream.testing.simulated_disk import SimulatedDisk
from tests.fixtures.log_records import chain, marker_of


def segment(
    files: Files, ordinal: int, groups: int = 10, *, back: Callable[[int], int] | None = None
) -> tuple[SegmentInfo, list[int]]:
    """A segment of one 24-byte record per group, four to a block; expiry is the ordinal."""
    writer = SegmentWriter(files, f"log/{ordinal}", ordinal, block_bytes=96)
    markers = [
        writer.append(
            b"%03d/%03d" % (ordinal, group) + bytes(17),
            group=group,
            expiry=ordinal,
            back=back(group) if back else NO_MARKER,
        )
        for group in range(groups)
    ]
    return writer.finish(), markers


def chained(disk: SimulatedDisk, ordinals: list[int]) -> tuple[dict[int, SegmentInfo], list[int]]:
    """Segments in which every group points back into the segment before."""
    infos: dict[int, SegmentInfo] = {}
    markers: list[int] = []
    for ordinal in ordinals:
        previous = list(markers)
        infos[ordinal], markers = segment(
            disk, ordinal, back=previous.__getitem__ if previous else None
        )
    return infos, markers


def block_reads(disk: SimulatedDisk, path: str, info: SegmentInfo) -> list[tuple[int, int]]:
    """The reads that were not of the footer."""
    footer = info.bytes - 64 - 48 * 3 - 48 * info.records
    return [(offset, length) for name, offset, length in disk.reads if offset < footer]


def test_bounded_read_many_reads_every_block_once_in_offset_order() -> None:
    disk = SimulatedDisk()
    info, markers = segment(disk, 1)
    reader = SegmentReader(disk, "log/1", info=info, small=0)
    orders = (markers, markers[::-1], [markers[n] for n in (7, 0, 9, 3, 8, 1)])
    for number, order in enumerate(orders):
        disk.reads.clear()
        read = [record.marker for record in reader.read_many(order)]
        assert read == sorted(order)
        assert block_reads(disk, "log/1", info) == [(32, 96), (128, 96), (224, 48)]
        # with the directory, once
        assert len(disk.reads) == 3 + (number == 0)
    disk.reads.clear()
    assert [r.marker for r in reader.read_many([markers[9], markers[8]])] == markers[8:]
    assert block_reads(disk, "log/1", info) == [(224, 48)]


def test_read_many_reads_blocks_only_as_far_as_it_is_asked() -> None:
    disk = SimulatedDisk()
    info, markers = segment(disk, 1)
    reader = SegmentReader(disk, "log/1", info=info, small=0)
    disk.reads.clear()
    next(reader.read_many(markers))
    assert block_reads(disk, "log/1", info) == [(32, 96)]


def test_read_many_takes_arrays_nothing_and_a_marker_twice() -> None:
    disk = SimulatedDisk()
    _, markers = segment(disk, 1)
    reader = SegmentReader(disk, "log/1")
    assert list(reader.read_many([])) == []
    assert list(reader.read_many(np.array([], dtype=np.uint64))) == []
    twice = reader.read_many(np.array([markers[4], markers[2], markers[4]], dtype=np.uint64))
    assert [record.group for record in twice] == [2, 4, 4]


def test_a_small_file_is_read_once() -> None:
    disk = SimulatedDisk()
    info, markers = segment(disk, 1)
    disk.reads.clear()
    reader = SegmentReader(disk, "log/1", info=info)
    whole = [record.marker for record in reader.scan()]
    assert whole == [record.marker for record in reader.read_many(markers)] == markers
    assert [r.marker for r in reader.read_rows(reader.directory[3:8])] == markers[3:8]
    assert list(reader.read_rows(reader.directory[:0])) == []
    assert len(disk.reads) == 1
    assert reader.held >= info.bytes


def test_a_loaded_directory_spares_its_reads() -> None:
    disk = SimulatedDisk()
    _, markers = segment(disk, 1)
    reader = SegmentReader(disk, "log/1", small=0)
    lean = reader.held
    assert len(reader.directory) == 10
    assert reader.held == lean + 10 * 48
    disk.reads.clear()
    reader.read(markers[5])
    list(reader.scan())
    assert len(disk.reads) == 1 + 3


def test_a_marker_between_records_is_damage_and_a_foreign_one_a_mistake() -> None:
    disk = SimulatedDisk()
    _, markers = segment(disk, 1)
    reader = SegmentReader(disk, "log/1")
    for stray in (markers[0] + 1, markers[9] + 3, markers[9] + 1000):
        for attempt in (
            lambda stray=stray: reader.read(stray),
            lambda stray=stray: list(reader.read_many([markers[0], stray])),
        ):
            with pytest.raises(DamageError, match="log/1: no record at marker 1:"):
                attempt()
    for foreign in (marker_of(2, 0), NO_MARKER):
        with pytest.raises(ValueError, match="does not belong to log/1"):
            reader.read(foreign)
    segment(disk, 2, groups=0)
    with pytest.raises(DamageError, match="log/2: no record at marker 2:0"):
        SegmentReader(disk, "log/2").read(marker_of(2, 0))


@pytest.mark.parametrize("change", ["ordinal", "bytes", "footer_checksum"])
def test_a_segment_other_than_the_committed_one_is_damage(change: str) -> None:
    disk = SimulatedDisk()
    info, _ = segment(disk, 1)
    other = replace(info, **{change: getattr(info, change) + 1})
    with pytest.raises(DamageError, match="log/1: this is another segment"):
        SegmentReader(disk, "log/1", info=other)
    assert disk.open_handles == 0


def test_local_files_hold_segments_too(tmp_path: object) -> None:
    files = LocalFiles()
    writer = SegmentWriter(files, f"{tmp_path}/log/1", 1)
    payloads = [b"small", bytes(100_000), b"last"]
    markers = [writer.append(payload) for payload in payloads]
    info = writer.finish()
    log = Log(files, f"{tmp_path}/log", {1: info})
    assert [bytes(record.payload) for record in log.read_many(markers)] == payloads
    log.close()


def test_a_log_reads_many_segments_in_order_of_ordinal_and_offset() -> None:
    disk = SimulatedDisk()
    first, of_first = segment(disk, 3)
    second, of_second = segment(disk, 8)
    log = Log(disk, "log", {3: first})
    log.add(second)
    log.add(second)
    mixed = [of_second[1], of_first[9], of_second[0], of_first[2]]
    assert [record.marker for record in log.read_many(mixed)] == sorted(mixed)
    assert list(log.read_many([])) == []
    (record,) = log.read_many(of_second[1:2])
    assert bytes(record.payload[:7]) == b"008/001"


def test_a_chain_goes_back_from_the_newest_record() -> None:
    disk = SimulatedDisk()
    infos, markers = chained(disk, [1, 2, 5])
    log = Log(disk, "log", infos)
    for group, marker in enumerate(markers):
        records = list(chain(log, marker))
        assert [bytes(r.payload[:7]) for r in records] == [
            b"%03d/%03d" % (n, group) for n in (5, 2, 1)
        ]
        assert records[-1].back == NO_MARKER
    assert list(chain(log, NO_MARKER)) == []


def test_a_chain_into_an_unknown_segment_is_damage() -> None:
    disk = SimulatedDisk()
    infos, markers = chained(disk, [1, 2, 5])
    del infos[2]
    log = Log(disk, "log", infos)
    records = chain(log, markers[3])
    assert next(records).expiry == 5
    with pytest.raises(DamageError, match="log: segment 2 is missing") as damage:
        next(records)
    assert damage.value.path == "log"


def test_a_chain_into_a_segment_whose_file_is_gone_is_damage() -> None:
    disk = SimulatedDisk()
    infos, markers = chained(disk, [1, 2])
    disk.unlink("log/1")
    records = chain(Log(disk, "log", infos), markers[0])
    next(records)
    with pytest.raises(DamageError, match="log/1: the segment is missing"):
        next(records)


def test_a_chain_through_a_damaged_block_is_damage_and_others_are_not_touched() -> None:
    disk = SimulatedDisk()
    infos, markers = chained(disk, [1, 2])
    disk.flip("log/1", 32 + 96 + 5)
    log = Log(disk, "log", infos)
    for group in (0, 3, 8):
        assert len(list(chain(log, markers[group]))) == 2
    for group in (4, 7):
        with pytest.raises(DamageError, match="log/1: block 1 does not match"):
            list(chain(log, markers[group]))


def test_what_never_expires_stays() -> None:
    disk = SimulatedDisk()
    with SegmentWriter(disk, "log/1", 1) as writer:
        writer.append(b"for ever")
        info = writer.finish()
    assert info.expiry == INFINITY


class FreshInfos(Mapping[int, SegmentInfo]):
    """A mapping that makes its values when asked, as a table over an arena does."""

    def __init__(self, infos: dict[int, SegmentInfo]) -> None:
        self.infos = infos

    def __getitem__(self, ordinal: int) -> SegmentInfo:
        return replace(self.infos[ordinal])

    def __iter__(self) -> Iterator[int]:
        return iter(self.infos)

    def __len__(self) -> int:
        return len(self.infos)


def test_a_log_over_a_mapping_of_others_neither_copies_nor_changes_it() -> None:
    disk = SimulatedDisk()
    infos, markers = chained(disk, [1, 2, 5])
    given = FreshInfos({})
    log = Log(disk, "log", given)
    given.infos.update(infos)
    for _ in range(3):
        assert len(list(chain(log, markers[0]))) == 3
    assert disk.open_handles == 3
    opened = [read for read in disk.reads if read[1] == 0]
    assert len(opened) == 3
    del given.infos[2]
    assert list(log.segments) == [1, 5]
    with pytest.raises(DamageError, match="segment 2 is missing"):
        list(chain(log, markers[0]))


def test_an_ordinal_is_given_once() -> None:
    disk = SimulatedDisk()
    infos, _ = chained(disk, [1, 2])
    log = Log(disk, "log", infos)
    with pytest.raises(ValueError, match="ordinal 2 was given"):
        log.add(replace(infos[2], bytes=1))


def test_no_marker_is_not_read() -> None:
    with pytest.raises(DamageError, match="segment 4294967295 is missing"):
        list(Log(SimulatedDisk(), "log", {}).read_many([NO_MARKER]))


def test_bounded_a_log_keeps_few_segments_open() -> None:
    disk = SimulatedDisk()
    infos, markers = chained(disk, list(range(10)))
    log = Log(disk, "log", infos, open_limit=3)
    for marker in markers:
        for _ in chain(log, marker):
            assert disk.open_handles <= 3
    log.close()
    assert disk.open_handles == 0
    assert len(list(log.read_many(markers[:1]))) == 1


def test_nested_reads_do_not_close_each_others_segments() -> None:
    disk = SimulatedDisk()
    infos, markers = chained(disk, list(range(6)))
    log = Log(disk, "log", infos, open_limit=1)
    seen = 0
    for record in log.read_many(markers):
        seen += len(list(chain(log, record.marker)))
    assert seen == 6 * len(markers)
    assert disk.open_handles == 1


def test_nested_reads_of_one_segment_leave_one_file_open() -> None:
    disk = SimulatedDisk()
    infos, markers = chained(disk, [1])
    log = Log(disk, "log", infos)
    for record in log.read_many(markers):
        assert list(log.read_many([record.marker])) == [record]
    assert disk.open_handles == 1


@pytest.mark.parametrize("codec", [None, "lz4"])
def test_stretches_are_the_blocks_that_markers_point_into(codec: str | None) -> None:
    disk = SimulatedDisk()
    writer = SegmentWriter(disk, "log/3", 3, block_bytes=96, codec=codec)
    markers = [writer.append(np.full(4, n)) for n in range(9)]
    log = Log(disk, "log", {3: writer.finish()})
    assert writer.next_marker == markers[-1] + 4
    inside = np.array([markers[0], markers[1] + 3, markers[7] + 1])
    found = [(origin, words.tolist(), count) for origin, words, count in log.stretches(inside)]
    assert found == [
        (markers[0], [n for n in range(3) for _ in range(4)], 2),
        (markers[6], [n for n in range(6, 9) for _ in range(4)], 1),
    ]


def test_a_mapped_segment_is_its_record_stream(tmp_path: Path) -> None:
    infos = {}
    for ordinal, codec in ((1, None), (2, "zstd"), (3, None), (4, None)):
        writer = SegmentWriter(LocalFiles(), str(tmp_path / f"{ordinal}"), ordinal, codec=codec)
        for n in range(5):
            writer.append(np.full(100, n))
        infos[ordinal] = writer.finish()
    log = Log(LocalFiles(), str(tmp_path), infos)
    words = log.mapped(1)
    assert words is not None
    assert words[:500].tolist() == [n for n in range(5) for _ in range(100)]
    assert log.path_of(marker_of(1, 0)) == str(tmp_path / "1")
    # compressed, missing, cut short
    assert log.mapped(2) is None
    (tmp_path / "3").unlink()
    assert log.mapped(3) is None
    (tmp_path / "4").write_bytes((tmp_path / "4").read_bytes()[:-8])
    with pytest.raises(DamageError, match="the committed one had"):
        log.mapped(4)
    with pytest.raises(DamageError, match="segment 5 is missing"):
        log.mapped(5)
    assert log.path_of(marker_of(5, 0)) == str(tmp_path)
