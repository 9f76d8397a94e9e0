"""Reads records back from segments, verifying every block on every read.

Idea:
    Opening a segment reads header, table and trailer only. A marker leads to its block through
    the table; the block and its part of the directory are read, verified and sliced. Many markers
    are sorted first, so that each block is read once and the disk is read in one direction. A
    `Log` is a set of segments that are opened when a marker points into them.

Invariants:
    1. A read returns what was appended or raises `DamageError` naming the file
       (`test_any_flipped_byte_is_detected_or_harmless`, `test_any_truncation_is_damage`).
    2. `read_many` visits offsets ascending and reads every block once
       (`test_bounded_read_many_reads_every_block_once_in_offset_order`).
    3. A marker into a segment that the version does not list is damage
       (`test_a_chain_into_an_unknown_segment_is_damage`).
    4. A mapped segment is the record stream of a file of the right length; otherwise None or damage
       (`test_a_mapped_segment_is_its_record_stream`).
    5. A log keeps at most `open_limit` segments open while idle
       (`test_bounded_a_log_keeps_few_segments_open`).
    6. Every size that a segment claims is checked against the file before it is used, even if its
       checksums match: nothing larger than the file is allocated, except blocks, which have at most
       `MOST_RAW` bytes or `MOST_RATIO` times their stored size
       (`test_bounded_what_a_signed_segment_can_make_us_allocate`).

Cost:
    Two reads and two checksums per block; of a file that is read as a whole, one read, and one
    checksum for each part. Memory: 48 bytes per block and open segment, 48 bytes per record once
    `directory` was read, and files that are read as a whole.

Limits:
    A payload is a view of its block: keeping one small payload keeps the whole block. Copy what
    outlives the iteration. A device that fails under a mapped file kills the process.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

from icestream.core.errors import CheckpointError, DamageError
from icestream.state.files import release
from icestream.state.log.format import (
    ALIGNMENT,
    CODECS,
    ENTRY,
    ENTRY_DTYPE,
    HEADER,
    HEADER_CHECKED,
    HEADER_MAGIC,
    MOST_RATIO,
    MOST_RAW,
    NO_MARKER,
    ROW,
    ROW_DTYPE,
    TRAILER,
    TRAILER_MAGIC,
    VERSION,
    Record,
    SegmentInfo,
    footer_checksum,
    ordinal_of,
    pack_header,
    part_checksum,
    show_marker,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from icestream.state.files import Files

    Markers = Sequence[int] | npt.NDArray[np.uint64]

#: a directory of at most so many records is read as a whole
SMALL_DIRECTORY = 1024
#: a file of at most so many bytes is read as a whole
SMALL_FILE = 1 << 14


class RecordRange(NamedTuple):
    """A part of a segment's record stream."""

    #: the marker of its first word
    origin: int
    words: npt.NDArray[np.int64]
    #: how many of the requested markers point into it
    asked: int


class SegmentReader:
    """One segment file, open for reading."""

    def __init__(
        self,
        files: Files,
        path: str,
        *,
        info: SegmentInfo | None = None,
        small: int = SMALL_FILE,
        mapped: bool = False,
    ) -> None:
        """Open and verify header and footer; a file of at most `small` bytes is read as a whole.

        With `mapped`, a larger one is mapped if possible: a block is verified once, and can be
        read again at no cost.

        Raises:
            DamageError: the file is missing, damaged, or not the one that `info` describes.
            CheckpointError: a newer release wrote the file.
        """
        self.path = path
        try:
            self._file = files.open(path)
        except FileNotFoundError as error:
            raise DamageError(path, "the segment is missing") from error
        try:
            size = self._file.size
            #: the whole file, and its blocks that are known to be right
            self._whole = memoryview(self._file.read_at(0, size)) if size <= small else None
            self._verified: set[int] = set()
            #: whether that is a mapped file, which takes no memory of the process between reads
            self.is_mapped = False
            if mapped and self._whole is None:
                self._whole = self._file.mapped(0)
                self.is_mapped = self._whole is not None
            self._open(info)
        except BaseException:
            self._file.close()
            raise

    def _read(self, place: int, length: int) -> bytes | memoryview:
        """Return bytes of the file, fewer where it ends."""
        if self._whole is None:
            return self._file.read_at(place, length)
        return self._whole[place : place + length]

    def _open(self, info: SegmentInfo | None) -> None:
        """Read and verify header, trailer and table."""
        size = self._file.size
        header = bytes(self._read(0, HEADER.size))
        codec = self._read_header(header)
        if size < HEADER.size + TRAILER.size:
            raise DamageError(self.path, f"{size} bytes are too few for a segment")
        trailer = bytes(self._read(size - TRAILER.size, TRAILER.size))
        if len(trailer) < TRAILER.size:
            raise DamageError(self.path, "the file became shorter while it was read")
        fields = TRAILER.unpack(trailer)
        self._directory_place, table_place, self.records, stream, self.expiry = fields[:5]
        blocks, _, checksum, magic = fields[5:]
        if magic != TRAILER_MAGIC:
            raise DamageError(self.path, "the end of the segment is missing or overwritten")
        if (
            table_place + blocks * ROW.size + TRAILER.size != size
            or self._directory_place + self.records * ENTRY.size != table_place
        ):
            raise DamageError(self.path, "the trailer does not match the length of the file")
        table = bytes(self._read(table_place, blocks * ROW.size))
        if footer_checksum(self.ordinal, header, table, trailer) != checksum:
            raise DamageError(self.path, "the footer does not match its checksum")
        if info is not None and (
            (info.ordinal, info.bytes, info.footer_checksum) != (self.ordinal, size, checksum)
        ):
            what = (
                f"this is another segment (ordinal {self.ordinal}, {size} bytes, checksum "
                f"{checksum:016x}) than the committed one (ordinal {info.ordinal}, {info.bytes} "
                f"bytes, checksum {info.footer_checksum:016x})"
            )
            raise DamageError(self.path, what)
        self._codec = None if codec is None else pa.Codec(codec)
        self._table: npt.NDArray[np.void] = np.frombuffer(table, dtype=ROW_DTYPE)
        self._check_table(stream)
        self._first_words = self._table["first"] // np.uint64(ALIGNMENT)
        self._directory: npt.NDArray[np.void] | None = None

    def _check_table(self, stream: int) -> None:
        """Raise DamageError unless the blocks fill file, stream and directory without a gap."""
        place, ends = HEADER.size, (stream, self._directory_place, self.records)
        if len(self._table) == 1:
            # as almost always in small batches
            *begins, stored, raw, entry, entries, _, _ = self._table[0].item()
            fits = [*begins, entry] == [0, place, 0] and entries > 0
            fits = fits and (raw, place + stored, entries) == ends
            impossible = raw != stored and (
                raw > max(MOST_RAW, MOST_RATIO * stored) or self._codec is None
            )
        else:
            columns = [self._table[name].astype(np.uint64) for name in _EXTENTS]
            firsts, places, stored, raw, entry, entries = columns
            fits = (
                _follow(firsts, raw, 0, ends[0])
                and _follow(places, stored, place, ends[1])
                and _follow(entry, entries, 0, ends[2])
                and bool((entries > 0).all())
            )
            most = np.maximum(np.uint64(MOST_RAW), stored * np.uint64(MOST_RATIO))
            impossible = ((raw != stored) & ((raw > most) | (self._codec is None))).any()
        if not fits:
            raise DamageError(self.path, "the table does not describe the blocks of this file")
        if impossible:
            raise DamageError(self.path, "a block claims an impossible size")

    def _read_header(self, header: bytes) -> str | None:
        """Verify the header, set the ordinal and return the codec."""
        if len(header) < HEADER.size:
            raise DamageError(self.path, f"{len(header)} bytes are too few for a segment")
        codec: int
        magic, version, codec, _, self.ordinal, _, checksum = HEADER.unpack(header)
        if magic != HEADER_MAGIC:
            raise DamageError(self.path, "this is not a segment: it starts with other bytes")
        if xxhash.xxh3_64_intdigest(header[:HEADER_CHECKED]) != checksum:
            raise DamageError(self.path, "the header does not match its checksum")
        if version > VERSION:
            msg = (
                f"{self.path} has format version {version}, this release reads up to version "
                f"{VERSION}; use the release that wrote it or a later one"
            )
            raise CheckpointError(msg)
        if version != VERSION or codec >= len(CODECS):
            raise DamageError(self.path, f"unknown format version {version} or codec {codec}")
        return CODECS[codec]

    @property
    def directory(self) -> npt.NDArray[np.void]:
        """One row per record, in marker order; read and verified on first use."""
        if self._directory is None:
            data = self._read(self._directory_place, self.records * ENTRY.size)
            view = memoryview(data)
            rows = zip(*(self._table[name].tolist() for name in _PART_FIELDS), strict=True)
            for block, (entry, entries, checksum) in enumerate(rows):
                part = view[entry * ENTRY.size : (entry + entries) * ENTRY.size]
                self._verify(block, part, checksum, "directory part")
            self._directory = np.frombuffer(data, dtype=ENTRY_DTYPE)
        return self._directory

    @property
    def held(self) -> int:
        """Bytes of memory that this reader holds between reads."""
        directory = 0 if self._directory is None else self._directory.nbytes
        if self._whole is not None and not self.is_mapped:
            return self._whole.nbytes + self._first_words.nbytes
        return self._table.nbytes + self._first_words.nbytes + directory

    def read(self, marker: int) -> Record:
        return next(self.read_many((marker,)))

    def read_many(self, markers: Markers) -> Iterator[Record]:
        """Return records in offset order, whatever the order of `markers`, repeated as given."""
        wanted = np.sort(np.asarray(markers, dtype=np.uint64))
        for block, first, last in self._blocks_of(wanted):
            entries = self._entries(block)
            yield from self._slice(block, entries[self._find(entries, wanted[first:last])])

    def read_rows(self, rows: npt.NDArray[np.void]) -> Iterator[Record]:
        """Return the records of some rows of `directory`, which must be in its order."""
        for block, first, last in self._blocks_of(rows["marker"]):
            yield from self._slice(block, rows[first:last])

    def stretches(self, markers: npt.NDArray[np.int64]) -> Iterator[RecordRange]:
        """Yield the parts of the record stream, as words, that ascending markers point into.

        Each is a block, read once and verified.
        """
        for block, first, last in self._blocks_of(markers.view(np.uint64)):
            raw = self._block(block)
            words = np.frombuffer(raw, dtype=np.int64, count=len(raw) // ALIGNMENT)
            origin = self.ordinal << 32 | int(self._first_words[block])
            yield RecordRange(origin, words, last - first)

    def scan(self) -> Iterator[Record]:
        """Return all records in the order of appending."""
        for block in range(len(self._table)):
            yield from self._slice(block, self._entries(block))

    def rest(self) -> None:
        """Release the pages of a mapped file that were read; payloads stay valid."""
        if self.is_mapped and self._whole is not None:
            release(self._whole)

    def close(self) -> None:
        """Close the file; payloads already returned stay valid."""
        self._file.close()

    def _blocks_of(self, markers: npt.NDArray[np.uint64]) -> Iterator[tuple[int, int, int]]:
        """Yield blocks, with the first and past the last of ascending markers in each."""
        if not len(markers):
            return
        for marker in (int(markers[0]), int(markers[-1])):
            if ordinal_of(marker) != self.ordinal:
                msg = f"marker {show_marker(marker)} does not belong to {self.path}"
                raise ValueError(msg)
            if not len(self._table):
                raise DamageError(self.path, f"no record at marker {show_marker(marker)}")
        if len(self._table) == 1:
            yield 0, 0, len(markers)
            return
        words = markers & np.uint64(0xFFFFFFFF)
        blocks = self._first_words.searchsorted(words, side="right") - 1
        for first, last in _runs(blocks):
            yield int(blocks[first]), first, last

    def _find(
        self, entries: npt.NDArray[np.void], markers: npt.NDArray[np.uint64]
    ) -> npt.NDArray[np.int64]:
        """Return the positions of markers among a block's entries."""
        known = entries["marker"]
        places: npt.NDArray[np.int64] = known.searchsorted(markers)
        strays = known.take(places, mode="clip") != markers
        if strays.any():
            stray = show_marker(int(markers[strays.argmax()]))
            raise DamageError(self.path, f"no record at marker {stray}")
        return places

    def _entries(self, block: int) -> npt.NDArray[np.void]:
        """Return the directory part of a block, verified."""
        *_, entry, entries, _, checksum = self._table[block].item()
        if self._directory is not None or self.records <= SMALL_DIRECTORY:
            return self.directory[entry : entry + entries]
        place = self._directory_place + entry * ENTRY.size
        data = self._read(place, entries * ENTRY.size)
        self._verify(block, data, checksum, "directory part")
        return np.frombuffer(data, dtype=ENTRY_DTYPE)

    def _slice(self, block: int, chosen: npt.NDArray[np.void]) -> Iterator[Record]:
        """Read a block once and yield the chosen records."""
        raw = self._block(block)
        size = len(raw)
        origin = self.ordinal << 32 | int(self._first_words[block])
        for marker, group, expiry, back, rows, length, operator, synopsis in chosen.tolist():
            start = (marker - origin) * ALIGNMENT
            if not 0 <= start <= start + length <= size:
                raise DamageError(self.path, f"record {show_marker(marker)} is in no block")
            payload = raw[start : start + length]
            yield Record(marker, operator, synopsis, group, expiry, back, rows, payload)

    def _block(self, block: int) -> memoryview:
        """Return the raw bytes of a block, verified."""
        _, place, stored, raw, _, _, checksum, _ = self._table[block].item()
        data = self._read(place, stored)
        if block not in self._verified:
            self._verify(block, data, checksum, "block")
            if self._whole is not None:
                self._verified.add(block)
                if self.is_mapped:
                    release(self._whole, place, stored)
        if stored == raw:
            return memoryview(data)
        assert self._codec is not None
        try:
            plain = self._codec.decompress(data, decompressed_size=raw, asbytes=True)
        except (OSError, pa.ArrowException) as error:
            raise DamageError(self.path, f"block {block} cannot be decompressed") from error
        return memoryview(plain)

    def _verify(self, block: int, data: bytes | memoryview, checksum: int, part: str) -> None:
        """Raise DamageError unless the bytes are those written at this position."""
        if part_checksum(self.ordinal, block, data) != checksum:
            raise DamageError(self.path, f"{part} {block} does not match its checksum")


_PART_FIELDS = ("entry", "entries", "entries_checksum")
_EXTENTS = ("first", "place", "stored", "raw", "entry", "entries")


def _runs(numbers: npt.NDArray[Any]) -> Iterator[tuple[int, int]]:
    """Yield where each run of equal numbers begins and ends."""
    cuts = np.flatnonzero(numbers[1:] != numbers[:-1]) + 1
    return pairwise((0, *cuts.tolist(), len(numbers)) if len(numbers) else ())


def _follow(
    begins: npt.NDArray[np.uint64], sizes: npt.NDArray[np.uint64], first: int, end: int
) -> bool:
    """Return whether parts follow each other without a gap from a start to an end."""
    if not len(begins):
        return first == end
    ends = begins + sizes
    ends_there = int(begins[0]) == first and int(ends[-1]) == end
    return ends_there and bool((begins[1:] == ends[:-1]).all() and (ends >= begins).all())


class Log:
    """The segments of one folder that a version consists of."""

    def __init__(
        self,
        files: Files,
        folder: str,
        segments: Mapping[int, SegmentInfo],
        *,
        open_limit: int = 256,
    ) -> None:
        """Use the committed segments by ordinal; nothing is opened yet.

        Args:
            files: access to the files.
            folder: their folder.
            segments: the segments of the version; neither copied nor changed.
            open_limit: how many segments stay open while idle.
        """
        self.folder = folder
        self._given = segments
        self._added: dict[int, SegmentInfo] = {}
        self._files = files
        self._open_limit = open_limit
        self._idle: OrderedDict[int, SegmentReader] = OrderedDict()

    @property
    def segments(self) -> dict[int, SegmentInfo]:
        """All segments by ordinal, as a copy."""
        return {**self._given, **self._added}

    def add(self, info: SegmentInfo) -> None:
        known = self._info(info.ordinal)
        if known is not None and known != info:
            msg = f"ordinal {info.ordinal} was given to another segment; use the next free one"
            raise ValueError(msg)
        self._added[info.ordinal] = info

    def read_many(self, markers: Markers) -> Iterator[Record]:
        """Return records by ordinal and offset.

        Raises:
            DamageError: a segment is missing, or data is damaged.
        """
        wanted = np.sort(np.asarray(markers, dtype=np.uint64))
        for first, last in _runs(wanted >> np.uint64(32)):
            with self._lease(self._segment_of(int(wanted[first]))) as reader:
                yield from reader.read_many(wanted[first:last])

    def stretches(self, markers: npt.NDArray[np.int64]) -> Iterator[RecordRange]:
        """Yield parts of one segment's record stream that ascending markers point into.

        See `SegmentReader.stretches`.

        Raises:
            DamageError: the segment is missing, or data is damaged.
        """
        with self._lease(self._segment_of(int(markers[0]) & NO_MARKER)) as reader:
            yield from reader.stretches(markers)

    def mapped(self, ordinal: int) -> npt.NDArray[np.int64] | None:
        """Return the record stream of a segment as words, paged in on access.

        The rest of the file follows the stream. Only the length of the file is verified: records
        must have checksums of their own. Returns None if there is no such file, it cannot be
        mapped or does not store the stream as it is: the segment must be read block by block.

        Raises:
            DamageError: the version has no such segment, or the file has another length.
        """
        info = self._segment_of(ordinal << 32)
        path = f"{self.folder}/{info.name}"
        try:
            file = self._files.open(path)
        except FileNotFoundError:
            return None
        try:
            if file.size != info.bytes:
                what = f"the file has {file.size} bytes, the committed one had {info.bytes}"
                raise DamageError(path, what)
            if file.read_at(0, HEADER.size) != pack_header(None, ordinal):
                return None
            view = file.mapped(HEADER.size)
        finally:
            file.close()
        if view is None:
            return None
        return np.frombuffer(view, dtype=np.int64, count=len(view) // ALIGNMENT)

    def path_of(self, marker: int) -> str:
        """Return the file that a marker points into; the folder if no version has such a file."""
        info = self._info(ordinal_of(marker))
        return self.folder if info is None else f"{self.folder}/{info.name}"

    def close(self) -> None:
        """Close the segments that are idle; the log can still be read."""
        while self._idle:
            self._idle.popitem()[1].close()

    def _segment_of(self, marker: int) -> SegmentInfo:
        """Return a marker's segment; DamageError if it is missing."""
        info = self._info(ordinal_of(marker))
        if info is None:
            what = (
                f"segment {ordinal_of(marker)} is missing: marker {show_marker(marker)} points "
                "into it, and the version does not list it"
            )
            raise DamageError(self.folder, what)
        return info

    def _info(self, ordinal: int) -> SegmentInfo | None:
        return self._added.get(ordinal) or self._given.get(ordinal)

    @contextlib.contextmanager
    def _lease(self, info: SegmentInfo) -> Iterator[SegmentReader]:
        """Lend a reader; a lent reader is not closed until it is returned."""
        ordinal = info.ordinal
        reader = self._idle.pop(ordinal, None)
        if reader is None:
            reader = SegmentReader(self._files, f"{self.folder}/{info.name}", info=info)
        try:
            yield reader
        finally:
            if ordinal in self._idle or self._info(ordinal) != info:
                reader.close()
            else:
                self._idle[ordinal] = reader
            while len(self._idle) > self._open_limit:
                self._idle.popitem(last=False)[1].close()
