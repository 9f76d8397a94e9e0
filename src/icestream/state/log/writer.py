"""Writes one segment of the log, from its first record to its checksummed footer.

Idea:
    Small payloads are copied once into a preallocated block buffer, which is checksummed,
    optionally compressed, and stored whole; a payload of at least a block's size is a block by
    itself. The descriptions of records are collected separately and written as the footer. The
    file is written in *strides* of equal size, so that the page cache holds it in large pieces,
    which are cheap to map.

Invariants:
    1. Appended records are read back, in order, under the markers returned
       (`test_parity_of_writer_and_reader`).
    2. The same appends make the same bytes (`test_the_same_appends_make_the_same_bytes`,
       `test_padding_is_zero_also_in_a_reused_block_buffer`).
    3. A refused record changes nothing (`test_a_refused_record_changes_nothing`).
    4. After `finish` the segment survives a crash; before that, no reader accepts the file
       (`test_crash_at_any_step_leaves_a_whole_segment_or_none`).
    5. All writes but the last are whole strides (`test_files_are_written_in_strides`).

Cost:
    Two copies and one checksum of each payload below `block_bytes`, one copy less above it.
    Memory: `held` = block buffer + stride + 48 bytes per record + 48 bytes per block, until
    `finish`.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa

from icestream.core.times import INFINITY, MINUS_INFINITY
from icestream.state.files import folder_of
from icestream.state.log.format import (
    ALIGNMENT,
    CODECS,
    ENTRY,
    MAX_ORDINAL,
    MAX_PAYLOAD,
    MAX_STREAM,
    MOST_RATIO,
    MOST_RAW,
    NO_MARKER,
    ROW,
    TRAILER,
    TRAILER_MAGIC,
    SegmentInfo,
    footer_checksum,
    pack_header,
    padded,
    part_checksum,
)

if TYPE_CHECKING:
    from types import TracebackType

    import numpy.typing as npt

    from icestream.state.files import Files

_ZEROS = bytes(ALIGNMENT)
#: bytes written at once
STRIDE = 1 << 18
_pack_entry = ENTRY.pack


def _flat(payload: bytearray | memoryview | npt.NDArray[Any]) -> memoryview:
    """View a payload as plain bytes; only non-contiguous data is copied."""
    if isinstance(payload, np.ndarray):
        return np.ascontiguousarray(payload).reshape(-1).view(np.uint8).data
    view = memoryview(payload)
    if not view.c_contiguous or view.nbytes == 0:
        return memoryview(view.tobytes())
    return view.cast("B")


class SegmentWriter:
    """Appends records to a new segment file; leaving its context before `finish` abandons it."""

    def __init__(
        self,
        files: Files,
        path: str,
        ordinal: int,
        *,
        block_bytes: int = 65536,
        stride: int = STRIDE,
        codec: str | None = None,
    ) -> None:
        """Create the file, exclusively; FileExistsError if it exists."""
        if not 0 <= ordinal <= MAX_ORDINAL:
            msg = f"a segment's ordinal must be in 0..{MAX_ORDINAL}; got {ordinal}"
            raise ValueError(msg)
        if codec not in CODECS:
            msg = f"unknown codec {codec!r}; choose one of {', '.join(map(str, CODECS))}"
            raise ValueError(msg)
        if not ALIGNMENT <= block_bytes <= MAX_PAYLOAD or block_bytes % ALIGNMENT:
            msg = (
                f"block_bytes must be a multiple of {ALIGNMENT} in {ALIGNMENT}..{MAX_PAYLOAD}; "
                f"got {block_bytes}"
            )
            raise ValueError(msg)
        self.path = path
        self.ordinal = ordinal
        #: records appended so far
        self.records = 0
        self._files = files
        self._codec = None if codec is None else pa.Codec(codec)
        self._block_bytes = block_bytes
        self._block = np.empty(block_bytes, dtype=np.uint8).data
        #: bytes used in the block buffer
        self._fill = 0
        #: bytes written at once, and those that wait for more
        self._stride = stride
        self._waiting = bytearray()
        #: where the block buffer starts in the record stream
        self._first = 0
        #: directory rows of the block buffer, and of the blocks written
        self._entries = bytearray()
        self._directory: list[bytes] = []
        self._table: list[bytes] = []
        self._expiry = MINUS_INFINITY
        self._header = pack_header(codec, ordinal)
        self._place = len(self._header)
        self._writable = True
        self._finished = False
        self._file = files.create(path)
        self._write(self._header)

    @property
    def held(self) -> int:
        """Bytes of memory that this writer holds, for the budget of its owner."""
        described = self.records * ENTRY.size + len(self._table) * ROW.size
        return self._block_bytes + self._stride + described

    @property
    def next_marker(self) -> int:
        return self.ordinal << 32 | (self._first + self._fill) >> 3

    def append(
        self,
        payload: bytes | bytearray | memoryview | npt.NDArray[Any],
        *,
        operator: int = 0,
        synopsis: int = 0,
        group: int = 0,
        rows: int = 0,
        expiry: int = INFINITY,
        back: int = NO_MARKER,
    ) -> int:
        """Append a record and return its marker.

        Raises:
            ValueError: a field does not fit its width, the segment is full, or it is finished
                or broken; nothing was appended.
            StorageError: a write failed; the segment is broken, abandon it.
        """
        data = payload if type(payload) is bytes else _flat(payload)  # type: ignore[arg-type]
        length = len(data)
        size = (length + 7) & -8 or 8
        fill = self._fill
        offset = self._first + fill
        marker = self.ordinal << 32 | offset >> 3
        try:
            entry = _pack_entry(marker, group, expiry, back, rows, length, operator, synopsis, 0)
        except struct.error as error:
            raise ValueError(self._misfit(length, operator, synopsis, rows)) from error
        if offset + size > MAX_STREAM or length > MAX_PAYLOAD or not self._writable:
            raise ValueError(self._refusal(length))
        if size > self._block_bytes - fill:
            self._flush()
            fill = 0
        self._entries += entry
        self.records += 1
        if expiry > self._expiry:
            self._expiry = expiry
        if size >= self._block_bytes:
            self._store(data if size == length else bytes(data) + _ZEROS[: size - length], 1)
            return marker
        block = self._block
        end = fill + size
        if size != length:
            block[end - 8 : end] = _ZEROS
        block[fill : fill + length] = data
        self._fill = end
        return marker

    def finish(self, *, sync: bool = True) -> SegmentInfo:
        """Write the footer and close; the file is durable if `sync` is set."""
        if not self._writable:
            raise ValueError(self._refusal(0))
        self._flush()
        blocks = len(self._table)
        directory = b"".join(self._directory)
        table = b"".join(self._table)
        expiry = int(self._expiry)
        fields = (
            self._place,
            self._place + len(directory),
            self.records,
            self._first,
            expiry,
            blocks,
            self.ordinal,
        )
        unchecked = TRAILER.pack(*fields, 0, TRAILER_MAGIC)
        checksum = footer_checksum(self.ordinal, self._header, table, unchecked)
        self._write(directory + table + TRAILER.pack(*fields, checksum, TRAILER_MAGIC))
        self._writable = False
        self._file.write(self._waiting)
        if sync:
            self._file.sync()
        self._file.close()
        if sync:
            self._files.sync_folder(folder_of(self.path))
        self._finished = True
        return SegmentInfo(
            ordinal=self.ordinal,
            name=self.path.rpartition("/")[2],
            bytes=self._place + len(directory) + len(table) + TRAILER.size,
            records=self.records,
            expiry=expiry,
            footer_checksum=checksum,
        )

    def abandon(self) -> None:
        """Close and unlink the file, finished or not; abandoning twice is fine."""
        self._writable = False
        self._files.unlink(self.path)
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._finished:
            self.abandon()

    def _flush(self) -> None:
        """Write the block buffer as a block."""
        if self._fill:
            used = self._block[: self._fill]
            self._fill = 0
            self._store(used, len(self._entries) // ENTRY.size)

    def _store(self, raw: bytes | memoryview, entries: int) -> None:
        """Write one block; its records are those in `_entries`."""
        index = len(self._table)
        stored = raw
        if self._codec is not None:
            packed = self._codec.compress(raw, asbytes=True)
            if len(packed) < len(raw) <= max(MOST_RAW, MOST_RATIO * len(packed)):
                stored = packed
        row = ROW.pack(
            self._first,
            self._place,
            len(stored),
            len(raw),
            self.records - entries,
            entries,
            part_checksum(self.ordinal, index, stored),
            part_checksum(self.ordinal, index, self._entries),
        )
        self._write(stored)
        self._table.append(row)
        self._directory.append(bytes(self._entries))
        self._entries.clear()
        self._place += len(stored)
        self._first += len(raw)

    def _write(self, data: bytes | memoryview) -> None:
        """Write whole strides, buffer the rest; after a failure the segment must be abandoned."""
        self._writable = False
        rest, size = memoryview(data), self._stride
        if self._waiting:
            room = size - len(self._waiting)
            self._waiting += rest[:room]
            rest = rest[room:]
            if len(self._waiting) == size:
                self._file.write(self._waiting)
                self._waiting.clear()
        whole = len(rest) // size * size
        if whole:
            self._file.write(rest[:whole])
        self._waiting += rest[whole:]
        self._writable = True

    def _refusal(self, length: int) -> str:
        """Return why nothing can be appended."""
        if self._finished:
            return f"{self.path} is finished; write to the next segment"
        if not self._writable:
            return f"{self.path} was abandoned or could not be written; write a new segment"
        if length > MAX_PAYLOAD:
            return f"a payload has at most {MAX_PAYLOAD} bytes; got {length}; split it"
        room = MAX_STREAM - self._first - self._fill
        return (
            f"{self.path} has room for {room} of {padded(length)} bytes more; finish it and "
            "write to the next segment"
        )

    def _misfit(self, length: int, operator: int, synopsis: int, rows: int) -> str:
        """Return which field does not fit its width."""
        if length > MAX_PAYLOAD:
            return self._refusal(length)
        return (
            "a record's operator and synopsis must fit 16 bits, rows 32, group and expiry 64 "
            f"(signed) and back 64; got operator={operator}, synopsis={synopsis}, rows={rows}"
        )
