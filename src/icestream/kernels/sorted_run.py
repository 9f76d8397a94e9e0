"""Sorted runs of entries of groups: looked into together, merged together.

Idea: a *run* is told by where its entries are in memory, how many they are, the words of each,
where the first of its *fences* is, the first hi of each page, and where all his are once more, one
after the other: who is not in a run is not looked for among its entries. Those who are looked for
come in order, so each run is walked through once, in steps that grow until they are too large.

Invariants:
1. An entry that is there is found in the first run that has it (`test_parity_entries_in_runs`).
2. Merging keeps the newest entry of a group (`test_parity_merging_runs`).
3. Identities that look like hashes are put in order, others left alone
   (`test_parity_the_order_of_identities`).

Cost: O(log entries of a page) per lookup and run; one pass to merge; O(identities) to order them.
"""

from __future__ import annotations

import numpy as np

from icestream.core.arrays import Ids, Ints, Mask, Table
from icestream.kernels.addresses import words_at
from icestream.kernels.compile import kernel

#: columns of a run
ADDRESS = 0
COUNT = 1
WIDTH = 2
FENCES = 3
HIS = 4
RUN = 5

#: first bits of identities that are looked at to put them in order, at most
MOST_BITS = 20


@kernel
def pages_before(fences: Table, first: int, pages: int, known: int, hi: np.uint64) -> int:
    """Return how many pages of a run begin before a hi; it is known that so many do."""
    step = 1
    while known + step <= pages and np.uint64(fences[first + known + step - 1, 0]) < hi:
        known += step
        step *= 2
    last = min(known + step - 1, pages)
    while known < last:
        middle = (known + last) >> 1
        if np.uint64(fences[first + middle, 0]) < hi:
            known = middle + 1
        else:
            last = middle
    return known


@kernel
def find_in_runs(
    runs: Table, fences: Table, page: int, hi: Ids, lo: Ids, found: Mask, out: Table
) -> None:
    """Fill in the entries of identities, in order, that are not found yet and are in a run.

    Of several runs with an entry the first one counts. Pages have `page` entries; the first hi of
    each is in `fences`.
    """
    left = np.flatnonzero(~found)
    for r in range(runs.shape[0]):
        count, width, fence = runs[r, COUNT], runs[r, WIDTH], runs[r, FENCES]
        pages = (count + page - 1) // page
        words, his = words_at(runs[r, ADDRESS], count * width), words_at(runs[r, HIS], count)
        known = 0
        missing = 0
        for n in range(left.size):
            i = left[n]
            known = pages_before(fences, fence, pages, known, hi[i])
            end = known
            # pages may begin with the same hi
            while end < pages and np.uint64(fences[fence + end, 0]) == hi[i]:
                end += 1
            first, last = max(known - 1, 0) * page, min(end * page, count)
            place = place_of(words, his, width, first, last, hi[i], lo[i])
            if place < 0:
                left[missing] = i
                missing += 1
                continue
            found[i] = True
            for w in range(out.shape[1]):
                out[i, w] = words[place * width + w]
        left = left[:missing]


@kernel
def place_of(
    words: Ints, his: Ints, width: int, first: int, end: int, hi: np.uint64, lo: np.uint64
) -> int:
    """Return which entry, of those between two, is that of an identity; -1 if none is."""
    last = end
    while first < last:
        middle = (first + last) >> 1
        high = np.uint64(his[middle])
        if high < hi or (high == hi and np.uint64(words[middle * width + 1]) < lo):
            first = middle + 1
        else:
            last = middle
    is_there = first < end and np.uint64(his[first]) == hi
    return first if is_there and np.uint64(words[first * width + 1]) == lo else -1


@kernel
def merge_runs(runs: Table, places: Ints, out: Table) -> int:
    """Merge runs, the oldest first, from their places on until `out` is full; return how many.

    Of several entries of a group the newest stays. Places are moved on. An entry is cut to what
    `out` has room for.
    """
    heads = np.empty((runs.shape[0], 2), dtype=np.uint64)
    for r in range(runs.shape[0]):
        if places[r] < runs[r, COUNT]:
            read_head(runs, r, places[r], heads)
    filled = 0
    while filled < out.shape[0]:
        chosen = -1
        for r in range(runs.shape[0]):
            if places[r] == runs[r, COUNT]:
                continue
            if chosen >= 0:
                same = heads[r, 0] == heads[chosen, 0]
                if heads[r, 0] > heads[chosen, 0] or (same and heads[r, 1] > heads[chosen, 1]):
                    continue
            chosen = r
        if chosen < 0:
            break
        width = runs[chosen, WIDTH]
        words = words_at(runs[chosen, ADDRESS] + 8 * width * places[chosen], width)
        for w in range(out.shape[1]):
            out[filled, w] = words[w]
        filled += 1
        high, low = heads[chosen, 0], heads[chosen, 1]
        for r in range(chosen + 1):
            if places[r] == runs[r, COUNT] or heads[r, 0] != high or heads[r, 1] != low:
                continue
            places[r] += 1
            if places[r] < runs[r, COUNT]:
                read_head(runs, r, places[r], heads)
    return filled


@kernel
def read_head(runs: Table, r: int, place: int, heads: Ids) -> None:
    """Fill in the identity of an entry of a run."""
    words = words_at(runs[r, ADDRESS] + 8 * runs[r, WIDTH] * place, 2)
    heads[r, 0] = np.uint64(words[0])
    heads[r, 1] = np.uint64(words[1])


@kernel
def order_identities(hi: Ids, lo: Ids, order: Ints) -> bool:
    """Fill in the stable order of identities; tell whether it is, as it is not if they are uneven.

    Their first bits tell where each belongs, about; then those that are behind a greater one move
    up, a few places for each on average or not at all.
    """
    bits = 1
    while bits < MOST_BITS and 1 << bits < hi.size:
        bits += 1
    shift = np.uint64(64 - bits)
    ends = np.zeros((1 << bits) + 1, dtype=np.int64)
    for i in range(hi.size):
        ends[np.int64(hi[i] >> shift) + 1] += 1
    for b in range(1, ends.size):
        ends[b] += ends[b - 1]
    for i in range(hi.size):
        bucket = np.int64(hi[i] >> shift)
        order[ends[bucket]] = i
        ends[bucket] += 1
    moves = 8 * hi.size
    for i in range(1, hi.size):
        at = order[i]
        j = i
        while j > 0:
            before = order[j - 1]
            if hi[before] < hi[at] or (hi[before] == hi[at] and lo[before] <= lo[at]):
                break
            order[j] = before
            j -= 1
            moves -= 1
        order[j] = at
        if moves < 0:
            return False
    return True
