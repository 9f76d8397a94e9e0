"""Literals of aggregate functions: validation, and conversion to sizes of sketches.

Idea: users specify an error, sketches have a size. The error of a HyperLogLog sketch of 2**lg_k
registers is 1.04 / sqrt(2**lg_k); the rank error of a KLL sketch is 2.296 / k**0.9723 with a
probability of 99 %.

Invariant: a sketch is at least as large as the requested error needs
(`test_sketches_are_as_large_as_the_asked_error_needs`).

References: Flajolet et al., HyperLogLog, 2007; Karnin, Lang and Liberty, Optimal Quantile
Approximation in Streams, 2016; the constants are those of Apache DataSketches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from icestream.core.errors import DefinitionError

#: smallest KLL sketch of Apache DataSketches
_LEAST_KLL = 8


def fractions(function: str, wanted: float | Sequence[float]) -> float | tuple[float, ...]:
    """Return the fractions given as a parameter, one or several; refuse those outside 0 to 1."""
    several: Sequence[Any] = wanted if isinstance(wanted, Sequence) else [wanted]
    for each in several:
        if not isinstance(each, int | float) or not 0 <= each <= 1:
            msg = (
                f"{function} takes fractions between 0 and 1; got {wanted!r}. Write 0.95 for the "
                "95th percentile"
            )
            raise DefinitionError(msg)
    found = tuple(float(each) for each in several)
    return found if isinstance(wanted, Sequence) else found[0]


def registers(rsd: float) -> int:
    """Return the parameter lg_k of a HyperLogLog sketch with this relative standard deviation."""
    if not 0.0008 <= rsd <= 0.09:
        msg = (
            f"rsd must be between 0.0008 and 0.09; got {rsd}. Use ice.count_distinct for an exact "
            "result"
        )
        raise DefinitionError(msg)
    return math.ceil(2 * math.log2(1.04 / rsd))


def quantile_size(accuracy: Any) -> int:
    """Return the parameter k of a KLL sketch with a rank error of at most 1 / accuracy."""
    if not isinstance(accuracy, int) or not 1 <= accuracy <= 20_000:
        msg = (
            f"accuracy must be a whole number from 1 to 20000; got {accuracy!r}. Use "
            "ice.percentile for an exact result"
        )
        raise DefinitionError(msg)
    return max(_LEAST_KLL, math.ceil(math.pow(2.296 * accuracy, 1 / 0.9723)))
