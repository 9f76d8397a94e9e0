"""Which groups are cold: statistics by slot.

Idea: two words for each slot. For the clock the first is a reference bit, cleared by a hand that
takes the slots it finds cleared. For *fading scores* the first is a score as the bits of a float,
the second the tick of the last hit; a score is updated only when it is touched, so ageing costs
nothing.

Invariants:
1. The hand takes the slots that a clock moving slot by slot takes
   (`test_parity_the_hand_of_the_clock`).
2. A score is the sum of its hits, each decayed by the time since (`test_parity_fading_scores`).
3. Groups of the directory are chosen by number of accesses, then by the last access
   (`test_parity_groups_named_least_and_longest_ago`).

Cost: O(hits), O(candidates); two turns of the hand at most.

Limits: scores that have decayed to zero are ordered by their last hit alone.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from icestream.core.arrays import Floats, Ints, Slots, Table
from icestream.kernels.compile import kernel
from icestream.kernels.groups.heap import HEAT, STAMP

#: two words for each slot
Stats = npt.NDArray[np.int64]

#: upper bounds of access counts and of ages in chunks
MOST_HEAT = 255


@kernel
def clock_sweep(stats: Stats, candidates: Slots, start: int, k: int, out: Slots) -> tuple[int, int]:
    """Move the hand of the clock over `candidates` until `k` cold groups or all are taken.

    Fills `out`; returns how many were taken and where the hand stops. A slot that is taken gets a
    negative first word.
    """
    count = 0
    at = start
    for turn in range(2):
        for _ in range(candidates.size):
            if count == k:
                return count, at
            slot = candidates[at]
            at = at + 1 if at + 1 < candidates.size else 0
            if stats[slot, 0] > 0:
                stats[slot, 0] = 0
            elif turn == 0 or stats[slot, 0] == 0:
                stats[slot, 0] = -1
                out[count] = slot
                count += 1
    return count, at


@kernel
def faded(score: float, last: int, tick: int, period: int, retain: float) -> float:
    """Return the score of a group, of tick `last`, at `tick`, to see if it is cold; 0 without one.

    It is multiplied by `retain` at every tick that `period` divides, never if that is 0.
    """
    if not score > 0.0:
        return 0.0
    if period == 0:
        return score
    steps = tick - last if period == 1 else tick // period - last // period
    while steps > 0 and score > 0.0:
        if steps & 1:
            score *= retain
        retain *= retain
        steps >>= 1
    return score


@kernel
def fade_hit(
    scores: Floats, last: Ints, slots: Slots, tick: int, period: int, gain: float, retain: float
) -> None:
    """Add `gain` to the score of every group that was hit, so that it is less cold."""
    for i in range(slots.size):
        slot = slots[i]
        scores[slot] = faded(scores[slot], last[slot], tick, period, retain) + gain
        last[slot] = tick


@kernel
def fade_all(
    scores: Floats, last: Ints, slots: Slots, tick: int, period: int, retain: float, out: Floats
) -> None:
    """Fill in the scores of groups at `tick`, to find the cold ones."""
    for i in range(slots.size):
        out[i] = faded(scores[slots[i]], last[slots[i]], tick, period, retain)


@kernel
def list_coldest(table: Table, before: int, count: int, slots: Ints) -> int:
    """List up to `count` cold groups, last accessed before a chunk: fewest accesses first.

    They are counted by accesses and age: nothing is sorted.
    Slots ascend. Returns how many there are.
    """
    counts = np.zeros((MOST_HEAT + 1, MOST_HEAT + 1), dtype=np.int64)
    for slot in range(table.shape[0]):
        stamp = table[slot, STAMP]
        if 0 < stamp < before:
            counts[min(table[slot, HEAT], MOST_HEAT), min(before - stamp, MOST_HEAT)] += 1
    heat, left = 0, count
    while heat <= MOST_HEAT and counts[heat].sum() <= left:
        left -= counts[heat].sum()
        heat += 1
    age = MOST_HEAT
    while heat <= MOST_HEAT and age > 0 and counts[heat, age] <= left:
        left -= counts[heat, age]
        age -= 1
    listed = 0
    for slot in range(table.shape[0]):
        stamp = table[slot, STAMP]
        if not 0 < stamp < before:
            continue
        own, passed = min(table[slot, HEAT], MOST_HEAT), min(before - stamp, MOST_HEAT)
        is_last = own == heat and passed == age and left > 0
        if own < heat or (own == heat and passed > age) or is_last:
            left -= is_last
            slots[listed] = slot
            listed += 1
    return listed
