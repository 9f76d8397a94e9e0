"""Tables of words in few bytes: what all words of a column share is stored once.

Idea: a column is stored as its least word, the zero bits at the end that all distances from it
share, and as many bytes of each distance as the largest needs. Bytes of equal weight lie together,
a *plane* each. The last word of a row is its time: if times go up, the steps between them are
stored, in units of what all of them are multiples of. Identities, the first two words of a row,
look random, but that of a key of one word is a bijection of the word (`kernels.hashing`): such a
key is stored in place of its identity. Other identities are listed once, and each row stores the
number of its own: all of them if a table has few, and those that are of no single word, as null is,
if they are few among others.

    identities listed, flags | of each column: least word, zero bits, bytes | identities | planes

Where identities are listed or words, the first column has numbers below their count, then words.
Where times are steps, their column has the unit in place of zero bits.

Invariants:
1. A table comes back as it was (`test_oracle_packed_tables_come_back`).
2. What is packed is smaller than the table, so its size tells it from one that is not
   (`test_a_table_that_does_not_get_smaller_stays_as_it_is`).
3. No payload makes a kernel read or write outside its arrays
   (`test_payloads_that_hold_no_table_are_refused`).
4. A key of one word takes the bytes in which the keys of its table differ, also among nulls
   (`test_keys_of_one_word_take_the_bytes_in_which_they_differ`).

Cost: two passes over the table and one for each plane; a hash undone and checked for each identity,
and a lookup where identities may be few; a division for each time.

Limits: keys of several columns, of text and of long decimals have identities of no single word: 16
bytes a row if a table has many.

References: frame of reference (Goldstein, Ramakrishnan and Shaft, 1998).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from icestream.core.arrays import Ints, Table
from icestream.kernels.compile import kernel
from icestream.kernels.hashing import START_HIGH, START_LOW, mix_high, mix_low, unmix_high

Bytes = npt.NDArray[np.uint8]

#: words in front of those of columns: the number of listed identities, and flags above it
_HEAD = 1
#: flags: identities that are not listed are words; times are steps
_WORDS = 1 << 32
_STEPS = 1 << 33
_FLAGS = _WORDS | _STEPS
#: words for each column: least word, zero bits, bytes
_EACH = 3
_LEAST, _ZEROS, _BYTES = range(_EACH)
#: words of an identity, the first of a row
_IDENTITY = 2
#: of how many rows one may have an identity of its own among words
_ROWS_LISTED = 64
#: number of a row whose identity is a word
_IS_WORD = -1
#: distance of the words of a table from which numbers of identities do not fit below them
_MOST_SPREAD = np.uint64(1 << 62)


def packed(table: Table) -> Table | Bytes:
    """Return a table in fewer bytes, or the table itself if this gains nothing."""
    rows, width = table.shape
    if rows == 0:
        return table
    head = np.zeros(_HEAD + _EACH * width, dtype=np.int64)
    numbers, firsts = _numbered(table, head)
    listed = int(head[0] & ~_FLAGS)
    start = head.nbytes + 8 * _IDENTITY * listed
    size = start + rows * int(_measure(table, head))
    if size >= table.nbytes:
        return table
    out = np.empty(size, dtype=np.uint8)
    out[: head.nbytes] = head.view(np.uint8)
    known = np.ascontiguousarray(table[firsts[:listed], :_IDENTITY])
    out[head.nbytes : start] = known.view(np.uint8).reshape(-1)
    _put_planes(table, numbers, head, out[start:])
    return out


def _numbered(table: Table, head: Ints) -> tuple[Ints, Ints]:
    """Describe identities in the head; return a number for each row, and rows of those listed."""
    rows = len(table)
    first = head[_HEAD : _HEAD + _EACH]
    words, numbers = np.empty((2, rows), dtype=np.int64)
    others = np.empty(1 + rows // _ROWS_LISTED, dtype=np.int64)
    listed, least, spread = _words_of(table, _places(len(others)), words, numbers, others)
    size = _bytes_of(int(spread) + listed) if listed >= 0 else 0
    cost = 16 * listed + rows * size if listed >= 0 else 16 * rows
    # a number takes a byte at least
    few = min(rows // 2, max(0, cost - rows) // 16)
    known = np.empty(few, dtype=np.int64)
    count = int(_number_identities(table, _places(few), numbers, known)) if few else 0
    if count and 16 * count + rows * _bytes_of(count - 1) < cost:
        head[0], first[_BYTES] = count, _bytes_of(count - 1)
        return numbers, known
    if listed >= 0:
        head[0], first[_LEAST], first[_BYTES] = _WORDS | listed, least, size
    return words, others


def _places(identities: int) -> npt.NDArray[np.int32]:
    """Return an empty index of so many identities."""
    return np.zeros(1 << (4 * identities + 1).bit_length(), dtype=np.int32)


def _bytes_of(largest: int) -> int:
    return (largest.bit_length() + 7) // 8


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
    listed = int(head[0]) & ~_FLAGS
    start = 8 * (words + _IDENTITY * listed)
    sizes, zeros = columns[:, _BYTES], columns[:, _ZEROS].copy()
    if head[0] & _STEPS:
        zeros[-1] = 0 if zeros[-1] > 0 else -1
    limits = (sizes >= 0) & (sizes <= 8) & (zeros >= 0) & (zeros < 64)
    unused = head[:0]
    if listed or head[0] & _WORDS:
        unused = np.append(columns[1], columns[0, _ZEROS])
    if (
        listed < 0
        or not limits.all()
        or unused.any()
        or len(whole) != start + rows * int(sizes.sum())
    ):
        msg = f"{len(whole)} bytes are no packed table of {rows} rows of {width} words"
        raise ValueError(msg)
    identities = whole[8 * words : start].view(np.int64).reshape(-1, _IDENTITY).copy()
    if not _take_planes(whole[start:], identities, head, table):
        msg = f"a row has none of the {len(identities)} identities of its table"
        raise ValueError(msg)


@kernel
def _words_of(
    table: Table, places: npt.NDArray[np.int32], words: Ints, numbers: Ints, firsts: Ints
) -> tuple[int, np.int64, np.uint64]:
    """Find the words behind identities, and number the others.

    Returns how many others there are, the least word and the distance of the largest from it; -1
    others if they are too many. Then `words` has the numbers of the others, and the distances of
    words above them.
    """
    rows, mask = table.shape[0], np.uint64(places.size - 1)
    listed = 0
    least, most = np.int64(0), np.int64(0)
    empty = True
    for i in range(rows):
        word = unmix_high(np.uint64(table[i, 0])) ^ START_HIGH
        if np.int64(mix_low(word ^ START_LOW)) == table[i, 1]:
            words[i], numbers[i] = np.int64(word), _IS_WORD
            least = words[i] if empty else min(least, words[i])
            most = words[i] if empty else max(most, words[i])
            empty = False
            continue
        numbers[i] = _number_of(table, i, mask, places, firsts, listed)
        if numbers[i] < 0:
            return -1, least, np.uint64(0)
        listed = max(listed, numbers[i] + 1)
    spread = np.uint64(most) - np.uint64(least)
    if spread >= _MOST_SPREAD:
        return -1, least, np.uint64(0)
    for i in range(rows):
        words[i] = words[i] - least + listed if numbers[i] == _IS_WORD else numbers[i]
    return listed, least, spread


@kernel
def _number_of(
    table: Table,
    row: int,
    mask: np.uint64,
    places: npt.NDArray[np.int32],
    firsts: Ints,
    count: int,
) -> int:
    """Return the number of a row's identity, the next one if it is new; -1 if there is no room."""
    place = np.uint64(table[row, 0]) & mask
    while True:
        number = int(places[place])
        if number == 0:
            if count == firsts.size:
                return -1
            firsts[count] = row
            places[place] = count + 1
            return count
        first = firsts[number - 1]
        if table[first, 0] == table[row, 0] and table[first, 1] == table[row, 1]:
            return number - 1
        place = (place + np.uint64(1)) & mask


@kernel
def _number_identities(
    table: Table, places: npt.NDArray[np.int32], numbers: Ints, firsts: Ints
) -> int:
    """Number the identities of rows in the order they come; return 0 if they are too many."""
    mask = np.uint64(places.size - 1)
    count = 0
    for i in range(table.shape[0]):
        number = _number_of(table, i, mask, places, firsts, count)
        if number < 0:
            return 0
        count = max(count, number + 1)
        numbers[i] = number
    return count


@kernel
def _measure(table: Table, head: Ints) -> int:
    """Describe each column in the head; return the planes of all."""
    planes, last = 0, table.shape[1] - 1
    for c in range(last + 1):
        at = _HEAD + _EACH * c
        if c < _IDENTITY and head[0] > 0:
            planes += head[at + _BYTES]
            continue
        least = table[0, c]
        for i in range(table.shape[0]):
            least = min(least, table[i, c])
        bits = np.uint64(0)
        for i in range(table.shape[0]):
            bits |= np.uint64(table[i, c] - least)
        zeros = 0
        if bits != 0:
            while (bits >> np.uint64(zeros)) & np.uint64(1) == 0:
                zeros += 1
        size = _size_of(bits >> np.uint64(zeros))
        if c == last and size > 1:
            unit, longest = _steps_in(table)
            if unit > 0 and _size_of(longest) < size:
                head[0] |= _STEPS
                zeros, size = int(unit), _size_of(longest)
        head[at + _LEAST], head[at + _ZEROS], head[at + _BYTES] = least, zeros, size
        planes += size
    return planes


@kernel
def _size_of(bits: np.uint64) -> int:
    size = 0
    while size < 8 and bits >> np.uint64(8 * size) != 0:
        size += 1
    return size


@kernel
def _steps_in(table: Table) -> tuple[np.int64, np.uint64]:
    """Return the unit of the steps between times, and the longest in units; 0 if some go back."""
    last = table.shape[1] - 1
    unit, longest = np.uint64(0), np.uint64(0)
    for i in range(1, table.shape[0]):
        if table[i, last] < table[i - 1, last]:
            return np.int64(0), longest
        step = np.uint64(table[i, last]) - np.uint64(table[i - 1, last])
        longest = max(longest, step)
        if unit != np.uint64(1) and step != np.uint64(0):
            other = step
            while other != np.uint64(0):
                unit, other = other, unit % other
    if unit == np.uint64(0) or unit >= _MOST_SPREAD:
        return np.int64(0), longest
    return np.int64(unit), longest // unit


@kernel
def _put_planes(table: Table, numbers: Ints, head: Ints, out: Bytes) -> None:
    """Write the planes of all columns."""
    rows, last = table.shape[0], table.shape[1] - 1
    start = 0
    for c in range(last + 1):
        at = _HEAD + _EACH * c
        size, least = head[at + _BYTES], head[at + _LEAST]
        if c == last and head[0] & _STEPS:
            unit = np.uint64(head[at + _ZEROS])
            before = np.uint64(table[0, c])
            for i in range(rows):
                step = (np.uint64(table[i, c]) - before) // unit
                before = np.uint64(table[i, c])
                for b in range(size):
                    out[start + b * rows + i] = np.uint8(step >> np.uint64(8 * b))
            start += size * rows
            continue
        numbered = c == 0 and head[0] & ~_STEPS > 0
        for b in range(size):
            shift = np.uint64(head[at + _ZEROS] + 8 * b)
            for i in range(rows):
                word = numbers[i] if numbered else table[i, c] - least
                out[start + i] = np.uint8(np.uint64(word) >> shift)
            start += rows


@kernel
def _take_planes(planes: Bytes, identities: Table, head: Ints, table: Table) -> bool:
    """Fill a table, which is zero, from the planes of its columns; False if identities miss."""
    rows, last = table.shape[0], table.shape[1] - 1
    listed, are_words, are_steps = identities.shape[0], head[0] & _WORDS != 0, head[0] & _STEPS != 0
    numbered = listed > 0 or are_words
    start = 0
    for c in range(last + 1):
        at = _HEAD + _EACH * c
        steps = c == last and are_steps
        zeros = 0 if steps else head[at + _ZEROS]
        for b in range(head[at + _BYTES]):
            shift = np.uint64(zeros + 8 * b)
            for i in range(rows):
                table[i, c] |= np.int64(np.uint64(planes[start + i]) << shift)
            start += rows
        least = head[at + _LEAST]
        if steps:
            time = least
            for i in range(rows):
                time += table[i, c] * head[at + _ZEROS]
                table[i, c] = time
        elif least != 0 and not (c == 0 and numbered):
            for i in range(rows):
                table[i, c] += least
    if not numbered:
        return True
    least = head[_HEAD + _LEAST]
    for i in range(rows):
        number = table[i, 0]
        if 0 <= number < listed:
            table[i, 0], table[i, 1] = identities[number, 0], identities[number, 1]
        elif are_words:
            word = np.uint64(number - listed + least)
            table[i, 0] = np.int64(mix_high(word ^ START_HIGH))
            table[i, 1] = np.int64(mix_low(word ^ START_LOW))
        else:
            return False
    return True
