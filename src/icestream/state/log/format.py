"""The byte format of a segment file (`docs/formats/log.md` shows it with an example).

Idea:
    A segment is `header block* directory table trailer`. Blocks hold payloads only; the directory
    holds one fixed row per record, cut into one part per block; the table holds one fixed row per
    block with the checksums of the block and of its directory part; the trailer holds a checksum
    over header, table and trailer. So that last checksum covers the whole file.

Invariants:
    1. Every byte of the file is covered by a checksum or compared with a constant
       (`test_any_flipped_byte_is_detected_or_harmless`).
    2. A checksum is seeded by segment ordinal and block index, so bytes of another file or another
       position do not pass (`test_a_block_of_another_segment_is_damage`).
    3. A header's magic, version and checksum stay where they are in every version
       (`test_a_newer_format_version_names_path_and_both_versions`).

Limits:
    32 GiB of padded payloads in a segment, 4 GiB in a record, ordinals below 2**32 - 1.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION = 1
HEADER_MAGIC = b"ICELOG\r\n"
TRAILER_MAGIC = b"ICEEND\r\n"

#: the back pointer of a record without predecessor
NO_MARKER = 2**64 - 1
#: records start at multiples of this many bytes in the record stream
ALIGNMENT = 8
#: the largest ordinal a segment may have; NO_MARKER uses the next one
MAX_ORDINAL = 2**32 - 2
#: bytes of the longest payload, such that its padded length still fits 32 bits
MAX_PAYLOAD = 2**32 - ALIGNMENT
#: bytes of the longest record stream, such that every offset in it fits a marker
MAX_STREAM = 2**32 * ALIGNMENT

#: bytes that any block may claim as its uncompressed size
MOST_RAW = 64 << 20
#: a larger block may claim this many times its bytes in the file
MOST_RATIO = 256

#: names of files in the folders of a checkpoint: no path that leads elsewhere
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
_CHECKSUM = re.compile(r"[0-9a-f]{16}")

#: codec names by the number in the header
CODECS: tuple[str | None, ...] = (None, "lz4", "zstd")

#: magic, version, codec, zero, ordinal, zero, checksum of the bytes before
HEADER = struct.Struct("<8sHBBIQQ")
#: marker, group, expiry, back, rows, length, operator, synopsis, zero
ENTRY = struct.Struct("<QqqQIIHHI")
#: first, place, stored, raw, entry, entries, checksum, entries_checksum
ROW = struct.Struct("<QQIIIIQQ")
#: directory, table, records, stream, expiry, blocks, ordinal, checksum, magic
TRAILER = struct.Struct("<QQQQqIIQ8s")
#: bytes of the header covered by its checksum
HEADER_CHECKED = HEADER.size - 8
#: bytes of the trailer covered by the footer checksum
TRAILER_CHECKED = TRAILER.size - 16

#: one record of the directory, as stored; `length` is that of the payload without padding
ENTRY_DTYPE = np.dtype(
    {
        "names": ["marker", "group", "expiry", "back", "rows", "length", "operator", "synopsis"],
        "formats": ["<u8", "<i8", "<i8", "<u8", "<u4", "<u4", "<u2", "<u2"],
        "offsets": [0, 8, 16, 24, 32, 36, 40, 42],
        "itemsize": ENTRY.size,
    }
)
#: one block of the table, as stored; `first` is its offset in the stream, `place` in the file
ROW_DTYPE = np.dtype(
    [
        ("first", "<u8"),
        ("place", "<u8"),
        ("stored", "<u4"),
        ("raw", "<u4"),
        ("entry", "<u4"),
        ("entries", "<u4"),
        ("checksum", "<u8"),
        ("entries_checksum", "<u8"),
    ]
)


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """A commit's description of a segment; enough to detect any other file with its name."""

    ordinal: int
    #: file name inside the log's folder
    name: str
    #: bytes of the whole file
    bytes: int
    records: int
    #: the latest expiry of its records; MINUS_INFINITY if it has none
    expiry: int
    #: checksum that covers every byte of the file
    footer_checksum: int

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; the checksum is 16 hexadecimal digits, exact everywhere."""
        return {
            "ordinal": self.ordinal,
            "name": self.name,
            "bytes": self.bytes,
            "records": self.records,
            "expiry": self.expiry,
            "footer_checksum": f"{self.footer_checksum:016x}",
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SegmentInfo:
        """Return the info that `to_json` wrote; ValueError if it is not valid."""
        if not _CHECKSUM.fullmatch(value["footer_checksum"]):
            msg = f"{value['footer_checksum']!r} is not a checksum"
            raise ValueError(msg)
        return cls(
            ordinal=whole(value["ordinal"], 0, MAX_ORDINAL),
            name=file_name(value["name"]),
            bytes=whole(value["bytes"], 0),
            records=whole(value["records"], 0),
            expiry=whole(value["expiry"]),
            footer_checksum=int(value["footer_checksum"], 16),
        )


@dataclass(frozen=True, slots=True)
class Record:
    """A record as read; its payload is a view that keeps the record's whole block in memory."""

    marker: int
    operator: int
    synopsis: int
    group: int
    #: microseconds; the record is not needed once the watermark has passed it
    expiry: int
    #: marker of the group's previous record, or NO_MARKER
    back: int
    rows: int
    payload: memoryview


def whole(value: object, least: int = -(2**63), most: int = 2**63 - 1) -> int:
    """Return an integer of a file format; ValueError unless it is an integer in the range."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        msg = f"{str(value)[:80]} is not an integer from {least} to {most}"
        raise ValueError(msg)
    return value


def text(value: object) -> str:
    """Return a string of a file format; ValueError if it is not a string."""
    if not isinstance(value, str):
        msg = f"{str(value)[:80]} is not a string"
        raise ValueError(msg)  # noqa: TRY004 - a file is wrong, not a program
    return value


def file_name(value: object) -> str:
    """Return a file name in a file format; ValueError if it leads out of its folder."""
    if not _NAME.fullmatch(text(value)):
        msg = f"{str(value)[:80]!r} is not the name of a file inside the checkpoint"
        raise ValueError(msg)
    return text(value)


def ordinal_of(marker: int) -> int:
    """Return the ordinal of the segment that the format of a marker gives."""
    return marker >> 32


def offset_of(marker: int) -> int:
    """Return the offset in its segment's record stream that the format of a marker gives."""
    return (marker & 0xFFFFFFFF) * ALIGNMENT


def show_marker(marker: int) -> str:
    """Format a marker of the log for people: ordinal and byte offset."""
    return f"{ordinal_of(marker)}:{offset_of(marker)}"


def padded(length: int) -> int:
    """Return the bytes of a payload in the format of a segment; even an empty one takes some."""
    return (length + ALIGNMENT - 1) & -ALIGNMENT or ALIGNMENT


def part_checksum(ordinal: int, block: int, data: bytes | bytearray | memoryview) -> int:
    """Return the checksum, in a segment's format, of a block or of its directory part."""
    return xxhash.xxh3_64_intdigest(data, ordinal << 32 | block)


def pack_header(codec: str | None, ordinal: int) -> bytes:
    """Return the header of a segment in its byte format."""
    fields = (HEADER_MAGIC, VERSION, CODECS.index(codec), 0, ordinal, 0)
    checked = HEADER.pack(*fields, 0)[:HEADER_CHECKED]
    return HEADER.pack(*fields, xxhash.xxh3_64_intdigest(checked))


def footer_checksum(ordinal: int, header: bytes, table: bytes, trailer: bytes) -> int:
    """Return the checksum in the format's footer that covers the whole segment file."""
    return xxhash.xxh3_64_intdigest(header + table + trailer[:TRAILER_CHECKED], ordinal)
