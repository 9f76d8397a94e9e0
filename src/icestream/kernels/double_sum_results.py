"""The doubles next to exact sums, means, quotients and spreads.

Idea: the digits of a number (`double_sums`) become 32-bit halves, with which long integers are
multiplied, subtracted and divided as on paper; the first 53 bits of the result are rounded once.

Invariants:
1. `nearest_sums`, `nearest_means`, `nearest_ratios` and `nearest_spreads` return the double next to
   the exact result, ties to even (`test_oracle_results_are_the_nearest_doubles`).

Cost: some 50 ns to round a sum, 100 to 200 for a quotient.

References: division: Knuth, volume 2, algorithm D.
"""

from __future__ import annotations

import math

import numpy as np

from icestream.core.arrays import Floats, Ints, Table, Words
from icestream.kernels.compile import kernel, lean_kernel
from icestream.kernels.double_sums import (
    COUNT,
    DIGITS,
    FIRST,
    ORIGIN,
    PLACE,
    bits_of,
)

_POWERS = 2.0 ** np.arange(-1074, 1024)
#: halves of digits that products of two sums may need
_HALVES = 4 * DIGITS + 16


@lean_kernel
def _magnitude(table: Table, i: int, of: Ints, halves: Words) -> tuple[int, bool]:
    """Write the absolute value of a number as 32-bit halves; return their number and the sign."""
    top = of[COUNT] - 1
    while top >= 0 and table[i, of[PLACE] + top] == 0:
        top -= 1
    if top < 0:
        return 0, False
    negative = table[i, of[PLACE] + top] < 0
    borrow = np.int64(0)
    count = 0
    for w in range(top + 1):
        d = table[i, of[PLACE] + w]
        if negative:
            word = ~np.uint64(d) + np.uint64(1) - np.uint64(borrow)
            borrow = np.int64(1 if d > -borrow else 0)
        else:
            word = np.uint64(d) - np.uint64(borrow)
            borrow = np.int64(1 if d < borrow else 0)
        halves[2 * w] = word & np.uint64(0xFFFFFFFF)
        halves[2 * w + 1] = word >> np.uint64(32)
        count = 2 * w + 2
    return _trimmed(halves, count), bool(negative)


@lean_kernel
def _trimmed(halves: Words, count: int) -> int:
    while count > 0 and halves[count - 1] == np.uint64(0):
        count -= 1
    return count


@lean_kernel
def _bit_length(halves: Words, count: int) -> int:
    return 32 * (count - 1) + bits_of(halves[count - 1])


@lean_kernel
def _shifted(halves: Words, count: int, shift: int) -> tuple[int, bool]:
    """Multiply by 2**shift in place, or divide; return the halves, and if bits were cut off."""
    rest = False
    if shift < 0:
        whole = (-shift) >> 5
        right = np.uint64((-shift) & 31)
        left = np.uint64(32) - right
        for h in range(min(whole, count)):
            rest = rest or halves[h] != np.uint64(0)
        if whole >= count:
            return 0, rest
        if halves[whole] & ((np.uint64(1) << right) - np.uint64(1)):
            rest = True
        for h in range(whole, count):
            up = halves[h + 1] if h + 1 < count else np.uint64(0)
            halves[h - whole] = (halves[h] >> right) | ((up << left) & np.uint64(0xFFFFFFFF))
        return _trimmed(halves, count - whole), rest
    whole = shift >> 5
    left = np.uint64(shift & 31)
    right = np.uint64(32) - left
    for h in range(count, -1, -1):
        here = halves[h] if h < count else np.uint64(0)
        below = halves[h - 1] if h > 0 else np.uint64(0)
        halves[h + whole] = ((here << left) & np.uint64(0xFFFFFFFF)) | (below >> right)
    for h in range(whole):
        halves[h] = np.uint64(0)
    return _trimmed(halves, count + whole + 1), rest


@lean_kernel
def _rounded(halves: Words, count: int, exponent: int, rest: bool) -> float:
    """Return the double next to halves * 2**exponent, a little more if there is a rest."""
    if count == 0:
        return 0.0
    # 63 bits: 53 of the answer, then at least ten that decide how it is rounded
    bits = _bit_length(halves, count)
    count, more = _shifted(halves, count, 63 - bits)
    exponent += bits - 63
    rest = rest or more
    leading = halves[1] << np.uint64(32) | halves[0]
    cut = 10
    if exponent + 63 < -1021:
        cut = min(64, 10 + (-1021 - (exponent + 63)))
    if cut == 64:
        return 0.0
    mantissa = leading >> np.uint64(cut)
    below = leading & ((np.uint64(1) << np.uint64(cut)) - np.uint64(1))
    half = np.uint64(1) << np.uint64(cut - 1)
    if below > half or (below == half and (rest or mantissa & np.uint64(1))):
        mantissa += np.uint64(1)
    if exponent + cut > 971:
        return math.inf
    return float(np.float64(np.int64(mantissa)) * _POWERS[exponent + cut + 1074])


@lean_kernel
def _close_quotient(number: Words, count: int, divisor: np.float64, exponent: int) -> float:
    """Return the double next to number / divisor * 2**exponent, or NaN if that is in doubt.

    The divisor is a whole number below 2**53. The quotient of the leading bits is corrected by its
    error; what is left in doubt is below 2**-90 of it.
    """
    bits = _bit_length(number, count)
    if not -1000 < exponent + bits < 1000:
        return math.nan
    left = np.uint64(32 * count - bits)
    a = number[count - 1] << np.uint64(32)
    b = np.uint64(0)
    c = np.uint64(0)
    if count > 1:
        a |= number[count - 2]
    if count > 2:
        b = number[count - 3] << np.uint64(32)
    if count > 3:
        b |= number[count - 4]
    if count > 4:
        c = number[count - 5] << np.uint64(32)
    if left:
        right = np.uint64(64) - left
        a = (a << left) | (b >> right)
        b = (b << left) | (c >> right)
    high = np.float64(np.int64(a >> np.uint64(11)))
    low = np.float64((a << np.uint64(53)) | (b >> np.uint64(11))) * 2.0**-64
    quotient = high / divisor
    product = quotient * divisor
    split = quotient * 134217729.0
    q_high = split - (split - quotient)
    q_low = quotient - q_high
    split = divisor * 134217729.0
    d_high = split - (split - divisor)
    d_low = divisor - d_high
    error = ((q_high * d_high - product) + q_high * d_low + q_low * d_high) + q_low * d_low
    rest = (((high - product) - error) + low) / divisor
    doubt = quotient * 2.0**-90
    value = quotient + (rest + doubt)
    if value != quotient + (rest - doubt):
        return math.nan
    return float(value * _POWERS[exponent + bits - 53 + 1074])


@lean_kernel
def _divide(
    number: Words, count: int, divisor: Words, size: int, exponent: int, quotient: Words
) -> float:
    """Return the double next to number / divisor * 2**exponent; overwrites both numbers."""
    if count == 0:
        return 0.0
    half = np.uint64(32)
    mask = np.uint64(0xFFFFFFFF)
    if size == 1 or (size == 2 and divisor[1] < np.uint64(1 << 21)):
        whole = divisor[0] if size == 1 else (divisor[1] << half) | divisor[0]
        close = _close_quotient(number, count, np.float64(whole), exponent)
        if not math.isnan(close):
            return close
    # the divisor's first bit set, and a quotient of 66 bits or so
    lift = 32 * size - _bit_length(divisor, size)
    size, _ = _shifted(divisor, size, lift)
    shift = 66 + 32 * size - _bit_length(number, count)
    count, rest = _shifted(number, count, shift)
    exponent += lift - shift
    number[count] = np.uint64(0)
    if size == 1:
        left = np.uint64(0)
        for h in range(count - 1, -1, -1):
            left = (left << half) | number[h]
            quotient[h] = left // divisor[0]
            left = left % divisor[0]
        rest = rest or left != np.uint64(0)
        return _rounded(quotient, _trimmed(quotient, count), exponent, rest)
    for q in range(count - size, -1, -1):
        pair = (number[q + size] << half) | number[q + size - 1]
        guess = min(pair // divisor[size - 1], mask)
        left = pair - guess * divisor[size - 1]
        while left <= mask and guess * divisor[size - 2] > ((left << half) | number[q + size - 2]):
            guess -= np.uint64(1)
            left += divisor[size - 1]
        borrow = np.uint64(0)
        for h in range(size):
            taken = guess * divisor[h] + borrow
            here = number[q + h]
            number[q + h] = (here - taken) & mask
            borrow = (taken >> half) + np.uint64((taken & mask) > here)
        here = number[q + size]
        number[q + size] = (here - borrow) & mask
        if borrow > here:
            guess -= np.uint64(1)
            carry = np.uint64(0)
            for h in range(size):
                total = number[q + h] + divisor[h] + carry
                number[q + h] = total & mask
                carry = total >> half
            number[q + size] = (number[q + size] + carry) & mask
        quotient[q] = guess
    for h in range(size):
        rest = rest or number[h] != np.uint64(0)
    return _rounded(quotient, _trimmed(quotient, count - size + 1), exponent, rest)


@kernel
def nearest_sums(table: Table, of: Ints, out: Floats) -> None:
    """Return the results of fixed-point sums: the double next to each."""
    halves = np.empty(_HALVES, dtype=np.uint64)
    exponent = 64 * of[FIRST] - ORIGIN
    for i in range(table.shape[0]):
        count, negative = _magnitude(table, i, of, halves)
        value = _rounded(halves, count, exponent, False)
        out[i] = -value if negative else value


@lean_kernel
def _put_count(number: Words, value: np.int64) -> int:
    """Write a count as halves; return how many there are."""
    number[0] = np.uint64(value) & np.uint64(0xFFFFFFFF)
    number[1] = np.uint64(value) >> np.uint64(32)
    return _trimmed(number, 2)


@kernel
def nearest_means(table: Table, of: Ints, counts: Ints, out: Floats) -> None:
    """Return the results of means: the double next to each sum divided by a positive count."""
    halves = np.empty(_HALVES, dtype=np.uint64)
    quotient = np.empty(_HALVES, dtype=np.uint64)
    divisor = np.empty(4, dtype=np.uint64)
    exponent = 64 * of[FIRST] - ORIGIN
    for i in range(table.shape[0]):
        count, negative = _magnitude(table, i, of, halves)
        size = _put_count(divisor, counts[i])
        value = _divide(halves, count, divisor, size, exponent, quotient)
        out[i] = -value if negative else value


@kernel
def nearest_ratios(table: Table, of: Ints, by: Ints, out: Floats) -> None:
    """Return the results of quotients: the double next to each; NaN where the divisor is zero."""
    halves = np.empty(_HALVES, dtype=np.uint64)
    quotient = np.empty(_HALVES, dtype=np.uint64)
    divisor = np.empty(_HALVES, dtype=np.uint64)
    exponent = 64 * (of[FIRST] - by[FIRST])
    for i in range(table.shape[0]):
        count, negative = _magnitude(table, i, of, halves)
        size, turned = _magnitude(table, i, by, divisor)
        out[i] = math.nan
        if size:
            value = _divide(halves, count, divisor, size, exponent, quotient)
            out[i] = -value if negative != turned else value


@lean_kernel
def _multiply(a: Words, a_count: int, b: Words, b_count: int, out: Words, at: int) -> int:
    """Write a product as halves from `at` on, zeros before; return how many there are."""
    mask = np.uint64(0xFFFFFFFF)
    for h in range(at + a_count + b_count):
        out[h] = np.uint64(0)
    for x in range(a_count):
        carry = np.uint64(0)
        for y in range(b_count):
            total = a[x] * b[y] + out[at + x + y] + carry
            out[at + x + y] = total & mask
            carry = total >> np.uint64(32)
        out[at + x + b_count] = carry
    return _trimmed(out, at + a_count + b_count)


@lean_kernel
def _subtract(a: Words, a_count: int, b: Words, b_count: int) -> tuple[int, bool]:
    """Replace `a` by the difference of two numbers; return its halves and if it is negative."""
    mask = np.uint64(0xFFFFFFFF)
    less = a_count < b_count
    if a_count == b_count:
        h = a_count - 1
        while h >= 0 and a[h] == b[h]:
            h -= 1
        less = h >= 0 and a[h] < b[h]
    count = max(a_count, b_count)
    borrow = np.uint64(0)
    for h in range(count):
        x = a[h] if h < a_count else np.uint64(0)
        y = b[h] if h < b_count else np.uint64(0)
        if less:
            x, y = y, x
        a[h] = (x - y - borrow) & mask
        borrow = np.uint64(x < y + borrow)
    return _trimmed(a, count), less


@lean_kernel
def _added(a: Words, a_count: int, b: Words, b_count: int) -> int:
    """Add `b` to `a`; return its halves."""
    count = max(a_count, b_count)
    carry = np.uint64(0)
    for h in range(count):
        x = a[h] if h < a_count else np.uint64(0)
        y = b[h] if h < b_count else np.uint64(0)
        a[h] = (x + y + carry) & np.uint64(0xFFFFFFFF)
        carry = (x + y + carry) >> np.uint64(32)
    a[count] = carry
    return _trimmed(a, count + 1)


@kernel
def nearest_spreads(
    table: Table, of: Ints, x: Ints, y: Ints, counts: Ints, divisors: Ints, out: Floats
) -> None:
    """Return (sum of products - sum of x * sum of y / count) / divisor, rounded once.

    Counts and divisors are positive.
    """
    first = np.empty(_HALVES, dtype=np.uint64)
    second = np.empty(_HALVES, dtype=np.uint64)
    third = np.empty(_HALVES, dtype=np.uint64)
    both = np.empty(2 * _HALVES, dtype=np.uint64)
    many = np.empty(2 * _HALVES, dtype=np.uint64)
    quotient = np.empty(2 * _HALVES, dtype=np.uint64)
    above = 2 * of[FIRST] - 2 * (x[FIRST] + y[FIRST]) + ORIGIN // 32
    exponent = 64 * of[FIRST] - ORIGIN - 32 * max(above, 0)
    for i in range(table.shape[0]):
        x_count, x_negative = _magnitude(table, i, x, first)
        y_count, y_negative = _magnitude(table, i, y, second)
        both_count = _multiply(first, x_count, second, y_count, both, max(-above, 0))
        p_count, p_negative = _magnitude(table, i, of, first)
        size = _put_count(third, counts[i])
        many_count = _multiply(first, p_count, third, size, many, max(above, 0))
        negative = p_negative
        if p_negative == (x_negative != y_negative):
            many_count, less = _subtract(many, many_count, both, both_count)
            negative = p_negative != less
        else:
            many_count = _added(many, many_count, both, both_count)
        other = _put_count(second, divisors[i])
        size = _multiply(third, size, second, other, first, 0)
        value = _divide(many, many_count, first, size, exponent, quotient)
        out[i] = -value if negative else value
