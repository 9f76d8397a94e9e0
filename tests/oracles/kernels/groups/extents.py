"""The obvious versions of the kernels in `icestream.kernels.groups.extents`."""

from __future__ import annotations

from icestream.core.arrays import Ids, Ints, Table
from icestream.kernels.groups.extents import (
    _FACTOR,
    _LEAST,
    _MOST,
    _PLAIN_BITS,
    BACK,
    BACK_LATEST,
    FIRST,
    HEADER,
    LASTING,
    LATEST,
    LEAST_HEADER,
    LENGTH,
    PLAIN,
    WORDS,
)
from icestream.kernels.groups.heap import NO_ROOT


def checksum_reference(extent: list[int], marker: int) -> int:
    """Return the `checksum` of an extent's words, with Python's numbers."""
    mixed = marker % 2**64
    for place, word in enumerate(extent):
        plain = word & _PLAIN_BITS if place == LENGTH else word
        mixed = (mixed ^ plain % 2**64) * _FACTOR % 2**64
        mixed ^= mixed >> 32
    signed = mixed >> PLAIN << PLAIN
    return signed - 2**64 if signed >= 2**63 else signed


def lay_out_reference(
    headers: Table, words: Ints, begins: Ints, marker: int
) -> tuple[list[int], list[int]]:
    """Return the record and the markers that `lay_out` fills in for all extents, by lists."""
    record: list[int] = []
    markers = []
    for header, begin in zip(headers.tolist(), begins.tolist(), strict=True):
        is_first = header[BACK] == NO_ROOT
        is_lasting = header[LATEST] == _MOST and (is_first or header[BACK_LATEST] == _MOST)
        extent = [*header[:LENGTH], header[LENGTH] | FIRST * is_first | LASTING * is_lasting]
        extent += [] if is_first else [header[BACK]]
        extent += [] if is_lasting else [header[LATEST]]
        extent += [] if is_first or is_lasting else [header[BACK_LATEST]]
        extent += words[begin : begin + (header[LENGTH] & WORDS)].tolist()
        markers.append(marker + len(record))
        extent[LENGTH] |= checksum_reference(extent, markers[-1])
        record += extent
    return record, markers


def read_extents_reference(
    stream: Ints, origin: int, markers: Ints, id_high: Ids, id_low: Ids
) -> list[list[int]]:
    """Return what `measure_extents` finds valid and `copy_extents` copies, by slices."""
    found: list[list[int]] = []
    words = stream.tolist()
    for marker, *identity in zip(markers.tolist(), id_high.tolist(), id_low.tolist(), strict=True):
        at = marker - origin
        start = words[at : at + LEAST_HEADER] if at >= 0 else []
        if len(start) < LEAST_HEADER or [each % 2**64 for each in start[:2]] != identity:
            break
        size = start[LENGTH] & WORDS
        is_first, is_lasting = (start[LENGTH] & flag != 0 for flag in (FIRST, LASTING))
        short = HEADER - 2 * is_first - is_lasting - (is_lasting and not is_first)
        extent = words[at : at + short + size]
        signed = start[LENGTH] >> PLAIN << PLAIN
        if len(extent) < short + size or checksum_reference(extent, marker) != signed:
            break
        said = iter(extent[LEAST_HEADER:])
        back = NO_ROOT if is_first else next(said)
        latest = _MOST if is_lasting else next(said)
        before = _LEAST if is_first else _MOST if is_lasting else next(said)
        found.append([*start, back, latest, before, *said])
    return found


def list_extents_reference(record: Ints) -> list[int] | None:
    """Return where the extents begin that `list_extents` lists; None if they do not fill it."""
    words, places, at = record.tolist(), [], 0
    while at < len(words):
        places.append(at)
        if at + LEAST_HEADER > len(words):
            return None
        length = words[at + LENGTH]
        is_first, is_lasting = (length & flag != 0 for flag in (FIRST, LASTING))
        short = HEADER - 2 * is_first - is_lasting - (is_lasting and not is_first)
        at += short + (length & WORDS)
    return places if at == len(words) else None


def copy_pieces_reference(source: Ints, begins: Ints, sizes: Ints, out: Ints, places: Ints) -> None:
    """Do what `copy_pieces` does, by slices."""
    for i, (begin, size) in enumerate(zip(begins.tolist(), sizes.tolist(), strict=True)):
        place = int(places[i])
        out[place : place + size] = source[begin : begin + size]
        places[i] = place + size
