"""Random numbers by position: a number does not depend on when, or with which others, it is drawn.

Idea: a stateless random number generator. A number depends on the seed, on its purpose and on a
counter, so that row `n` of a stream can be made without the rows before it.

Invariants:
1. A draw does not depend on other draws (`test_oracle_a_draw_stands_alone`).
2. Purposes and seeds are independent (`test_seeds_and_purposes_do_not_resemble_each_other`).

References: the finaliser of SplitMix64.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]


def random_bits(seed: int, purpose: int, counters: Words) -> Words:
    """Return 64 random bits per counter, from a separate sequence for each seed and purpose."""
    start = (seed * 0x9E3779B97F4A7C15 + purpose * 0xD1B54A32D192ED03) % 2**64
    bits = counters * np.uint64(0x9E3779B97F4A7C15)
    bits += np.uint64(start ^ (start >> 29))
    bits ^= bits >> np.uint64(30)
    bits *= np.uint64(0xBF58476D1CE4E5B9)
    bits ^= bits >> np.uint64(27)
    bits *= np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    return bits


def fractions(bits: npt.NDArray[np.unsignedinteger]) -> npt.NDArray[np.float64]:
    """Map random bits uniformly to random numbers of the open interval (0, 1)."""
    spread: npt.NDArray[np.float64] = bits.astype(np.float64)
    spread += 0.5
    spread *= 0.5 ** (8 * bits.dtype.itemsize)
    return spread
