"""Sums of doubles and of products of doubles without any rounding, in few words.

Idea: a double is an integer times a power of two, so a sum of doubles is a long integer. It is kept
as *digits* to the base 2**64; digit n counts units of 2**(64 * n - ORIGIN). Digits have signs: each
is at least -2**63 and below 2**63. So the digits above and below a number are zero for negative
numbers too, every number has exactly one form, and a table stores only the digits from `first` on
that its numbers need. Widening a table adds columns of zeros. Infinities and NaN are counted in
three words of their own. On the log a number is its significant bytes and their position.

Invariants:
1. After any additions and subtractions the digits are those of the exact result
   (`test_oracle_digits_hold_the_exact_sum`).
2. `nearest_sums`, `nearest_means`, `nearest_ratios` and `nearest_spreads` return the double next to
   the exact result, ties to even (`test_oracle_results_are_the_nearest_doubles`).
3. Encoded numbers decode to the same digits (`test_oracle_numbers_survive_their_bytes`); bytes that
   are no numbers are refused (`test_bytes_that_are_no_sums_are_refused`).

Cost: O(digits) to add; two digits where magnitudes differ by less than 2**50 or so. Some 50 ns to
round a sum, 100 to 200 for a quotient. On the log 3 bytes and the significant bytes of the sum.

Limits: the caller provides enough digits for the greatest sum; a carry out of them is lost.

References: Kulisch's long accumulator; Neal, Fast exact summation using small and large
superaccumulators, 2015; signed digits: Avizienis, 1961; division: Knuth, volume 2, algorithm D.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from icestream.core.arrays import Bytes, Floats, Ints, Mask, Table
from icestream.kernels.compile import kernel, lean_kernel

Words = npt.NDArray[np.uint64]

#: bits of digits below the units: the least product of two doubles is above 2**-ORIGIN
ORIGIN = 34 * 64
#: one more than the position of the last digit: 2**40 of the greatest product are below it
DIGITS = 68
#: words with the numbers of NaN, of infinity and of minus infinity
SPECIALS = 3
#: bytes before the significant bytes of an encoded number, and their parts
HEAD_BYTES = 3
_SIZE_BIT, _SPECIALS_BIT, _PART = 11, 22, (1 << 11) - 1
#: words of a description of a sum in a table: place, first digit, digits, place of the specials
PLACE, FIRST, COUNT, SPECIALS_AT = 0, 1, 2, 3
_POWERS = 2.0 ** np.arange(-1074, 1024)
#: halves of digits that products of two sums may need
_HALVES = 4 * DIGITS + 16


@kernel
def shifted(
    low: np.uint64, high: np.uint64, bits: int | np.int64
) -> tuple[np.uint64, np.uint64, np.uint64]:
    """Return the three words of (high, low) * 2**bits, for fewer than 64 bits."""
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
def _plus(a: np.int64, b: np.int64, carry: np.int64) -> tuple[np.int64, np.int64]:
    """Return a digit and the carry of a + b + carry; carries are small and may be negative."""
    c = np.int64(np.uint64(a) + np.uint64(b))
    above = np.int64(0)
    if ((a ^ c) & (b ^ c)) < 0:
        above = np.int64(1 if a >= 0 else -1)
    return _with_carry(c, above, carry)


@kernel
def _minus(a: np.int64, b: np.int64, carry: np.int64) -> tuple[np.int64, np.int64]:
    """Return a digit and the carry of a - b + carry."""
    c = np.int64(np.uint64(a) - np.uint64(b))
    above = np.int64(0)
    if ((a ^ b) & (a ^ c)) < 0:
        above = np.int64(1 if a >= 0 else -1)
    return _with_carry(c, above, carry)


@lean_kernel
def add_digits(
    target: Table, i: int, at: int, source: Table, j: int, place: int, count: int
) -> None:
    """Add the number in row `j` of `source` to the one in row `i` of `target`."""
    carry = np.int64(0)
    for w in range(count):
        target[i, at + w], carry = _plus(target[i, at + w], source[j, place + w], carry)


@lean_kernel
def take_digits(
    target: Table, i: int, at: int, source: Table, j: int, place: int, count: int
) -> None:
    """Subtract the number in row `j` of `source` from the one in row `i` of `target`."""
    carry = np.int64(0)
    for w in range(count):
        target[i, at + w], carry = _minus(target[i, at + w], source[j, place + w], carry)


@lean_kernel
def negate_digits(rows: Table, i: int, at: int, count: int) -> None:
    """Change the sign of a number."""
    carry = np.int64(0)
    for w in range(count):
        rows[i, at + w], carry = _minus(np.int64(0), rows[i, at + w], carry)


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
def _bits(word: np.uint64) -> int:
    """Return the length of a word in bits."""
    length = 0
    for step in (32, 16, 8, 4, 2, 1):
        if word >> np.uint64(step):
            word >>= np.uint64(step)
            length += step
    return length + int(word)


@kernel
def _zeros_below(word: np.uint64) -> int:
    """Return how many bits below the lowest one that is set are zero."""
    return _bits(word & (~word + np.uint64(1))) - 1


@kernel
def sum_extent(x: Ints, valid: Mask) -> tuple[int, int, bool]:
    """Return the bits between which values lie, and whether some are infinite or NaN.

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
                    low = min(low, exponent + _zeros_below(_mantissa(x[i])))
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
                    zeros = _zeros_below(_mantissa(x[i])) + _zeros_below(_mantissa(y[i]))
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
            table[i, at + w], carry = _minus(table[i, at + w], digit, carry)
            carry -= more
        else:
            table[i, at + w], carry = _plus(table[i, at + w], digit, carry)
            carry += more
        x0, x1, x2 = x1, x2, np.uint64(0)
        w += 1


@kernel
def fold_doubles(table: Table, of: Ints, slots: Ints, x: Ints, valid: Mask) -> None:
    """Add doubles, given as bits, to the sum that `of` describes, each in its row of a table."""
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
def fold_products(table: Table, of: Ints, slots: Ints, x: Ints, y: Ints, valid: Mask) -> None:
    """Add products of two columns, as `fold_doubles` adds values."""
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
    """Return the operation that adds a double, a square or a product to the sum described."""
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
    """Add a value in row `j` of `source` to the number in row `i` of a table, or take it back."""
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


# -- bytes -----------------------------------------------------------------------------------


@lean_kernel
def _complement(table: Table, i: int, of: Ints, words: Words) -> bool:
    """Write a number as words of a two's complement; return whether it is negative."""
    borrow = np.int64(0)
    for w in range(of[COUNT]):
        d = table[i, of[PLACE] + w]
        words[w] = np.uint64(d) - np.uint64(borrow)
        borrow = np.int64(1 if d < borrow else 0)
    return bool(borrow)


@lean_kernel
def _byte(words: Words, at: int) -> np.uint64:
    return np.uint64((words[at >> 3] >> np.uint64(8 * (at & 7))) & np.uint64(0xFF))


@lean_kernel
def _significant(words: Words, count: int, negative: bool) -> tuple[int, int]:
    """Return the first byte of a number that is not zero, and the end of those that matter."""
    first = 0
    while first < count and words[first] == np.uint64(0):
        first += 1
    if first == count:
        return 0, 0
    low = 8 * first + (_zeros_below(words[first]) >> 3)
    sign = ~np.uint64(0) if negative else np.uint64(0)
    last = count - 1
    while last > first and words[last] == sign:
        last -= 1
    # with one bit for the sign
    return low, max(low, 8 * last + (_bits(words[last] ^ sign) >> 3)) + 1


@kernel
def measure_sums(table: Table, sums: Table, bounds: Table, sizes: Ints) -> None:
    """Return the bytes of each row, and those of each of its numbers: first and last."""
    words = np.zeros(DIGITS + 1, dtype=np.uint64)
    for i in range(table.shape[0]):
        size = 0
        for s in range(sums.shape[0]):
            of = sums[s]
            low, high = _significant(words, of[COUNT], _complement(table, i, of, words))
            bounds[i, 2 * s] = low
            bounds[i, 2 * s + 1] = high
            size += HEAD_BYTES + high - low
            if _has_specials(table, i, of[SPECIALS_AT]):
                size += 8 * SPECIALS
        sizes[i] = size


@lean_kernel
def _has_specials(table: Table, i: int, at: int) -> bool:
    found = np.int64(0)
    if at >= 0:
        for w in range(SPECIALS):
            found |= table[i, at + w]
    return bool(found != 0)


@kernel
def encode_sums(table: Table, sums: Table, bounds: Table, begins: Ints, raw: Bytes) -> None:
    """Write the sums of each row as bytes."""
    words = np.zeros(DIGITS + 1, dtype=np.uint64)
    for i in range(table.shape[0]):
        at = begins[i]
        for s in range(sums.shape[0]):
            of = sums[s]
            negative = _complement(table, i, of, words)
            low = bounds[i, 2 * s]
            high = bounds[i, 2 * s + 1]
            words[of[COUNT]] = ~np.uint64(0) if negative else np.uint64(0)
            specials = _has_specials(table, i, of[SPECIALS_AT])
            head = (low + 8 * of[FIRST]) | ((high - low) << _SIZE_BIT)
            if high == low:
                head = 0
            head |= int(specials) << _SPECIALS_BIT
            for b in range(HEAD_BYTES):
                raw[at + b] = (head >> (8 * b)) & 0xFF
            at += HEAD_BYTES
            for b in range(low, high):
                raw[at] = _byte(words, b)
                at += 1
            if specials:
                for w in range(SPECIALS):
                    count = table[i, of[SPECIALS_AT] + w]
                    for b in range(8):
                        raw[at] = (count >> (8 * b)) & 0xFF
                        at += 1


@lean_kernel
def _head(raw: Bytes, at: int) -> np.int64:
    low, middle, high = np.int64(raw[at]), np.int64(raw[at + 1]), np.int64(raw[at + 2])
    return np.int64(low | (middle << 8) | (high << 16))


@kernel
def encoded_extents(raw: Bytes, begins: Ints, ends: Ints, extents: Table) -> bool:
    """Fill in, for each sum, the bits between which its numbers lie, and if it has specials.

    Returns False for bytes that are no sums.
    """
    for s in range(extents.shape[0]):
        extents[s, 0] = 64 * DIGITS
        extents[s, 1] = 0
        extents[s, 2] = 0
    for i in range(begins.size):
        at = begins[i]
        for s in range(extents.shape[0]):
            if at + HEAD_BYTES > ends[i]:
                return False
            head = _head(raw, at)
            low = head & _PART
            size = (head >> _SIZE_BIT) & _PART
            at += HEAD_BYTES + size
            if size:
                if low + size > 8 * DIGITS:
                    return False
                extents[s, 0] = min(extents[s, 0], 8 * low)
                extents[s, 1] = max(extents[s, 1], 8 * (low + size))
            if head >> _SPECIALS_BIT:
                extents[s, 2] = 1
                at += 8 * SPECIALS
        if at != ends[i]:
            return False
    return True


@kernel
def decode_sums(raw: Bytes, begins: Ints, sums: Table, table: Table) -> None:
    """Read the sums of each row into a table that is zero there."""
    for i in range(begins.size):
        at = begins[i]
        for s in range(sums.shape[0]):
            of = sums[s]
            head = _head(raw, at)
            low = (head & _PART) - 8 * of[FIRST]
            size = (head >> _SIZE_BIT) & _PART
            at += HEAD_BYTES
            if size:
                negative = raw[at + size - 1] >= 128
                carry = np.int64(0)
                for w in range(of[COUNT]):
                    word = np.uint64(0)
                    for b in range(8):
                        place = 8 * w + b - low
                        byte = np.uint64(0xFF if negative and place >= 0 else 0)
                        if 0 <= place < size:
                            byte = np.uint64(raw[at + place])
                        word |= byte << np.uint64(8 * b)
                    digit, above = _plus(np.int64(word), np.int64(0), carry)
                    table[i, of[PLACE] + w] = digit
                    carry = above + np.int64(word >> np.uint64(63))
                at += size
            if head >> _SPECIALS_BIT:
                for w in range(SPECIALS):
                    count = np.int64(0)
                    for b in range(8):
                        count |= np.int64(raw[at]) << (8 * b)
                        at += 1
                    table[i, of[SPECIALS_AT] + w] = count


# -- rounding --------------------------------------------------------------------------------


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
    return 32 * (count - 1) + _bits(halves[count - 1])


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
    """Return the double next to each sum."""
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
    """Return the double next to each sum divided by a count, which is positive."""
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
    """Return the double next to each sum divided by another; NaN where that is zero."""
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
