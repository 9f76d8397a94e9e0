"""The obvious versions of the kernels in `icestream.kernels.double_sums`, with fractions."""

from __future__ import annotations

import math
from fractions import Fraction

from icestream.core.arrays import Ints
from icestream.kernels.double_sums import DIGITS, ORIGIN, SPECIALS


def number_reference(row: Ints) -> Fraction:
    """Return the number that all digits of a row encode."""
    units = sum(digit << (64 * place) for place, digit in enumerate(row[:DIGITS].tolist()))
    return Fraction(units, 2**ORIGIN)


def digits_reference(number: Fraction | int) -> list[int]:
    """Return all digits of a number, and words of no infinities and NaN."""
    units = Fraction(number) * 2**ORIGIN
    assert units.denominator == 1
    left = units.numerator
    digits = []
    for _ in range(DIGITS):
        digit = (left + 2**63) % 2**64 - 2**63
        digits.append(digit)
        left = (left - digit) >> 64
    assert left == 0
    return digits + [0] * SPECIALS


def nearest_reference(number: Fraction) -> float:
    """Return the double next to a number: Python rounds quotients of integers once."""
    try:
        return number.numerator / number.denominator
    except OverflowError:
        return math.inf if number > 0 else -math.inf
