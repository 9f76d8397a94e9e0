"""Lines of delimited values: where the values are that every parser reads alike, and what they are.

Idea: what ends a value, and what parsers disagree on, are a few bytes. A pass without branches
marks them, a part of the text at a time; a second one goes from mark to mark.

Invariants:
1. Text is refused exactly if a quote does not open or close a whole, non-empty value of one line
   that contains no other quote, a value starts or ends with a blank or starts as a hexadecimal
   number, a carriage return is not part of a line end, a line has another number of values, or
   there is an escape, a zero byte or a byte order mark
   (`test_parity_values_are_those_that_the_slow_version_finds`).
2. A column of numbers or times is converted if all of its values have the usual form
   (`test_parity_numbers_are_those_of_python`, `test_parity_times_are_those_of_pyarrow`).

Cost: about half a nanosecond for a byte, five for a number, ten for a time.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from icestream.core.arrays import Ints
from icestream.kernels.addresses import copy_bytes
from icestream.kernels.compile import kernel, lean_kernel

Bytes = npt.NDArray[np.uint8]
Table = npt.NDArray[np.int64]

TAB, NEWLINE, RETURN, BLANK, QUOTE, ZERO, SMALL_X, LARGE_X = (ord(each) for each in '\t\n\r "0xX')
_ESCAPE, _PLUS, _MINUS, _POINT, _COLON = (ord(each) for each in "\\+-.:")
_BETWEEN, _ZULU = ord("T"), ord("Z")
#: every smaller byte is marked: line ends, tabs, zero bytes
_PRINTED = np.uint8(14)
#: the first byte that is no letter of ASCII
_NOT_ASCII = np.uint8(128)
#: bytes of a byte order mark
_MARK, _MARK_GOES_ON, _MARK_ENDS = 0xEF, 0xBB, 0xBF
#: bytes that are marked at a time, a multiple of eight
_PART = 4096
_EACH, _ONE, _NONE, _TOP = np.uint64(0x0101010101010101), np.uint64(1), np.uint64(0), np.uint64(56)
#: digits of a number that always fits into 64 bits, and of microseconds
_DIGITS, _MICROS = 18, 6
#: letters of a time up to its seconds
_TO_SECONDS = len("2020-01-01 00:00:00")
_LENGTHS = np.array([31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], dtype=np.int64)
#: days from the first of March of year 0 to 1970
_TO_1970 = 719_468


@kernel
def find_values(  # noqa: PLR0911, PLR0912 - one case for each kind of letter
    text: Bytes, separator: int, null: Bytes, wanted: Ints, starts: Table, sizes: Table
) -> tuple[int, bool]:
    """Find the values of some columns; return the lines, or -1, and whether all text is ASCII.

    `wanted` has, for every column, its row in `starts` and `sizes`, or -1. A missing value and the
    text `null` have no size.
    """
    columns, lines, column, begin, opened, closed = wanted.size, 0, 0, 0, -1, False
    marks = np.zeros(_PART, dtype=np.uint8)
    words = marks.view(np.uint64)
    bits = np.uint8(0)
    for first in range(0, text.size + 1, _PART):
        last = min(first + _PART, text.size)
        bits = np.uint8(bits | _mark(text, first, last, np.uint8(separator), marks))
        if last == text.size and last < first + _PART:
            marks[last - first] = 1
        for word in range((last - first + 8) >> 3 if last < first + _PART else _PART >> 3):
            left = words[word]
            while left != _NONE:
                lowest = left & (~left + _ONE)
                left ^= lowest
                at = first + 8 * word + int((((lowest - _ONE) & _EACH) * _EACH) >> _TOP)
                letter = int(text[at]) if at < text.size else NEWLINE
                if letter == separator and opened >= 0:
                    continue
                before = int(text[at - 1]) if at > 0 else NEWLINE
                if letter in (separator, NEWLINE):
                    if opened >= 0:
                        return -1, False
                    end = at - 1 if letter == NEWLINE and at > begin and before == RETURN else at
                    if letter == NEWLINE and column == 0 and end == begin:
                        begin = at + 1
                        continue
                    if column == columns or (letter == NEWLINE and column != columns - 1):
                        return -1, False
                    slot = wanted[column]
                    if slot >= 0:
                        start, size = begin, end - begin
                        if closed:
                            start, size = begin + 1, size - 2
                        if size == null.size and _equal(text, start, null):
                            size = 0
                        starts[slot, lines] = start
                        sizes[slot, lines] = size
                    closed = False
                    begin = at + 1
                    column += 1
                    if letter == NEWLINE:
                        lines += 1
                        column = 0
                    continue
                after = int(text[at + 1]) if at + 1 < text.size else NEWLINE
                if letter == QUOTE:
                    if opened < 0:
                        if at != begin:
                            return -1, False
                        opened = at
                    else:
                        if after not in (NEWLINE, RETURN, separator) or at == opened + 1:
                            return -1, False
                        opened, closed = -1, True
                elif letter in (BLANK, TAB):
                    outside = opened < 0 and (at == begin or after in (NEWLINE, RETURN, separator))
                    if outside or QUOTE in (before, after):
                        return -1, False
                elif letter == RETURN:
                    if after != NEWLINE or at + 1 == text.size:
                        return -1, False
                elif letter in (0, _ESCAPE):
                    return -1, False
                elif letter == _MARK:
                    if after == _MARK_GOES_ON and at + 2 < text.size and text[at + 2] == _MARK_ENDS:
                        return -1, False
                elif letter in (SMALL_X, LARGE_X) and before == ZERO:
                    place = at - 1 - (begin + 1 if opened >= 0 else begin)
                    if place == 0 or (place == 1 and text[at - 2] in (_PLUS, _MINUS)):
                        return -1, False
    return lines, bool(bits < _NOT_ASCII)


@kernel
def _mark(text: Bytes, first: int, last: int, separator: np.uint8, marks: Bytes) -> np.uint8:
    """Mark the letters of a part that may be special; return the bits of all its letters."""
    part, bits = text[first:last], np.uint8(0)
    for place in range(part.size):
        letter = part[place]
        marks[place] = (
            (letter == separator)
            | (letter == QUOTE)
            | (letter == BLANK)
            | (letter < _PRINTED)
            | (letter == _ESCAPE)
            | (letter == _MARK)
        )
    for place in range(part.size - 1):
        letter = part[place + 1]
        marks[place + 1] |= ((letter == SMALL_X) | (letter == LARGE_X)) & (part[place] == ZERO)
    for place in range(part.size):
        bits = np.uint8(bits | part[place])
    # the letter before the first one is in the part before
    marks[0] = 1
    marks[part.size : part.size + 8] = 0
    return bits


@lean_kernel
def _equal(text: Bytes, start: int, other: Bytes) -> bool:
    for place in range(other.size):  # noqa: SIM110 - kernels know no generators
        if text[start + place] != other[place]:
            return False
    return True


@kernel
def collect_text(
    text: Bytes, starts: Ints, sizes: Ints, offsets: npt.NDArray[np.int32], data: Bytes
) -> None:
    """Copy values one after the other; `offsets` gets where each starts, and the end."""
    target = 0
    for i in range(starts.size):
        offsets[i] = target
        copy_bytes(data, target, text, starts[i], sizes[i])
        target += sizes[i]
    offsets[starts.size] = target


@kernel
def read_integers(text: Bytes, starts: Ints, sizes: Ints, values: Ints) -> bool:
    """Convert integers; return whether all have the usual form. Missing ones are zeros."""
    for i in range(starts.size):
        at, end = starts[i], starts[i] + sizes[i]
        negative = at < end and text[at] == _MINUS
        if negative:
            at += 1
            if at == end:
                return False
        if end - at > _DIGITS:
            return False
        value = 0
        while at < end:
            digit = int(text[at]) - ZERO
            if digit < 0 or digit > 9:
                return False
            value = 10 * value + digit
            at += 1
        values[i] = -value if negative else value
    return True


@kernel
def read_times(text: Bytes, starts: Ints, sizes: Ints, values: Ints) -> int:
    """Convert times to microseconds; return how many end with Z, or -1 if one looks otherwise."""
    zoned = 0
    for i in range(starts.size):
        at, size = starts[i], sizes[i]
        if size == 0:
            values[i] = 0
            continue
        if text[at + size - 1] == _ZULU:
            zoned += 1
            size -= 1
        micros = _time(text, at, size)
        if micros == _NO_TIME:
            return -1
        values[i] = micros
    return zoned


#: what is no time
_NO_TIME = -(1 << 63)


@lean_kernel
def _time(text: Bytes, at: int, size: int) -> int:
    """Return the microseconds of a time since 1970: date, blank or T, clock, decimals or none."""
    if size < _TO_SECONDS or size == _TO_SECONDS + 1 or size > _TO_SECONDS + 1 + _MICROS:
        return _NO_TIME
    year = 100 * _two_digits(text, at) + _two_digits(text, at + 2)
    month, day = _two_digits(text, at + 5), _two_digits(text, at + 8)
    hour, minute = _two_digits(text, at + 11), _two_digits(text, at + 14)
    second = _two_digits(text, at + 17)
    shaped = (
        (text[at + 4] == _MINUS)
        & (text[at + 7] == _MINUS)
        & ((text[at + 10] == BLANK) | (text[at + 10] == _BETWEEN))
        & (text[at + 13] == _COLON)
        & (text[at + 16] == _COLON)
        & (size == _TO_SECONDS or text[at + _TO_SECONDS] == _POINT)
    )
    if not shaped or year < 1 or month < 1 or month > 12 or day < 1:
        return _NO_TIME
    if min(hour, minute, second) < 0 or hour > 23 or minute > 59 or second > 59:
        return _NO_TIME
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if day > _LENGTHS[month - 1] + (1 if leap and month == 2 else 0):
        return _NO_TIME
    micros = 0
    for place in range(_MICROS):
        digit = 0
        if _TO_SECONDS + 1 + place < size:
            digit = int(text[at + _TO_SECONDS + 1 + place]) - ZERO
            if digit < 0 or digit > 9:
                return _NO_TIME
        micros = 10 * micros + digit
    # years begin in March, so that the day that may be missing is the last
    years, months = (year, month - 3) if month > 2 else (year - 1, month + 9)
    days = 365 * years + years // 4 - years // 100 + years // 400 - _TO_1970
    days += (153 * months + 2) // 5 + day - 1
    return ((days * 24 + hour) * 60 + minute) * 60_000_000 + second * 1_000_000 + micros


@lean_kernel
def _two_digits(text: Bytes, at: int) -> int:
    """Return a number of two digits; one that is much too small if they are none."""
    tens, ones = int(text[at]) - ZERO, int(text[at + 1]) - ZERO
    return 10 * tens + ones if 0 <= tens <= 9 and 0 <= ones <= 9 else -10_000
