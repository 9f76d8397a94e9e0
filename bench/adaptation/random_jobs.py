"""Random jobs of many operators, to compare ways of fusing.

Idea: an operator may be partitioned by a random subset of 30 attributes, which no operator changes.
The subset's size begins at 15 and takes a random step from operator to operator. Operators are
divided into levels, in order; the number of levels is random, from 3 to 0.75 times the number of
operators. Each sends rows to the next level: a random part of a random part of what it has left, to
one operator after the other.

Invariants:
1. The same seed gives the same job (`test_the_same_seed_gives_the_same_job`).
2. Edges lead from a level to the next, no level is empty, and no operator sends more than it has
   (`test_jobs_have_levels_and_send_what_they_have`).

Limits: the paper gives neither the step of the size nor how operators are divided into levels; here
a step is up to 3 up or down within 1 to 30, and levels are of equal size, give or take one. The
effect of other steps is a figure of `bench fusion`.

References: section 7, "Large Job", of the source named in `docs/papers.md`.
"""

from __future__ import annotations

import itertools
import random

from icestream.plan.fuse.operator_graph import Graph, Link

ATTRIBUTES = 30
#: rows that each operator sends
ROWS = 1_000.0
#: maximum change of the subset's size
STEP = 3
FEWEST_LEVELS = 3
MOST_LEVELS = 0.75


def random_job(operators: int, seed: int, step: int = STEP) -> Graph:
    """Return a job; attributes are tracks, since no operator changes them."""
    chance = random.Random(f"{operators} {seed}")
    size = ATTRIBUTES // 2
    masks = []
    for _ in range(operators):
        masks.append(sum(1 << each for each in chance.sample(range(ATTRIBUTES), size)))
        size = min(ATTRIBUTES, max(1, size + chance.randint(-step, step)))
    count = chance.randint(FEWEST_LEVELS, int(MOST_LEVELS * operators))
    bounds = [at * operators // count for at in range(count + 1)]
    levels = [range(first, last) for first, last in itertools.pairwise(bounds)]
    every = (1 << ATTRIBUTES) - 1
    edges = []
    for here, following in itertools.pairwise(levels):
        for origin in here:
            left = ROWS
            for target in following:
                rows = chance.uniform(0, left) * chance.random()
                left -= rows
                edges.append(Link(origin, target, rows, every))
    return Graph(tuple(masks), tuple(edges))
