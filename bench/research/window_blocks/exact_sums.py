"""Running sums of products without any rounding, and their weighted average rounded once.

Idea: a product of a double and an int32 is an integer times a power of two. A *row* of eight words
keeps the sum of such products as a 256-bit integer in units of 2**-114: adding and subtracting are
integer operations, so order does not matter, nothing drifts, and a value that entered and left
leaves no trace. Values beyond these bits (below 2**-62, from 2**66 on), infinities and NaN go to a
*wide* row over all bits of a double, assigned to a group only while such a value is in its window.

    row:   sum (4 words) | sum of weights | wide row + 1, or 0 | values in the wide row | unused
    wide:  sum (36 words, units of 2**-1074) | NaN | +infinity | -infinity | 1 if lent

Invariants:
1. After any sequence of additions and removals, the sum is exactly that of the remaining values
   (`test_oracle_sums_hold_exactly_what_is_left`).
2. `average` is the double nearest to the true quotient, ties to even
   (`test_parity_averages_are_the_nearest_double`): if the fast path cannot prove that, the quotient
   is divided bit by bit (`test_averages_halfway_between_two_doubles_go_to_the_even_one`).
3. Infinities and NaN count while they are in the window, and not afterwards
   (`test_infinities_and_nan_are_forgotten_when_they_leave`).

Cost: some 15 ns to add or subtract, some 20 ns for an average; microseconds for an average while a
wide value is in the window. 64 bytes a group, 320 bytes a wide row.

Limits: sums of weights stay below 2**63 in magnitude; a group holds fewer than 2**40 values.

References: Kulisch's long accumulator; Dekker's error-free product.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from icestream.kernels.compile import kernel
from icestream.kernels.double_sums import shifted

Words = npt.NDArray[np.uint64]
Index = int | np.int64

#: words of a row, and the places of what is in it
ROW = 8
WEIGHTS, LENT, WIDE_VALUES = 4, 5, 6
#: words of a wide row, and the places of what follows its sum
WIDE = 40
WIDE_SUM, NAN, PLUS_INFINITY, MINUS_INFINITY, TAKEN = 36, 36, 37, 38, 39
#: offset of a row's sum in a wide one, in words
_INSIDE = 15
#: biased exponents of doubles that fit into a row
_LEAST, _MOST = 961, 1088
_POWERS = 2.0 ** np.arange(-200, 200)


@kernel
def is_plain(bits: np.uint64) -> bool:
    """Return whether a value fits into a row of exact sums; zeros are plain."""
    exponent = np.int64(bits >> np.uint64(52)) & 0x7FF
    return bool((_LEAST <= exponent <= _MOST) or (bits << np.uint64(1)) == np.uint64(0))


@kernel
def wide_rows_free(wide: Words) -> int:
    """Count the wide rows of exact sums that are free."""
    free = 0
    for row in range(wide.size // WIDE):
        if wide[row * WIDE + TAKEN] == np.uint64(0):
            free += 1
    return free


@kernel
def _add_words(
    sums: Words, at: Index, end: Index, x0: np.uint64, x1: np.uint64, x2: np.uint64
) -> None:
    """Add a number of three words at a place, and carry up to `end`."""
    a = sums[at]
    c = a + x0
    sums[at] = c
    carry = np.uint64(c < a)
    a = sums[at + 1]
    b = a + x1
    c = b + carry
    sums[at + 1] = c
    carry = np.uint64((b < a) | (c < b))
    a = sums[at + 2]
    b = a + x2
    c = b + carry
    sums[at + 2] = c
    carry = np.uint64((b < a) | (c < b))
    at += 3
    while carry and at < end:
        c = sums[at] + carry
        sums[at] = c
        carry = np.uint64(c == np.uint64(0))
        at += 1


@kernel
def _take_words(
    sums: Words, at: Index, end: Index, x0: np.uint64, x1: np.uint64, x2: np.uint64
) -> None:
    """Subtract a number of three words at a place, and borrow up to `end`."""
    a = sums[at]
    sums[at] = a - x0
    borrow = np.uint64(a < x0)
    a = sums[at + 1]
    b = a - x1
    sums[at + 1] = b - borrow
    borrow = np.uint64((a < x1) | (b < borrow))
    a = sums[at + 2]
    b = a - x2
    sums[at + 2] = b - borrow
    borrow = np.uint64((a < x2) | (b < borrow))
    at += 3
    while borrow and at < end:
        a = sums[at]
        sums[at] = a - borrow
        borrow = np.uint64(a == np.uint64(0))
        at += 1


@kernel
def _shift_in(
    sums: Words, at: Index, end: Index, bits: np.uint64, weight: np.int64, least: int, taken: bool
) -> None:
    """Add or subtract value * weight; bit 0 of the sum is that of the biased exponent `least`."""
    exponent = np.int64(bits >> np.uint64(52)) & 0x7FF
    mantissa = bits & np.uint64(0xFFFFFFFFFFFFF)
    if exponent:
        mantissa |= np.uint64(1 << 52)
    else:
        exponent = np.int64(1)
    factor = np.uint64(weight if weight >= 0 else -weight)
    low = (mantissa & np.uint64(0xFFFFFFFF)) * factor
    high = (mantissa >> np.uint64(32)) * factor
    p0 = low + (high << np.uint64(32))
    p1 = (high >> np.uint64(32)) + np.uint64(p0 < low)
    shift = exponent - least
    x0, x1, x2 = shifted(p0, p1, shift & 63)
    if ((bits >> np.uint64(63)) != np.uint64(0)) ^ (weight < 0) ^ taken:
        _take_words(sums, at + (shift >> 6), end, x0, x1, x2)
    else:
        _add_words(sums, at + (shift >> 6), end, x0, x1, x2)


@kernel
def add_product(
    sums: Words, at: int, wide: Words, bits: np.uint64, weight: np.int64, taken: bool
) -> None:
    """Add value * weight to an exact sum, or subtract it; `bits` are those of the value.

    A value that is not plain needs a free wide row when it is added: the caller must provide it.
    """
    one = np.int64(-1 if taken else 1)
    sums[at + WEIGHTS] += np.uint64(-weight if taken else weight)
    if is_plain(bits):
        if bits << np.uint64(1):
            _shift_in(sums, at, at + 4, bits, weight, _LEAST, taken)
        return
    row = np.int64(sums[at + LENT]) - 1
    if row < 0:
        row = np.int64(0)
        while wide[row * WIDE + TAKEN]:
            row += 1
        wide[row * WIDE : (row + 1) * WIDE] = np.uint64(0)
        wide[row * WIDE + TAKEN] = np.uint64(1)
        sums[at + LENT] = np.uint64(row + 1)
    place = row * WIDE
    if (np.int64(bits >> np.uint64(52)) & 0x7FF) != 0x7FF:
        _shift_in(wide, place, place + WIDE_SUM, bits, weight, 1, taken)
    elif (bits & np.uint64(0xFFFFFFFFFFFFF)) or weight == 0:
        wide[place + NAN] += np.uint64(one)
    elif ((bits >> np.uint64(63)) != np.uint64(0)) ^ (weight < 0):
        wide[place + MINUS_INFINITY] += np.uint64(one)
    else:
        wide[place + PLUS_INFINITY] += np.uint64(one)
    sums[at + WIDE_VALUES] += np.uint64(one)
    if sums[at + WIDE_VALUES] == np.uint64(0):
        wide[place + TAKEN] = np.uint64(0)
        sums[at + LENT] = np.uint64(0)


@kernel
def average(sums: Words, at: int, wide: Words, scratch: Words) -> float:
    """Return exact sum / weights as the nearest double; NaN where the weights add up to 0."""
    weights = np.int64(sums[at + WEIGHTS])
    if weights == 0:
        return math.nan
    if sums[at + LENT]:
        return _wide_average(sums, at, wide, scratch)
    negative = bool(weights < 0)
    if negative:
        weights = -weights
    w0, w1, w2, w3 = sums[at], sums[at + 1], sums[at + 2], sums[at + 3]
    if np.int64(w3) < 0:
        negative = not negative
        w0 = ~w0 + np.uint64(1)
        w1 = ~w1 + np.uint64(w0 == np.uint64(0))
        w2 = ~w2 + np.uint64((w0 | w1) == np.uint64(0))
        w3 = ~w3 + np.uint64((w0 | w1 | w2) == np.uint64(0))
    unit = 192
    while w3 == np.uint64(0):
        if unit == 0:
            return 0.0
        w3, w2, w1, w0 = w2, w1, w0, np.uint64(0)
        unit -= 64
    # the leading 128 bits, first bit set
    for step in (32, 16, 8, 4, 2, 1):
        if not w3 >> np.uint64(64 - step):
            w3 = (w3 << np.uint64(step)) | (w2 >> np.uint64(64 - step))
            w2 = (w2 << np.uint64(step)) | (w1 >> np.uint64(64 - step))
            w1 = w1 << np.uint64(step)
            unit -= step
    high = np.float64(np.int64(w3 >> np.uint64(11)))
    low = np.float64((w3 << np.uint64(53)) | (w2 >> np.uint64(11))) * 2.0**-64
    divisor = np.float64(weights)
    quotient = high / divisor
    inverse = 1.0 / divisor
    # the error of the quotient, by Dekker's product
    product = quotient * divisor
    split = quotient * 134217729.0
    q_high = split - (split - quotient)
    q_low = quotient - q_high
    split = divisor * 134217729.0
    d_high = split - (split - divisor)
    d_low = divisor - d_high
    error = ((q_high * d_high - product) + q_high * d_low + q_low * d_high) + q_low * d_low
    rest = (((high - product) - error) + low) * inverse
    doubt = quotient * 2.0**-92
    found = quotient + (rest + doubt)
    if found != quotient + (rest - doubt) or weights >= 1 << 53:
        return _wide_average(sums, at, wide, scratch)
    found *= _POWERS[unit + 11 - 114 + 200]
    return float(-found if negative else found)


@kernel
def _wide_average(sums: Words, at: int, wide: Words, scratch: Words) -> float:
    """Return the average of a row and its wide row, divided bit by bit."""
    weights = np.int64(sums[at + WEIGHTS])
    scratch[:] = np.uint64(0)
    scratch[_INSIDE : _INSIDE + 4] = sums[at : at + 4]
    if np.int64(sums[at + 3]) < 0:
        scratch[_INSIDE + 4 : WIDE_SUM] = ~np.uint64(0)
    if sums[at + LENT]:
        place = (np.int64(sums[at + LENT]) - 1) * WIDE
        plus, minus = wide[place + PLUS_INFINITY], wide[place + MINUS_INFINITY]
        if wide[place + NAN] or (plus and minus):
            return math.nan
        if plus or minus:
            return math.inf if (plus != np.uint64(0)) ^ (weights < 0) else -math.inf
        carry = np.uint64(0)
        for w in range(WIDE_SUM):
            a = scratch[w]
            b = a + wide[place + w]
            c = b + carry
            scratch[w] = c
            carry = np.uint64((b < a) | (c < b))
    negative = bool(np.int64(scratch[WIDE_SUM - 1]) < 0)
    if negative:
        carry = np.uint64(1)
        for w in range(WIDE_SUM):
            scratch[w] = ~scratch[w] + carry
            carry = carry & np.uint64(scratch[w] == np.uint64(0))
    if weights < 0:
        negative = not negative
        weights = -weights
    found = _divide(scratch, np.uint64(weights))
    return -found if negative else found


@kernel
def _divide(number: Words, divisor: np.uint64) -> float:
    """Divide a number of `WIDE_SUM` words, in units of 2**-1074, and round once."""
    mantissa = np.uint64(0)
    rest = np.uint64(0)
    lowest = 0
    bit = 64 * WIDE_SUM - 1
    while bit >= lowest:
        rest <<= np.uint64(1)
        rest |= (number[bit >> 6] >> np.uint64(bit & 63)) & np.uint64(1)
        if rest >= divisor:
            rest -= divisor
            if mantissa == np.uint64(0):
                lowest = max(bit - 52, 0)
            mantissa = (mantissa << np.uint64(1)) | np.uint64(1)
        else:
            mantissa <<= np.uint64(1)
        bit -= 1
    # the bit below the last, and whether anything is below that one
    half = np.uint64(0)
    below = np.uint64(0)
    rest <<= np.uint64(1)
    if bit >= 0:
        rest |= (number[bit >> 6] >> np.uint64(bit & 63)) & np.uint64(1)
        below = number[bit >> 6] & ((np.uint64(1) << np.uint64(bit & 63)) - np.uint64(1))
        for w in range(bit >> 6):
            below |= number[w]
    if rest >= divisor:
        half = np.uint64(1)
        rest -= divisor
    if half and (rest or below or mantissa & np.uint64(1)):
        mantissa += np.uint64(1)
    value: float = np.ldexp(np.float64(np.int64(mantissa)), lowest - 1074)
    return value
