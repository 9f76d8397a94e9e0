"""Changed files with valid signatures: every checksum is recomputed.

Idea: a checksum finds accidents. Anybody who can write to a checkpoint can compute a valid one, and
so can a bug. To see how readers react, a file is changed and signed again, as a writer would.

Invariants:
1. Signing an unchanged file again changes no byte (`test_signing_again_changes_nothing`).
"""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import xxhash

from icestream.state.log.format import (
    CODECS,
    ENTRY,
    HEADER,
    HEADER_CHECKED,
    ROW,
    TRAILER,
    TRAILER_CHECKED,
    footer_checksum,
    part_checksum,
)
from icestream.state.versions.sealed import FORMAT, seal
from tests.faults.mutations import changed_numbers, json_bytes

#: parts of a segment that can be changed
PARTS = ("header", "blocks", "directory", "table", "trailer")
#: bytes of a row of the table before its two checksums
_ROW_CHECKED = ROW.size - 16


def sealed(value: Any) -> bytes:
    """Return JSON with a valid seal, whatever its content."""
    body = json_bytes(value)
    return body + b"\n" + seal(FORMAT, body)


def changed_segment(sample: bytes, part: str, dice: random.Random) -> bytes:
    """Return a segment with numbers of one part changed and every checksum recomputed."""
    header, blocks, directory, table, trailer = cut(sample)
    match part:
        case "header":
            header = changed_numbers(header[:HEADER_CHECKED], dice) + header[HEADER_CHECKED:]
        case "blocks":
            blocks = changed_numbers(blocks, dice)
        case "directory":
            directory = changed_numbers(directory, dice)
        case "table":
            table = changed_numbers(table, dice)
        case _:
            trailer = changed_numbers(trailer[:TRAILER_CHECKED], dice) + trailer[TRAILER_CHECKED:]
    return signed(header, blocks, directory, table, trailer)


def changed_payloads(sample: bytes, dice: random.Random) -> bytes:
    """Return a segment with bytes of its payloads changed, before they were compressed."""
    header, blocks, directory, table, trailer = cut(sample)
    name = CODECS[HEADER.unpack(header)[2]]
    codec = None if name is None else pa.Codec(name)
    raws, rows = [], list(ROW.iter_unpack(table))
    for _, place, stored, raw, *_ in rows:
        data = blocks[place - HEADER.size : place - HEADER.size + stored]
        if stored != raw:
            assert codec is not None
            data = codec.decompress(data, decompressed_size=raw, asbytes=True)
        raws.append(data)
    if raws:
        chosen = dice.randrange(len(raws))
        raws[chosen] = changed_numbers(raws[chosen], dice)
    place, table = HEADER.size, b""
    for (first, _, _, raw, entry, entries, one, two), data in zip(rows, raws, strict=True):
        table += ROW.pack(first, place, len(data), raw, entry, entries, one, two)
        place += len(data)
    fields = list(TRAILER.unpack(trailer))
    fields[:2] = place, place + len(directory)
    return signed(header, b"".join(raws), directory, table, TRAILER.pack(*fields))


def cut(sample: bytes) -> tuple[bytes, bytes, bytes, bytes, bytes]:
    """Return header, blocks, directory, table and trailer of a good segment."""
    fields = TRAILER.unpack(sample[-TRAILER.size :])
    directory, table = fields[:2]
    return (
        sample[: HEADER.size],
        sample[HEADER.size : directory],
        sample[directory:table],
        sample[table : -TRAILER.size],
        sample[-TRAILER.size :],
    )


def signed(header: bytes, blocks: bytes, directory: bytes, table: bytes, trailer: bytes) -> bytes:
    """Return a segment of these parts with valid checksums, if parts are where they claim."""
    checked = header[:HEADER_CHECKED]
    header = checked + xxhash.xxh3_64_intdigest(checked).to_bytes(8, "little")
    ordinal = HEADER.unpack(header)[4]
    rows = []
    for number, row in enumerate(ROW.iter_unpack(table)):
        _, place, stored, _, entry, entries, _, _ = row
        start = place - HEADER.size
        sums = (
            part_checksum(ordinal, number, blocks[max(0, start) : max(0, start) + stored]),
            part_checksum(
                ordinal, number, directory[entry * ENTRY.size : (entry + entries) * ENTRY.size]
            ),
        )
        at = number * ROW.size
        rows.append(table[at : at + _ROW_CHECKED] + b"".join(s.to_bytes(8, "little") for s in sums))
    table = b"".join(rows)
    footer = footer_checksum(ordinal, header, table, trailer)
    trailer = trailer[:TRAILER_CHECKED] + footer.to_bytes(8, "little") + trailer[-8:]
    return header + blocks + directory + table + trailer
