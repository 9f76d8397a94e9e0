"""Extents: rows of groups on the log, each with a header and a checksum of its own.

Idea: an extent is a header, then the words of its rows. Those of many groups follow each other in a
record, and a marker points to one of them: it is read without reading the others, and checked
alone: the upper bits of the word with the length are a checksum of header and words, seeded with
the marker, so an extent in another place does not pass. In a record a header is *short*: words that
follow from its flags are left out.

Invariants:
1. Extents are found and copied as laid out, nothing else (`test_parity_extents_in_a_record`).
2. A changed bit of an extent is detected, and so is another marker or group
   (`test_a_changed_extent_is_not_sound`).

Cost: one pass over the words to lay out, two to read; a multiplication for each.
"""

from __future__ import annotations

import numpy as np

from icestream.core.arrays import Ids, Ints, Table
from icestream.kernels.compile import kernel
from icestream.kernels.groups.heap import ID_HIGH, ID_LOW, NO_ROOT

#: words of a header: identity, rows and place in the chain, checksum and flags and words, previous
#: extent, latest expiry of the chain from here on and of the chain before
SHAPE = 2
LENGTH = 3
BACK = 4
LATEST = 5
BACK_LATEST = 6
HEADER = 7
#: part of `LENGTH` that is the number of words
WORDS = 0xFFFFFFFF
#: flag in `LENGTH`: no row behind this extent has a better rank than any in it
IN_ORDER = 1 << 32
#: flags in `LENGTH` of a short header: there is no previous extent, so its words are left out;
#: rows never expire, so expiries are left out
FIRST = 1 << 33
LASTING = 1 << 34
#: bits of `LENGTH` below the checksum
PLAIN = 35
_PLAIN_BITS = (1 << PLAIN) - 1
_FACTOR = 0x9E3779B97F4A7C15
_LEAST = -9223372036854775808
_MOST = 9223372036854775807
#: words of short headers of rows that never expire: the first of a chain, and those behind it
LEAST_HEADER = 4
LASTING_HEADER = 5


@kernel
def short_header(length: int) -> int:
    """Return the words of an extent's short header, given its word with the length."""
    words = HEADER
    if length & FIRST:
        words -= 2
    if length & LASTING:
        words -= 1 if length & FIRST else 2
    return words


@kernel
def flags_of(headers: Table, e: int) -> int:
    """Return the flags of the short header of an extent."""
    flags = 0
    if headers[e, BACK] == NO_ROOT:
        flags |= FIRST
    if headers[e, LATEST] == _MOST and (flags or headers[e, BACK_LATEST] == _MOST):
        flags |= LASTING
    return flags


@kernel
def sum_up(headers: Table, ends: Ints) -> None:
    """Fill `ends` with the cumulative words of the extents in a record, starting at 0."""
    ends[0] = 0
    for e in range(headers.shape[0]):
        size = headers[e, LENGTH] & WORDS
        ends[e + 1] = ends[e] + short_header(flags_of(headers, e)) + size


@kernel
def checksum(stream: Ints, at: int, size: int, marker: int) -> int:
    """Return the checksum of an extent, all of `size` words, shifted to its bits in `LENGTH`."""
    mixed = np.uint64(marker)
    for w in range(size):
        word = stream[at + w]
        if w == LENGTH:
            word &= _PLAIN_BITS
        mixed = (mixed ^ np.uint64(word)) * np.uint64(_FACTOR)
        mixed ^= mixed >> np.uint64(32)
    return int(np.int64(mixed >> np.uint64(PLAIN) << np.uint64(PLAIN)))


@kernel
def lay_out(
    headers: Table,
    words: Ints,
    begins: Ints,
    first: int,
    last: int,
    marker: int,
    record: Ints,
    markers: Ints,
) -> None:
    """Fill a record at `marker` with extents from first to last, and fill in the marker of each.

    The words of each begin at its place in `words`.
    """
    at = 0
    for e in range(first, last):
        flags = flags_of(headers, e)
        target = at + LENGTH
        for w in range(LENGTH):
            record[at + w] = headers[e, w]
        record[target] = headers[e, LENGTH] | flags
        target += 1
        for w in range(BACK, HEADER):
            if w == LATEST:
                is_said = not flags & LASTING
            elif w == BACK:
                is_said = not flags & FIRST
            else:
                is_said = flags == 0
            if is_said:
                record[target] = headers[e, w]
                target += 1
        for w in range(headers[e, LENGTH] & WORDS):
            record[target + w] = words[begins[e] + w]
        target += headers[e, LENGTH] & WORDS
        markers[e] = marker + at
        record[at + LENGTH] |= checksum(record, at, target - at, markers[e])
        at = target


@kernel
def is_sound(stream: Ints, at: int, marker: int, id_high: np.uint64, id_low: np.uint64) -> bool:
    """Return whether this is the extent of a group, as it was written at `marker`."""
    if at < 0 or at + LEAST_HEADER > stream.size:
        return False
    length = stream[at + LENGTH]
    size = short_header(length) + (length & WORDS)
    if at + size > stream.size:
        return False
    if np.uint64(stream[at + ID_HIGH]) != id_high or np.uint64(stream[at + ID_LOW]) != id_low:
        return False
    return bool(checksum(stream, at, size, marker) == length & ~_PLAIN_BITS)


@kernel
def measure_extents(
    stream: Ints, origin: int, markers: Ints, id_high: Ids, id_low: Ids, sizes: Ints
) -> int:
    """Fill in the words of extents; return how many are valid and of their groups before a bad one.

    The first word of `stream` has the marker `origin`.
    """
    for i in range(markers.size):
        at = markers[i] - origin
        if not is_sound(stream, at, markers[i], id_high[i], id_low[i]):
            return i
        sizes[i] = stream[at + LENGTH] & WORDS
    return int(markers.size)


@kernel
def copy_header(stream: Ints, at: int, headers: Table, e: int) -> int:
    """Fill in an extent's header from a short one; return where the words of its rows begin."""
    for w in range(LENGTH + 1):
        headers[e, w] = stream[at + w]
    length = stream[at + LENGTH]
    at += LEAST_HEADER
    headers[e, BACK] = NO_ROOT
    headers[e, LATEST] = _MOST
    headers[e, BACK_LATEST] = _LEAST if length & FIRST else _MOST
    if not length & FIRST:
        headers[e, BACK] = stream[at]
        at += 1
    if not length & LASTING:
        headers[e, LATEST] = stream[at]
        at += 1
        if not length & FIRST:
            headers[e, BACK_LATEST] = stream[at]
            at += 1
    return at


@kernel
def copy_extents(stream: Ints, origin: int, markers: Ints, headers: Table, out: Ints) -> None:
    """Fill in headers of sound extents, and copy their words to `out`, without gaps."""
    target = 0
    for i in range(markers.size):
        begin = copy_header(stream, markers[i] - origin, headers, i)
        size = headers[i, LENGTH] & WORDS
        for w in range(size):
            out[target + w] = stream[begin + w]
        target += size


@kernel
def list_extents(record: Ints, places: Ints, headers: Table) -> int:
    """Fill in where the extents of a record begin, and their headers; return their number.

    It is -1 if they do not fill the record. There must be room for one per `LEAST_HEADER` words.
    """
    at = 0
    count = 0
    while at < record.size:
        if at + LEAST_HEADER > record.size:
            return -1
        length = record[at + LENGTH]
        end = at + short_header(length) + (length & WORDS)
        if end > record.size:
            return -1
        places[count] = at
        copy_header(record, at, headers, count)
        count += 1
        at = end
    return count


@kernel
def copy_pieces(source: Ints, begins: Ints, sizes: Ints, out: Ints, places: Ints) -> None:
    """Copy pieces of extents, out of `source`, to `places` of `out`; advance the places."""
    for i in range(begins.size):
        begin = begins[i]
        target = places[i]
        for w in range(sizes[i]):
            out[target + w] = source[begin + w]
        places[i] = target + sizes[i]
