"""Tables of words in few bytes: what all words of a column share is stored once.

Idea: a column is stored as its least word, the zero bits at the end that all distances from it
share, and as many bytes of each distance as the largest needs. Bytes of equal weight lie together,
a *plane* each. Identities, the first two words of a row, are random: where a table has few of them,
each row stores the number of its own instead.

    number of identities | of each column: least word, zero bits, bytes | identities | planes

Invariants:
1. A table comes back as it was (`test_oracle_packed_tables_come_back`).
2. What is packed is smaller than the table, so its size tells it from one that is not
   (`test_a_table_that_does_not_get_smaller_stays_as_it_is`).
3. No payload makes a kernel read or write outside its arrays
   (`test_payloads_that_hold_no_table_are_refused`).

Cost: two passes over the table and one for each plane; one lookup a row for identities.

References: frame of reference (Goldstein, Ramakrishnan and Shaft, 1998).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from icestream.core.arrays import Ints, Table
from icestream.kernels.compile import kernel

Bytes = npt.NDArray[np.uint8]

#: words in front of those of columns: the number of identities, 0 if each row has its own
_HEAD = 1
#: words for each column: least word, zero bits, bytes
_EACH = 3
_LEAST, _ZEROS, _BYTES = range(_EACH)
#: words of an identity, the first of a row
_IDENTITY = 2


def packed(table: Table) -> Table | Bytes:
    """Return a table in fewer bytes, or the table itself if this gains nothing."""
    rows, width = table.shape
    if rows == 0:
        return table
    head = np.zeros(_HEAD + _EACH * width, dtype=np.int64)
    codes = np.empty(rows, dtype=np.int64)
    firsts = np.empty(rows // 2, dtype=np.int64)
    places = np.zeros(1 << (2 * rows).bit_length(), dtype=np.int32)
    identities = head[0] = _number_identities(table, places, codes, firsts)
    start = head.nbytes + 8 * _IDENTITY * identities
    size = start + rows * int(_measure(table, head))
    if size >= table.nbytes:
        return table
    out = np.empty(size, dtype=np.uint8)
    out[: head.nbytes] = head.view(np.uint8)
    known = np.ascontiguousarray(table[firsts[:identities], :_IDENTITY])
    out[head.nbytes : start] = known.view(np.uint8).reshape(-1)
    _put_planes(table, codes, head, out[start:])
    return out


def unpacked(payload: bytes | memoryview, rows: int, width: int) -> Table:
    """Return the table of so many rows and words that a payload holds, packed or not."""
    if len(payload) == 8 * rows * width:
        return np.frombuffer(payload, dtype=np.int64).reshape(rows, width)
    table = np.zeros((rows, width), dtype=np.int64)
    unpack(payload, table)
    return table


def unpack(payload: bytes | memoryview, table: Table) -> None:
    """Fill a table, which is zero, with the rows of a payload, packed or not."""
    rows, width = table.shape
    if len(payload) == table.nbytes:
        table[:] = np.frombuffer(payload, dtype=np.int64).reshape(rows, width)
        return
    whole = np.frombuffer(payload, dtype=np.uint8)
    words = _HEAD + _EACH * width
    head = whole[: 8 * words].view(np.int64).copy()
    columns = head[_HEAD:].reshape(width, _EACH)
    start = 8 * (words + _IDENTITY * int(head[0]))
    sizes, zeros = columns[:, _BYTES], columns[:, _ZEROS]
    limits = (sizes >= 0) & (sizes <= 8) & (zeros >= 0) & (zeros < 64)
    if head[0] < 0 or not limits.all() or len(whole) != start + rows * int(sizes.sum()):
        msg = f"{len(whole)} bytes are no packed table of {rows} rows of {width} words"
        raise ValueError(msg)
    identities = whole[8 * words : start].view(np.int64).reshape(-1, _IDENTITY).copy()
    if not _take_planes(whole[start:], identities, head, table):
        msg = f"a row has none of the {len(identities)} identities of its table"
        raise ValueError(msg)


@kernel
def _number_identities(
    table: Table, places: npt.NDArray[np.int32], codes: Ints, firsts: Ints
) -> int:
    """Number the identities of rows in the order they come; return 0 if they are too many."""
    mask = np.uint64(places.size - 1)
    count = 0
    for i in range(table.shape[0]):
        place = np.uint64(table[i, 0]) & mask
        while True:
            number = int(places[place])
            if number == 0:
                if count == firsts.size:
                    return 0
                firsts[count] = i
                count += 1
                places[place] = count
                codes[i] = count - 1
                break
            first = firsts[number - 1]
            if table[first, 0] == table[i, 0] and table[first, 1] == table[i, 1]:
                codes[i] = number - 1
                break
            place = (place + np.uint64(1)) & mask
    return count


@kernel
def _measure(table: Table, head: Ints) -> int:
    """Describe each column in the head; return the planes of all."""
    planes = 0
    for c in range(table.shape[1]):
        at = _HEAD + _EACH * c
        if c < _IDENTITY and head[0] > 0:
            least, bits = 0, np.uint64(head[0] - 1 if c == 0 else 0)
        else:
            least = table[0, c]
            for i in range(table.shape[0]):
                least = min(least, table[i, c])
            bits = np.uint64(0)
            for i in range(table.shape[0]):
                bits |= np.uint64(table[i, c] - least)
        zeros = 0
        if bits != 0 and not (c < _IDENTITY and head[0] > 0):
            while (bits >> np.uint64(zeros)) & np.uint64(1) == 0:
                zeros += 1
        size = 0
        while size < 8 and (bits >> np.uint64(zeros)) >> np.uint64(8 * size) != 0:
            size += 1
        head[at + _LEAST], head[at + _ZEROS], head[at + _BYTES] = least, zeros, size
        planes += size
    return planes


@kernel
def _put_planes(table: Table, codes: Ints, head: Ints, out: Bytes) -> None:
    """Write the planes of all columns."""
    rows = table.shape[0]
    start = 0
    for c in range(table.shape[1]):
        at = _HEAD + _EACH * c
        numbered = c == 0 and head[0] > 0
        least = head[at + _LEAST]
        for b in range(head[at + _BYTES]):
            shift = np.uint64(head[at + _ZEROS] + 8 * b)
            for i in range(rows):
                word = codes[i] if numbered else table[i, c] - least
                out[start + i] = np.uint8(np.uint64(word) >> shift)
            start += rows


@kernel
def _take_planes(planes: Bytes, identities: Table, head: Ints, table: Table) -> bool:
    """Fill a table, which is zero, from the planes of its columns; False if identities miss."""
    rows = table.shape[0]
    start = 0
    for c in range(table.shape[1]):
        at = _HEAD + _EACH * c
        for b in range(head[at + _BYTES]):
            shift = np.uint64(head[at + _ZEROS] + 8 * b)
            for i in range(rows):
                table[i, c] |= np.int64(np.uint64(planes[start + i]) << shift)
            start += rows
        least = head[at + _LEAST]
        if least != 0:
            for i in range(rows):
                table[i, c] += least
    if identities.shape[0] > 0:
        for i in range(rows):
            number = table[i, 0]
            if not 0 <= number < identities.shape[0]:
                return False
            table[i, 0], table[i, 1] = identities[number, 0], identities[number, 1]
    return True
