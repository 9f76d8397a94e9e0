from __future__ import annotations

import pytest

from icestream.core.errors import CheckpointError, DamageError
from icestream.state.log import format as layout
from icestream.state.log.format import HEADER, Record
from icestream.state.log.reader import SegmentReader
from icestream.state.log.writer import SegmentWriter
from icestream.testing.simulated_disk import SimulatedDisk

CODECS = pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
PATH = "f/segment"


def two_blocks(codec: str | None, ordinal: int = 3) -> SimulatedDisk:
    disk = SimulatedDisk()
    writer = SegmentWriter(disk, PATH, ordinal, block_bytes=128, codec=codec)
    for group in range(5):
        payload = bytes([65 + group]) * (38 + group)
        writer.append(payload, operator=1, synopsis=2, group=group, rows=group, expiry=group)
    writer.finish()
    return disk


def holding(data: bytes) -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.put(PATH, data)
    return disk


def read_all(disk: SimulatedDisk) -> list[list[Record]]:
    """Every record by every way to it."""
    reader = SegmentReader(disk, PATH)
    scanned = list(reader.scan())
    markers = [record.marker for record in scanned]
    by_marker = [reader.read(marker) for marker in markers]
    by_directory = list(reader.read_many(reader.directory["marker"]))
    return [scanned, by_marker, by_directory]


def attempt(disk: SimulatedDisk) -> tuple[list[list[Record]], DamageError | None]:
    try:
        return read_all(disk), None
    except DamageError as damage:
        return [], damage


@CODECS
@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_any_flipped_byte_is_detected_or_harmless(codec: str | None, mask: int) -> None:
    disk = two_blocks(codec)
    intact = read_all(disk)
    unnoticed = []
    for index in range(len(disk.read(PATH))):
        disk.flip(PATH, index, mask)
        found, damage = attempt(disk)
        if damage is None:
            assert found == intact
            unnoticed.append(index)
        else:
            assert damage.path == PATH
            assert PATH in str(damage)
        disk.flip(PATH, index, mask)
    assert unnoticed == []
    assert read_all(disk) == intact


def test_the_codecs_of_these_tests_do_compress() -> None:
    plain, *packed = (len(two_blocks(codec).read(PATH)) for codec in (None, "lz4", "zstd"))
    assert max(packed) < plain


@CODECS
def test_any_truncation_is_damage(codec: str | None) -> None:
    data = two_blocks(codec).read(PATH)
    for length in range(len(data)):
        with pytest.raises(DamageError) as damage:
            read_all(holding(data[:length]))
        assert damage.value.path == PATH


@CODECS
def test_bytes_added_or_lost_anywhere_are_damage(codec: str | None) -> None:
    data = two_blocks(codec).read(PATH)
    for index in range(len(data) + 1):
        with pytest.raises(DamageError):
            read_all(holding(data[:index] + b"\x00" + data[index:]))
    for index in range(len(data)):
        with pytest.raises(DamageError):
            read_all(holding(data[:index] + data[index + 1 :]))


def test_a_file_cut_while_it_is_open_is_damage() -> None:
    disk = two_blocks(None)
    reader = SegmentReader(disk, PATH, small=0)
    del disk._names[PATH].data[200:]
    with pytest.raises(DamageError, match=PATH):
        list(reader.scan())


def test_a_block_of_another_segment_is_damage() -> None:
    one, other = two_blocks(None, ordinal=3).read(PATH), two_blocks(None, ordinal=4).read(PATH)
    assert one[32:232] == other[32:232]
    mixed = [
        other[: HEADER.size] + one[HEADER.size :],
        one[: len(one) - 64] + other[len(one) - 64 :],
        one[:232] + other[232:],
    ]
    for data in mixed:
        with pytest.raises(DamageError):
            read_all(holding(data))
    swapped = SegmentReader(holding(one), PATH)
    checksum = layout.part_checksum(3, 0, one[32:160])
    assert checksum != layout.part_checksum(3, 1, one[32:160])
    assert checksum != layout.part_checksum(4, 0, one[32:160])
    swapped.close()


def test_equal_blocks_of_a_segment_have_checksums_of_their_own() -> None:
    disk = SimulatedDisk()
    writer = SegmentWriter(disk, PATH, 1, block_bytes=64)
    for _ in range(3):
        writer.append(bytes(64))
    writer.finish()
    checksums = SegmentReader(disk, PATH)._table["checksum"].tolist()
    assert len(set(checksums)) == 3


def test_a_newer_format_version_names_path_and_both_versions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(layout, "VERSION", 7)
        disk = two_blocks(None)
    with pytest.raises(CheckpointError, match=r"version 7.*version 1") as newer:
        SegmentReader(disk, PATH)
    assert PATH in str(newer.value)
    assert disk.open_handles == 0


@pytest.mark.parametrize(("version", "codec"), [(0, None), (1, "brotli")])
def test_a_header_that_no_release_wrote_is_damage(
    monkeypatch: pytest.MonkeyPatch, version: int, codec: str | None
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(layout, "VERSION", version)
        patch.setattr(layout, "CODECS", (None, "lz4", "zstd", "brotli"))
        header = layout.pack_header(codec, 3)
    data = two_blocks(None).read(PATH)
    with pytest.raises(DamageError, match="unknown format version"):
        SegmentReader(holding(header + data[HEADER.size :]), PATH)


def test_a_missing_segment_is_damage() -> None:
    with pytest.raises(DamageError, match="f/segment: the segment is missing"):
        SegmentReader(SimulatedDisk(), PATH)


def test_a_damaged_segment_leaves_no_file_open() -> None:
    disk = two_blocks(None)
    disk.flip(PATH, len(disk.read(PATH)) - 1)
    with pytest.raises(DamageError):
        SegmentReader(disk, PATH)
    assert disk.open_handles == 0
