"""Sums of doubles and of products of doubles without any rounding, in few words.

Idea: a double is an integer times a power of two, so a sum of doubles is a long integer. It is kept
as *digits* to the base 2**64; digit n counts units of 2**(64 * n - ORIGIN). Digits have signs: each
is at least -2**63 and below 2**63. So the digits above and below a number are zero for negative
numbers too, every number has exactly one form, and a table stores only the digits from `first` on
that its numbers need. Widening a table adds columns of zeros. Infinities and NaN are counted in
three words of their own. `double_sum_bytes` writes numbers to the log, `double_sum_results` turns
them into doubles again.

Invariants:
1. After any additions and subtractions the digits are those of the exact result
   (`test_oracle_digits_hold_the_exact_sum`).

Cost: O(digits) to add; two digits where magnitudes differ by less than 2**50 or so.

Limits: the caller provides enough digits for the greatest sum; a carry out of them is lost.

References: Kulisch's long accumulator; Neal, Fast exact summation using small and large
superaccumulators, 2015; signed digits: Avizienis, 1961.
"""

from __future__ import annotations

import numpy as np

from icestream.core.arrays import Ints, Mask, Table
from icestream.kernels.compile import kernel, lean_kernel

#: bits of digits below the units: the least product of two doubles is above 2**-ORIGIN
ORIGIN = 34 * 64
#: one more than the position of the last digit: 2**40 of the greatest product are below it
DIGITS = 68
#: words with the numbers of NaN, of infinity and of minus infinity
SPECIALS = 3
#: words of a description of a sum in a table: place, first digit, digits, place of the specials
PLACE, FIRST, COUNT, SPECIALS_AT = 0, 1, 2, 3


@kernel
def shifted(
    low: np.uint64, high: np.uint64, bits: int | np.int64
) -> tuple[np.uint64, np.uint64, np.uint64]:
    """Return the three words of the fixed-point number (high, low) * 2**bits, for bits below 64."""
    left = np.uint64(bits)
    x0, x1, x2 = low << left, high << left, np.uint64(0)
    if left:
        right = np.uint64(64) - left
        x1 |= low >> right
        x2 = high >> right
    return x0, x1, x2


@kernel
def _with_carry(c: np.int64, above: np.int64, carry: np.int64) -> tuple[np.int64, np.int64]:
    """Return a digit and its carry after another carry is added."""
    d = np.int64(np.uint64(c) + np.uint64(carry))
    if ((c ^ d) & (carry ^ d)) < 0:
        above += np.int64(1 if carry > 0 else -1)
    return d, above


@kernel
def digit_sum(a: np.int64, b: np.int64, carry: np.int64) -> tuple[np.int64, np.int64]:
    """Return a digit of a fixed-point sum and the carry: a + b + carry, which may be negative."""
    c = np.int64(np.uint64(a) + np.uint64(b))
    above = np.int64(0)
    if ((a ^ c) & (b ^ c)) < 0:
        above = np.int64(1 if a >= 0 else -1)
    return _with_carry(c, above, carry)


@kernel
def digit_difference(a: np.int64, b: np.int64, carry: np.int64) -> tuple[np.int64, np.int64]:
    """Return a digit of a fixed-point difference and the carry: a - b + carry."""
    c = np.int64(np.uint64(a) - np.uint64(b))
    above = np.int64(0)
    if ((a ^ b) & (a ^ c)) < 0:
        above = np.int64(1 if a >= 0 else -1)
    return _with_carry(c, above, carry)


@lean_kernel
def add_digits(
    target: Table, i: int, at: int, source: Table, j: int, place: int, count: int
) -> None:
    """Add the fixed-point number in row `j` of `source` to the one in row `i` of `target`."""
    carry = np.int64(0)
    for w in range(count):
        target[i, at + w], carry = digit_sum(target[i, at + w], source[j, place + w], carry)


@lean_kernel
def take_digits(
    target: Table, i: int, at: int, source: Table, j: int, place: int, count: int
) -> None:
    """Subtract the fixed-point number in row `j` of `source` from that in row `i` of `target`."""
    carry = np.int64(0)
    for w in range(count):
        target[i, at + w], carry = digit_difference(target[i, at + w], source[j, place + w], carry)


@lean_kernel
def negate_digits(rows: Table, i: int, at: int, count: int) -> None:
    """Change the sign of a fixed-point number."""
    carry = np.int64(0)
    for w in range(count):
        rows[i, at + w], carry = digit_difference(np.int64(0), rows[i, at + w], carry)


@kernel
def _is_special(bits: np.int64) -> bool:
    return bool((bits >> 52) & 0x7FF == 0x7FF)


@kernel
def _exponent(bits: np.int64) -> np.int64:
    """Return the power of two by which the mantissa of a finite double is multiplied."""
    exponent = np.int64((bits >> 52) & 0x7FF)
    if exponent == 0:
        exponent = np.int64(1)
    return np.int64(exponent - 1075)


@kernel
def _mantissa(bits: np.int64) -> np.uint64:
    mantissa = np.uint64(bits & 0xFFFFFFFFFFFFF)
    if (bits >> 52) & 0x7FF:
        mantissa |= np.uint64(1 << 52)
    return mantissa


@kernel
def bits_of(word: np.uint64) -> int:
    """Return the length of a word in bits."""
    length = 0
    for step in (32, 16, 8, 4, 2, 1):
        if word >> np.uint64(step):
            word >>= np.uint64(step)
            length += step
    return length + int(word)


@kernel
def zeros_below(word: np.uint64) -> int:
    """Return how many bits below the lowest one that is set are zero."""
    return bits_of(word & (~word + np.uint64(1))) - 1


@kernel
def sum_extent(x: Ints, valid: Mask) -> tuple[int, int, bool]:
    """Return the bits that fixed-point sums of values need, and whether some are infinite or NaN.

    `x` are the bits of doubles. Without any finite value other than zero, the first bit is the
    greater one.
    """
    low = 64 * DIGITS
    high = 0
    specials = False
    for i in range(x.size):
        if valid.size == 0 or valid[i]:
            if _is_special(x[i]):
                specials = True
            elif x[i] << 1:
                exponent = int(_exponent(x[i])) + ORIGIN
                if exponent < low:
                    low = min(low, exponent + zeros_below(_mantissa(x[i])))
                high = max(high, exponent + 53)
    return low, high, specials


@kernel
def product_extent(x: Ints, y: Ints, valid: Mask) -> tuple[int, int, bool]:
    """Return the same for products of two columns."""
    low = 64 * DIGITS
    high = 0
    specials = False
    for i in range(x.size):
        if valid.size == 0 or valid[i]:
            if _is_special(x[i]) or _is_special(y[i]):
                specials = True
            elif x[i] << 1 and y[i] << 1:
                exponent = int(_exponent(x[i])) + int(_exponent(y[i])) + ORIGIN
                if exponent < low:
                    zeros = zeros_below(_mantissa(x[i])) + zeros_below(_mantissa(y[i]))
                    low = min(low, exponent + zeros)
                high = max(high, exponent + 106)
    return low, high, specials


@lean_kernel
def _add_number(
    table: Table,
    i: int,
    at: int,
    count: int,
    position: int,
    low: np.uint64,
    high: np.uint64,
    negative: bool,
) -> None:
    """Add (high, low) * 2**position, counted from the first digit, to a number, or subtract it."""
    if position < 0:
        # bits below the first digit are zero
        if position <= -64:
            low, high = high, np.uint64(0)
            position += 64
        if position < 0:
            low = (low >> np.uint64(-position)) | (high << np.uint64(64 + position))
            high >>= np.uint64(-position)
            position = 0
    x0, x1, x2 = shifted(low, high, position & 63)
    carry = np.int64(0)
    w = position >> 6
    while w < count and (x0 | x1 | x2 != np.uint64(0) or carry != 0):
        # as a digit, with what is left over for the next one
        digit, more = np.int64(x0), np.int64(x0 >> np.uint64(63))
        if negative:
            table[i, at + w], carry = digit_difference(table[i, at + w], digit, carry)
            carry -= more
        else:
            table[i, at + w], carry = digit_sum(table[i, at + w], digit, carry)
            carry += more
        x0, x1, x2 = x1, x2, np.uint64(0)
        w += 1


@kernel
def add_doubles(table: Table, of: Ints, slots: Ints, x: Ints, valid: Mask) -> None:
    """Add doubles, given as bits, to the fixed-point sum `of` describes, each in its own row."""
    for i in range(x.size):
        if valid.size and not valid[i]:
            continue
        if _is_special(x[i]):
            which = 0 if x[i] & 0xFFFFFFFFFFFFF else 1 if x[i] >= 0 else 2
            table[slots[i], of[SPECIALS_AT] + which] += 1
        elif x[i] << 1:
            position = _exponent(x[i]) + ORIGIN - 64 * of[FIRST]
            none = np.uint64(0)
            _add_number(
                table, slots[i], of[PLACE], of[COUNT], position, _mantissa(x[i]), none, x[i] < 0
            )


@kernel
def word_product(a: np.uint64, b: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Return low and high word of the product of two unsigned words."""
    mask = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    a0 = a & mask
    a1 = a >> half
    b0 = b & mask
    b1 = b >> half
    low = a0 * b0
    middle = a1 * b0 + (low >> half)
    cross = a0 * b1 + (middle & mask)
    high = a1 * b1 + (middle >> half) + (cross >> half)
    return (cross << half) | (low & mask), high


@kernel
def _special_product(x: np.int64, y: np.int64) -> int:
    """Return which special value the product of two doubles is, or -1 if it is finite."""
    if not (_is_special(x) or _is_special(y)):
        return -1
    for bits in (x, y):
        if bits << 1 == 0 or (_is_special(bits) and bits & 0xFFFFFFFFFFFFF):
            return 0
    return 2 if (x ^ y) < 0 else 1


@kernel
def add_products(table: Table, of: Ints, slots: Ints, x: Ints, y: Ints, valid: Mask) -> None:
    """Add products of two columns to fixed-point sums, as `add_doubles` adds values."""
    for i in range(x.size):
        if valid.size and not valid[i]:
            continue
        negative = (x[i] ^ y[i]) < 0
        which = _special_product(x[i], y[i])
        if which >= 0:
            table[slots[i], of[SPECIALS_AT] + which] += 1
        elif x[i] << 1 and y[i] << 1:
            low, high = word_product(_mantissa(x[i]), _mantissa(y[i]))
            position = _exponent(x[i]) + _exponent(y[i]) + ORIGIN - 64 * of[FIRST]
            _add_number(table, slots[i], of[PLACE], of[COUNT], position, low, high, negative)


# -- single values -----------------------------------------------------------------------------

#: operations that add a value to a number: what is added, then how many digits the number has, the
#: first of them, and whether its specials follow
RAW = 1 << 32
RAW_DOUBLE, RAW_SQUARE, RAW_PRODUCT = 0, 1, 2
_FIRST_BIT, _HAS_BIT, _KIND_BIT = 12, 24, 28


def raw_operation(kind: int, of: Ints) -> int:
    """Return the operation that adds a double, square or product to a fixed-point sum."""
    _, first, count, specials = of.tolist()
    op = RAW | kind << _KIND_BIT | int(specials >= 0) << _HAS_BIT
    return int(op | first << _FIRST_BIT | count)


@kernel
def raw_words(op: int) -> int:
    """Return how many words the values have that an operation adds."""
    return 2 if (op >> _KIND_BIT) & 3 == RAW_PRODUCT else 1


@lean_kernel
def add_raw(
    table: Table, i: int, at: int, source: Table, j: int, place: int, op: int, taken: bool
) -> None:
    """Add a double in row `j` of `source` to a fixed-point number in row `i`, or take it back."""
    kind, count = (op >> _KIND_BIT) & 3, op & 0xFFF
    x = source[j, place]
    y = np.int64(1023) << 52  # 1.0
    if kind == RAW_SQUARE:
        y = x
    elif kind == RAW_PRODUCT:
        y = source[j, place + 1]
    which = _special_product(x, y)
    if which >= 0:
        table[i, at + count + which] += -1 if taken else 1
    elif x << 1 and y << 1:
        position = int(_exponent(x)) + ORIGIN - 64 * ((op >> _FIRST_BIT) & 0xFFF)
        low, high = _mantissa(x), np.uint64(0)
        if kind != RAW_DOUBLE:
            low, high = word_product(low, _mantissa(y))
            position += int(_exponent(y))
        _add_number(table, i, at, count, position, low, high, ((x ^ y) < 0) != taken)
