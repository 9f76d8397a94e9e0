"""Pairs of overlapping intervals, and where the number of live intervals is above zero.

Idea: probing rows and stored rows are contiguous by group. Stored rows sorted by their begin can be
searched: from the first row whose end, or that of a row before it, is past the probe's start, up to
the first that begins at its end or later. Pairs are returned up to the capacity of the caller's
arrays; a call continues where the last one stopped. Covers are found by traversing sorted edges.

Invariants:
1. All pairs of a group with a common instant are found, once, whatever the capacity
   (`test_parity_pairs_of_random_intervals`).
2. Narrowing misses no pair (the same test).
3. Stretches are the maximal intervals where exactly one of two covers holds
   (`test_parity_stretches_of_random_covers`).
4. Probes are marked exactly if they have a pair (the first test).
5. Rows have equal numbers exactly when their words are equal, in order of first appearance
   (`test_parity_numbers_of_random_pairs`).

Cost: O(log n) per probe and the rows between its bounds; O(edges).
"""

from __future__ import annotations

import numpy as np

from icestream.core.arrays import Ids, Ints, Mask
from icestream.kernels.compile import kernel


@kernel
def is_in_order(bounds: Ints, le: Ints) -> bool:
    """Return whether the rows of each group that are paired begin in order."""
    for group in range(bounds.size - 1):
        for row in range(bounds[group] + 1, bounds[group + 1]):
            if le[row] < le[row - 1]:
                return False
    return True


@kernel
def narrow(
    probe_le: Ints, probe_re: Ints, bounds: Ints, le: Ints, re: Ints, firsts: Ints, lasts: Ints
) -> None:
    """Narrow the stored rows that a probe pairs with from its whole group to possible partners.

    The rows of each group begin in order.
    """
    latest = np.empty(re.size, dtype=np.int64)
    for group in range(bounds.size - 1):
        most = np.int64(-(2**63))
        for row in range(bounds[group], bounds[group + 1]):
            most = max(most, re[row])
            latest[row] = most
    for probe in range(firsts.size):
        low = firsts[probe]
        high = lasts[probe]
        while low < high:
            middle = (low + high) // 2
            if latest[middle] > probe_le[probe]:
                high = middle
            else:
                low = middle + 1
        firsts[probe] = low
        high = lasts[probe]
        while low < high:
            middle = (low + high) // 2
            if le[middle] >= probe_re[probe]:
                high = middle
            else:
                low = middle + 1
        lasts[probe] = low


@kernel
def pair_up(
    probe_le: Ints,
    probe_re: Ints,
    firsts: Ints,
    lasts: Ints,
    le: Ints,
    re: Ints,
    state: Ints,
    probes: Ints,
    stored: Ints,
) -> int:
    """Fill `probes` and `stored` with the next pairs that share an instant; return how many.

    `state` is the probe to continue with and how many of its stored rows are done, zeros at first;
    there are no more pairs when fewer are returned than there was room for.
    """
    count = 0
    probe = state[0]
    row = firsts[probe] + state[1] if probe < firsts.size else 0
    while probe < firsts.size:
        start = probe_le[probe]
        end = probe_re[probe]
        while row < lasts[probe]:
            if le[row] < end and start < re[row]:
                if count == probes.size:
                    state[0] = probe
                    state[1] = row - firsts[probe]
                    return count
                probes[count] = probe
                stored[count] = row
                count += 1
            row += 1
        probe += 1
        if probe < firsts.size:
            row = firsts[probe]
    state[0] = probe
    state[1] = 0
    return count


@kernel
def partnered(
    probe_le: Ints, probe_re: Ints, firsts: Ints, lasts: Ints, le: Ints, re: Ints, found: Mask
) -> None:
    """Mark in `found` the probes that form a pair: they share an instant with a stored row."""
    for probe in range(firsts.size):
        for row in range(firsts[probe], lasts[probe]):
            if le[row] < probe_re[probe] and probe_le[probe] < re[row]:
                found[probe] = True
                break


@kernel
def stretches(
    owners: Ints,
    times: Ints,
    before: Ints,
    after: Ints,
    out_owners: Ints,
    starts: Ints,
    ends: Ints,
    signs: Ints,
) -> int:
    """Find where one of a pair of covers, counts of lifetimes, holds alone; return how many.

    Edges are sorted by owner and time; each adds `before` to the number of rows alive in the one
    cover and `after` to that in the other. The sign is 1 where only the cover before holds, -1
    where only that after does. The outputs have room for as many stretches as there are edges.
    """
    count = 0
    edge = 0
    while edge < owners.size:
        owner = owners[edge]
        was = np.int64(0)
        now = np.int64(0)
        sign = 0
        while edge < owners.size and owners[edge] == owner:
            time = times[edge]
            while edge < owners.size and owners[edge] == owner and times[edge] == time:
                was += before[edge]
                now += after[edge]
                edge += 1
            turned = (1 if was > 0 else 0) - (1 if now > 0 else 0)
            if turned == sign:
                continue
            if sign != 0:
                ends[count - 1] = time
            if turned != 0:
                out_owners[count] = owner
                starts[count] = time
                signs[count] = turned
                count += 1
            sign = turned
    return count


@kernel
def number_pairs(id_high: Ids, id_low: Ids, index: Ints, numbers: Ints, heads: Ints) -> int:
    """Number pairs of words, one for each event; fill `heads` with the first rows; return how many.

    `index` is zeros; its length is a power of two above the number of rows.
    """
    mask = index.size - 1
    count = 0
    for row in range(id_high.size):
        place = np.int64(id_low[row] >> np.uint64(20)) & mask
        number = index[place] - 1
        while number >= 0 and (
            id_high[heads[number]] != id_high[row] or id_low[heads[number]] != id_low[row]
        ):
            place = (place + 1) & mask
            number = index[place] - 1
        if number < 0:
            number = count
            heads[count] = row
            count += 1
            index[place] = count
        numbers[row] = number
    return count
