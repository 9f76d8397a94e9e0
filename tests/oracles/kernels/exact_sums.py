"""The obvious versions of the kernels in `bench.research.window_blocks.exact_sums`."""

from __future__ import annotations

import math
from fractions import Fraction


def average_reference(values: list[tuple[float, int]]) -> float:
    """Return sum(value * weight) / sum(weight) with exact fractions, rounded once."""
    weights = sum(weight for _, weight in values)
    if weights == 0:
        return math.nan
    odd = sum(value * weight for value, weight in values if not math.isfinite(value))
    if odd:
        return odd / weights
    quotient = sum(Fraction(value) * weight for value, weight in values) / weights
    try:
        return float(quotient)
    except OverflowError:
        return math.inf if quotient > 0 else -math.inf
