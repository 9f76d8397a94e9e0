from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.core.errors import DamageError, StorageError
from icestream.core.times import INFINITY, MINUS_INFINITY
from icestream.state.log.format import MAX_ORDINAL, MAX_STREAM, NO_MARKER, offset_of, ordinal_of
from icestream.state.log.reader import SegmentReader
from icestream.state.log.writer import SegmentWriter
from icestream.testing.simulated_disk import Crash, CrashMode, SimulatedDisk

CODECS = pytest.mark.parametrize("codec", [None, "lz4", "zstd"])

PAYLOADS = st.one_of(
    st.binary(max_size=100),
    st.binary(min_size=120, max_size=136),
    st.builds(bytes, st.integers(0, 600)),
)
APPENDS = st.fixed_dictionaries(
    {
        "payload": PAYLOADS,
        "operator": st.integers(0, 2**16 - 1),
        "synopsis": st.integers(0, 2**16 - 1),
        "group": st.integers(-(2**63), 2**63 - 1),
        "rows": st.integers(0, 2**32 - 1),
        "expiry": st.integers(MINUS_INFINITY, INFINITY),
        "back": st.integers(0, NO_MARKER),
    }
)


@CODECS
@given(
    appends=st.lists(APPENDS, max_size=12),
    ordinal=st.integers(0, MAX_ORDINAL),
    block_bytes=st.sampled_from([8, 64, 128, 4096]),
    stride=st.sampled_from([1, 50, 1000, 1 << 18]),
)
@settings(max_examples=60, deadline=None)
def test_parity_of_writer_and_reader(
    codec: str | None, appends: list[dict[str, Any]], ordinal: int, block_bytes: int, stride: int
) -> None:
    disk = SimulatedDisk()
    how: dict[str, Any] = {"block_bytes": block_bytes, "stride": stride, "codec": codec}
    writer = SegmentWriter(disk, "f/s", ordinal, **how)
    markers = [writer.append(**append) for append in appends]
    info = writer.finish()
    assert markers == sorted(set(markers))
    assert all(ordinal_of(marker) == ordinal for marker in markers)
    assert (info.ordinal, info.name, info.records) == (ordinal, "s", len(appends))
    assert info.bytes == len(disk.read("f/s"))
    assert info.expiry == max((append["expiry"] for append in appends), default=MINUS_INFINITY)

    reader = SegmentReader(disk, "f/s", info=info)
    assert (reader.ordinal, reader.records, reader.expiry) == (ordinal, len(appends), info.expiry)
    scanned = list(reader.scan())
    for marker, append, record in zip(markers, appends, scanned, strict=True):
        expected = {**append, "marker": marker}
        assert {name: getattr(record, name) for name in expected} == expected
        assert reader.read(marker) == record
    assert list(reader.read_many(markers[::-1])) == scanned
    directory = reader.directory
    assert directory["marker"].tolist() == markers
    assert directory["length"].tolist() == [len(append["payload"]) for append in appends]
    for name in ("operator", "synopsis", "group", "rows", "expiry", "back"):
        assert directory[name].tolist() == [append[name] for append in appends]
    assert list(reader.scan()) == scanned


@CODECS
@pytest.mark.parametrize(
    "payload",
    [
        np.arange(24, dtype=np.int64).reshape(3, 8),
        np.arange(24, dtype=np.int64).reshape(3, 8)[:, ::2],
        np.asfortranarray(np.arange(24, dtype=np.int64).reshape(3, 8)),
        np.arange(9, dtype=np.uint8),
        np.zeros((0, 8), dtype=np.int64),
        np.zeros(3, dtype=[("a", "<i8"), ("b", "<f8")]),
        np.arange(3).astype("datetime64[us]"),
        np.arange(9000, dtype=np.int64),
        np.arange(5, dtype=np.int64).data,
        np.arange(6, dtype=np.int64).reshape(2, 3).data,
        np.arange(6, dtype=np.int64)[::2].data,
        bytearray(b"some bytes"),
        memoryview(b""),
    ],
)
def test_arrays_and_views_are_written_as_their_bytes(
    codec: str | None, payload: npt.NDArray[Any] | memoryview | bytearray
) -> None:
    disk = SimulatedDisk()
    writer = SegmentWriter(disk, "s", 1, codec=codec)
    marker = writer.append(payload)
    writer.finish()
    read = SegmentReader(disk, "s").read(marker).payload
    assert read == (bytes(payload) if isinstance(payload, bytearray) else payload.tobytes())


@CODECS
def test_tables_come_back_aligned_without_a_copy(codec: str | None) -> None:
    disk = SimulatedDisk()
    writer = SegmentWriter(disk, "s", 1, codec=codec)
    tables = [np.arange(n, dtype=np.int64) for n in (1, 3, 100, 20_000)]
    for table in tables:
        writer.append(b"odd")
        writer.append(table)
    writer.finish()
    for record, table in zip(list(SegmentReader(disk, "s").scan())[1::2], tables, strict=True):
        read = np.frombuffer(record.payload, dtype=np.int64)
        assert read.flags.aligned
        assert read.ctypes.data % 8 == 0
        assert not read.flags.owndata
        np.testing.assert_array_equal(read, table)


@CODECS
def test_the_same_appends_make_the_same_bytes(codec: str | None) -> None:
    def build(noise: bytes) -> bytes:
        disk = SimulatedDisk()
        with SegmentWriter(disk, "noise", 1, block_bytes=64) as other:
            other.append(noise)
        writer = SegmentWriter(disk, "s", 1, block_bytes=64, codec=codec)
        for payload in (b"x" * 61, b"abc", b"", b"de", b"y" * 100):
            writer.append(payload)
        writer.finish()
        return disk.read("s")

    assert build(b"1") == build(b"2" * 60)


def test_padding_is_zero_also_in_a_reused_block_buffer() -> None:
    disk = SimulatedDisk()
    writer = SegmentWriter(disk, "s", 1, block_bytes=32)
    for payload in (b"\xff" * 16, b"\xff" * 16, b"a", b"", b"bcd"):
        writer.append(payload)
    writer.finish()
    padded = b"a".ljust(8, b"\0") + bytes(8) + b"bcd".ljust(8, b"\0")
    assert disk.read("s")[32:].startswith(b"\xff" * 32 + padded)


def test_small_records_share_a_block_and_large_ones_have_their_own() -> None:
    #  stream   0      24     40 | 64           | 192   200
    #  block    |--- 0 ---------| |---- 1 -----| |-- 2 --|
    disk = SimulatedDisk()
    writer = SegmentWriter(disk, "s", 5, block_bytes=64)
    markers = [writer.append(bytes(n)) for n in (20, 16, 24, 128, 3, 0)]
    writer.finish()
    assert [offset_of(marker) for marker in markers] == [0, 24, 40, 64, 192, 200]
    reader = SegmentReader(disk, "s", small=0)
    disk.reads.clear()
    list(reader.scan())
    assert len(disk.reads) == 1 + 3


def test_a_large_aligned_payload_is_not_copied() -> None:
    written: list[memoryview | bytes | bytearray] = []
    disk = SimulatedDisk()
    writer = SegmentWriter(disk, "s", 1)
    writer._write = written.append  # type: ignore[method-assign, assignment]
    table = np.arange(8192, dtype=np.int64)
    writer.append(table)
    assert np.shares_memory(np.frombuffer(written[0], dtype=np.int64), table)


def test_incompressible_blocks_are_stored_as_they_are() -> None:
    noise = np.random.default_rng(1).bytes(4096)
    sizes = {}
    for codec in (None, "lz4", "zstd"):
        disk = SimulatedDisk()
        writer = SegmentWriter(disk, "s", 1, codec=codec)
        writer.append(noise)
        sizes[codec] = writer.finish().bytes
    assert len(set(sizes.values())) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"operator": 2**16},
        {"synopsis": -1},
        {"rows": 2**32},
        {"group": 2**63},
        {"expiry": -(2**63) - 1},
        {"back": 2**64},
    ],
)
def test_a_refused_record_changes_nothing(fields: dict[str, int]) -> None:
    disk = SimulatedDisk()
    writer = SegmentWriter(disk, "s", 1, block_bytes=64)
    writer.append(b"before", expiry=1)
    with pytest.raises(ValueError, match="must fit 16 bits"):
        writer.append(bytes(100), **fields)
    writer.append(b"after", expiry=2)
    info = writer.finish()
    assert (info.records, info.expiry) == (2, 2)
    assert [bytes(r.payload) for r in SegmentReader(disk, "s").scan()] == [b"before", b"after"]


def test_a_full_segment_asks_for_the_next_one() -> None:
    writer = SegmentWriter(SimulatedDisk(), "s", 1)
    writer._first = MAX_STREAM - 16
    writer.append(b"12345678")
    with pytest.raises(ValueError, match="room for 8 of 16 bytes more; finish it"):
        writer.append(b"123456789")
    assert offset_of(writer.append(b"12345678")) == MAX_STREAM - 8


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"ordinal": -1}, "ordinal"),
        ({"ordinal": 2**32 - 1}, "ordinal"),
        ({"ordinal": 1, "codec": "gzip"}, "unknown codec 'gzip'"),
        ({"ordinal": 1, "block_bytes": 0}, "multiple of 8"),
        ({"ordinal": 1, "block_bytes": 100}, "multiple of 8"),
    ],
)
def test_wrong_options_are_refused_before_a_file_is_made(
    options: dict[str, Any], complaint: str
) -> None:
    disk = SimulatedDisk()
    with pytest.raises(ValueError, match=complaint):
        SegmentWriter(disk, "s", **options)
    assert disk.files() == {}


def test_a_finished_segment_takes_nothing_more() -> None:
    disk = SimulatedDisk()
    writer = SegmentWriter(disk, "s", 1)
    writer.finish()
    with pytest.raises(ValueError, match="s is finished"):
        writer.append(b"late")
    with pytest.raises(ValueError, match="s is finished"):
        writer.finish()
    assert list(SegmentReader(disk, "s").scan()) == []


def test_a_finished_segment_is_abandoned_too() -> None:
    disk = SimulatedDisk()
    writer = SegmentWriter(disk, "s", 1)
    writer.finish()
    writer.abandon()
    writer.abandon()
    assert disk.files() == {}


def test_leaving_the_context_abandons_only_what_is_unfinished() -> None:
    disk = SimulatedDisk()
    with SegmentWriter(disk, "kept", 1) as kept:
        kept.finish()
    with pytest.raises(KeyError), SegmentWriter(disk, "lost", 2):
        raise KeyError
    assert list(disk.files()) == ["kept"]


def test_an_exchange_file_is_not_synced() -> None:
    disk = SimulatedDisk()
    writer = SegmentWriter(disk, "f/s", 1)
    writer.append(b"x")
    writer.finish(sync=False)
    assert {what for what, _ in disk.trace} == {"create", "write"}


def test_after_a_full_disk_the_segment_can_only_be_abandoned() -> None:
    steps = 5
    for step in range(1, steps + 1):
        disk = SimulatedDisk(fail_at=step, tear=step)
        with pytest.raises(StorageError, match="free space"):
            write_segment(disk)
        with SegmentWriter(disk, "again", 1) as writer:
            writer.append(b"x")
    disk = SimulatedDisk(fail_at=3)
    writer = SegmentWriter(disk, "s", 1, block_bytes=8, stride=8)
    with pytest.raises(StorageError):
        writer.append(b"12345678")
    for attempt in (lambda: writer.append(b"x"), writer.finish):
        with pytest.raises(ValueError, match="could not be written"):
            attempt()
    writer.abandon()
    assert disk.files() == {}


def write_segment(disk: SimulatedDisk) -> None:
    writer = SegmentWriter(disk, "f/s", 1, block_bytes=64, stride=100)
    for group in range(5):
        writer.append(bytes([group]) * 40, group=group)
    writer.finish()


def test_files_are_written_in_strides() -> None:
    disk = SimulatedDisk()
    sizes: list[int] = []
    writer = SegmentWriter(disk, "s", 1, block_bytes=64, stride=100)
    write = writer._file.write

    def noted(data: bytes | bytearray | memoryview) -> None:
        sizes.append(len(data))
        write(data)

    with mock.patch.object(writer._file, "write", noted):
        for size in (30, 3, 500, 70, 8):
            writer.append(bytes(size))
        info = writer.finish()
    assert sum(sizes) == info.bytes
    assert all(size % 100 == 0 for size in sizes[:-1])
    assert len(sizes) > 3


@pytest.mark.parametrize("mode", ["drop", "tear", "keep"])
def test_crash_at_any_step_leaves_a_whole_segment_or_none(mode: CrashMode) -> None:
    whole = SimulatedDisk()
    write_segment(whole)
    assert whole.after_crash("drop").files() == whole.files()
    for step in range(1, whole.steps + 1):
        for seed in range(10):
            disk = SimulatedDisk(crash_at=step, tear=seed)
            with pytest.raises(Crash):
                write_segment(disk)
            found = disk.after_crash(mode)
            if found.files() != whole.files():
                with pytest.raises(DamageError, match="f/s"):
                    list(SegmentReader(found, "f/s").scan())


def test_bounded_memory_of_a_writer_is_two_buffers_and_48_bytes_per_record_and_block() -> None:
    writer = SegmentWriter(SimulatedDisk(), "s", 1, block_bytes=1024, stride=2048)
    for _ in range(100):
        writer.append(bytes(128))
    assert writer.held == 1024 + 2048 + 100 * 48 + 12 * 48
