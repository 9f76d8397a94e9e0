r"""Random walks that can be computed at any step.

Idea: Lévy's construction. A walk over `2**LEVELS` steps begins and ends at 0. Its middle is drawn,
and recursively the offset of the middle of each half from the midpoint of its ends, with smaller
and smaller variance. So a step is the sum of one tent per level, each drawn by its place.

    level 1        /\          a tent over the whole walk, times a draw
    level 2      /\  /\        a tent over each half, lower by the root of 2
    level 3     /\/\/\/\       ...

Invariants:
1. A step does not depend on which others are computed (`test_oracle_a_step_stands_alone`).
2. Differences over `d` steps have a variance of `d`
   (`test_oracle_differences_grow_as_those_of_a_walk`).

Cost: `LEVELS` draws a step.

Limits: a walk returns to 0 every `2**LEVELS` steps, and then continues differently.

References: P. Lévy, Processus stochastiques et mouvement brownien, 1948.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from icestream.demo.randomness import fractions, random_bits

LEVELS = 18
#: the variance of a uniform draw from -1/2 to 1/2 is 1/12
_UNIT = 12**0.5


def walk(
    seed: int, walks: npt.NDArray[np.int64], steps: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Return the position of each walk at its step; steps have a variance of about 1.

    Args:
        seed: seed of the walks.
        walks: numbers of walks, from 0.
        steps: a step of each, from 0.
    """
    place = np.zeros(len(steps))
    for level in range(1, LEVELS + 1):
        # a tent of this level is 2 * half steps wide
        half = 1 << (LEVELS - level)
        tent, within = np.divmod(steps, 2 * half)
        height = 1 - np.abs(within - half) / half
        # walks and their tents are numbered through
        counters = (tent << 10 | walks).view(np.uint64)
        draws = fractions(random_bits(seed, 100 + level, counters)) - 0.5
        place += draws * height * (_UNIT * (half / 2) ** 0.5)
    return place
