"""Which partition groups of a plan's joins to spill: decisions without I/O.

Idea: all partition groups of all joins are candidates at once. A strategy sorts them, and they are
spilled from the front until enough bytes are chosen. The order by *productivity* is results per
byte: of the join alone, or of the whole query. A *penalty* may be added to the bytes of a group for
what it makes other joins hold: all of that so far, or what is expected until the next decision.

Invariants:
1. The shortest prefix of the order that reaches the amount is chosen, and all if none does
   (`test_oracle_the_shortest_front_that_reaches_the_amount_is_chosen`).
2. A group that holds nothing is never chosen (`test_a_group_without_bytes_is_never_chosen`).
3. The same statistics and seed choose the same groups, in whatever order they are given
   (`test_choices_depend_on_the_groups_and_not_on_their_order`).

Cost: one sort of the groups.

Limits: a group that was just spilled has produced no results yet and so comes first again; it holds
little then, and little is lost.

References: Liu, Zhu, Rundensteiner (2006), sections 3.1 and 3.2. `global_output_with_penalty` is
printed there as P_output / (P_size + P_inter), P_inter in tuples; here both are bytes. Every byte
between two joins then counts against all joins below and once more where it is, whatever the next
spill frees, so that the lower joins are emptied first. `global_output_ahead` is not in the paper:
it takes P_inter for what "will be stored", up to the next spill.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from icestream.core.arrays import Floats, Ints
from icestream.core.errors import DefinitionError

BOTTOM_UP = "bottom_up"
LOCAL_OUTPUT = "local_output"
GLOBAL_OUTPUT = "global_output"
#: with a penalty for all that later joins have stored
GLOBAL_OUTPUT_WITH_PENALTY = "global_output_with_penalty"
#: with a penalty for what is expected until the next spill
GLOBAL_OUTPUT_AHEAD = "global_output_ahead"
RANDOM = "random"
LARGEST = "largest"

#: names of all strategies
STRATEGIES = (
    BOTTOM_UP,
    LOCAL_OUTPUT,
    GLOBAL_OUTPUT,
    GLOBAL_OUTPUT_WITH_PENALTY,
    GLOBAL_OUTPUT_AHEAD,
    RANDOM,
    LARGEST,
)


@dataclass(frozen=True)
class PartitionStatistics:
    """Statistics of partition groups: one row for each, about its resident generation."""

    #: number of the join, and of its partition
    join: Ints
    partition: Ints
    #: bytes in memory
    size: Ints
    #: results with a member in the group: of its join for the strategy `local_output`, of the
    #: whole query otherwise
    output: Floats
    #: bytes of results with a member in the group that later joins have stored so far
    inter: Floats

    def __post_init__(self) -> None:
        """Reject columns of different lengths."""
        lengths = {len(each) for each in (self.join, self.partition, self.size)}
        lengths |= {len(self.output), len(self.inter)}
        if len(lengths) > 1:
            msg = f"statistics need one value for each group in every column; got {sorted(lengths)}"
            raise ValueError(msg)

    def __len__(self) -> int:
        return len(self.join)


@dataclass(frozen=True)
class SpillRanking:
    """Which partitions of one join in one shard leave when the shard is full."""

    strategy: str = LOCAL_OUTPUT
    #: fraction of the resident bytes that leaves at once: less than what the driver chooses, which
    #: knows all joins
    amount: float = 0.1
    #: results of the whole query, and bytes that later joins store, by partition; without them, the
    #: results of the join count
    results: Floats | None = None
    kept: Floats | None = None
    seed: int = 0

    @property
    def is_informed(self) -> bool:
        """Return whether the strategy has the statistics by which it ranks."""
        local = self.strategy in (BOTTOM_UP, LOCAL_OUTPUT, RANDOM, LARGEST)
        return local or self.results is not None

    def leaving(self, sizes: Ints, outputs: Ints, needed: int) -> Ints:
        """Return partitions with at least `needed` bytes, given bytes and results of the join."""
        nothing = np.zeros(len(sizes))
        results = outputs.astype(np.float64) if self.results is None else self.results
        statistics = PartitionStatistics(
            join=np.zeros(len(sizes), dtype=np.int64),
            partition=np.arange(len(sizes)),
            size=sizes,
            output=outputs.astype(np.float64) if self.strategy == LOCAL_OUTPUT else results,
            inter=nothing if self.kept is None else self.kept,
        )
        amount = max(needed, int(self.amount * sizes.sum()))
        return np.flatnonzero(chosen(statistics, amount, self.strategy, {0: 0}, self.seed))


def chosen(
    statistics: PartitionStatistics,
    amount: int,
    strategy: str,
    depth: Mapping[int, int],
    seed: int,
) -> npt.NDArray[np.bool_]:
    """Return which partition groups a strategy spills so that at least `amount` bytes are freed.

    `depth` is the height of each join above the inputs: 0 for joins of the query's inputs only.
    """
    leaves = np.zeros(len(statistics), dtype=np.bool_)
    candidates = np.flatnonzero(statistics.size > 0)
    if amount <= 0 or len(candidates) == 0:
        return leaves
    #: in an order that does not depend on which shard reported first
    by_name = np.lexsort((statistics.partition[candidates], statistics.join[candidates]))
    candidates = candidates[by_name]
    order = candidates[_order(statistics, candidates, strategy, amount, depth, seed)]
    freed = np.cumsum(statistics.size[order])
    leaves[order[: int(np.searchsorted(freed, amount)) + 1]] = True
    return leaves


def productivity(statistics: PartitionStatistics, strategy: str, ahead: float) -> Floats:
    """Return the results per byte of each group, by which a spill strategy chooses.

    `ahead` is the expected work until the next decision, as a fraction of the work so far.
    """
    held = statistics.size.astype(np.float64)
    penalty = {GLOBAL_OUTPUT_WITH_PENALTY: 1.0, GLOBAL_OUTPUT_AHEAD: ahead}
    held = held + penalty.get(strategy, 0.0) * statistics.inter
    return np.divide(statistics.output, held, out=np.zeros(len(statistics)), where=held > 0)


def horizon(statistics: PartitionStatistics, amount: int) -> float:
    """Return the work expected between two spills, as a fraction of the work so far.

    Resident bytes have arrived since the groups began; `amount` bytes can arrive next.
    """
    resident = int(statistics.size.sum())
    return min(1.0, amount / resident) if resident else 0.0


def _order(
    statistics: PartitionStatistics,
    rows: Ints,
    strategy: str,
    amount: int,
    depth: Mapping[int, int],
    seed: int,
) -> Ints:
    """Return the order in which groups are spilled; among equals, the larger are first."""
    size = statistics.size[rows]
    if strategy in (BOTTOM_UP, RANDOM):
        shuffled = np.random.default_rng(seed).permutation(len(rows))
        if strategy == RANDOM:
            return shuffled
        heights = np.array([depth[join] for join in statistics.join[rows].tolist()], dtype=np.int64)
        return np.lexsort((shuffled, heights))
    if strategy == LARGEST:
        return np.argsort(-size, kind="stable")
    if strategy not in STRATEGIES:
        msg = f"a spill strategy must be one of {', '.join(STRATEGIES)}; got {strategy!r}"
        raise DefinitionError(msg)
    ahead = horizon(statistics, amount)
    return np.lexsort((-size, productivity(statistics, strategy, ahead)[rows]))
