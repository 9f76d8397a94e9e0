"""Lookups in and merges of sorted runs of entries of groups.

Idea: a *run* is described by the address of its entries, their number, the words of each, the first
of its *guides*, and the addresses of its *fences* and of a contiguous copy of all high words: a
group whose high word is not in a run is never looked up among its entries. A fence has the first
id_high of a page; a guide, in memory, has that of `GUIDED` pages, so one step reads few fences. Ids
are looked up in order, so each run is traversed once, in steps that grow until they are too large.

Invariants:
1. An entry is found in the first run that has it (`test_parity_entries_in_runs`).
2. Merging keeps the newest entry of a group (`test_parity_merging_runs`).
3. Ids that look like hashes are sorted, others are left alone
   (`test_parity_the_order_of_identities`).

Cost: O(log entries of a page) per lookup and run; one pass to merge; O(ids) to sort them.
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
GUIDES = 3
FENCES = 4
HIGH_WORDS = 5
RUN = 6

#: words of a fence or guide: the first id_high and the earliest timer
FENCE = 2
#: pages of a guide
GUIDED = 256

#: maximum leading bits of ids used to sort them
MOST_BITS = 20
#: ids with the same first bits from which on they are ordered by their second halves before
CROWDED = 16


@kernel
def begin_before(fences: Ints, known: int, end: int, id_high: np.uint64) -> int:
    """Return how many fences of a sorted run before `end` begin before `id_high`, from `known`."""
    step = 1
    while known + step <= end and np.uint64(fences[FENCE * (known + step - 1)]) < id_high:
        known += step
        step *= 2
    last = min(known + step - 1, end)
    while known < last:
        middle = (known + last) >> 1
        if np.uint64(fences[FENCE * middle]) < id_high:
            known = middle + 1
        else:
            last = middle
    return known


@kernel
def find_in_runs(
    runs: Table, guides: Ints, page: int, id_high: Ids, id_low: Ids, found: Mask, out: Table
) -> None:
    """Fill in the entries, in a sorted run, of sorted ids that are not found yet.

    If several runs have an entry, the first one counts. Pages have `page` entries.
    """
    left = np.flatnonzero(~found)
    for r in range(runs.shape[0]):
        count, width = runs[r, COUNT], runs[r, WIDTH]
        pages = (count + page - 1) // page
        parts = (pages + GUIDED - 1) // GUIDED
        mine = guides[FENCE * runs[r, GUIDES] : FENCE * (runs[r, GUIDES] + parts)]
        fences = words_at(runs[r, FENCES], FENCE * pages)
        words, high_words = (
            words_at(runs[r, ADDRESS], count * width),
            words_at(runs[r, HIGH_WORDS], count),
        )
        part = 0
        known = 0
        missing = 0
        for n in range(left.size):
            i = left[n]
            part = begin_before(mine, part, parts, id_high[i])
            known = max(known, (part - 1) * GUIDED)
            known = begin_before(fences, known, min(part * GUIDED, pages), id_high[i])
            end = known
            # pages may begin with the same id_high
            while end < pages and np.uint64(fences[FENCE * end]) == id_high[i]:
                end += 1
            first, last = max(known - 1, 0) * page, min(end * page, count)
            place = place_of(words, high_words, width, first, last, id_high[i], id_low[i])
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
    words: Ints,
    high_words: Ints,
    width: int,
    first: int,
    end: int,
    id_high: np.uint64,
    id_low: np.uint64,
) -> int:
    """Return which entry of a sorted run, between two positions, has an id; -1 if none."""
    last = end
    while first < last:
        middle = (first + last) >> 1
        high = np.uint64(high_words[middle])
        if high < id_high or (high == id_high and np.uint64(words[middle * width + 1]) < id_low):
            first = middle + 1
        else:
            last = middle
    is_there = first < end and np.uint64(high_words[first]) == id_high
    return first if is_there and np.uint64(words[first * width + 1]) == id_low else -1


@kernel
def merge_runs(runs: Table, places: Ints, out: Table) -> int:
    """Merge sorted runs of entries, oldest first, until `out` is full; return how many.

    Of several entries of a group, the newest stays. Places are advanced. An entry is truncated to
    the width of `out`.
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
    """Fill in the id of an entry of a sorted run."""
    words = words_at(runs[r, ADDRESS] + 8 * runs[r, WIDTH] * place, 2)
    heads[r, 0] = np.uint64(words[0])
    heads[r, 1] = np.uint64(words[1])


@kernel
def order_identities(id_high: Ids, id_low: Ids, order: Ints) -> bool:
    """Fill in the order of ids for lookups in a sorted run; return if it is valid.

    Their first bits give the approximate position of each. Ids of groups inside others begin alike,
    so where many do, they are brought into the order of their second halves before. Then an id
    after a greater one moves forward, a few places on average, or the attempt is given up.
    """
    bits = 1
    while bits < MOST_BITS and 1 << bits < id_high.size:
        bits += 1
    half = np.uint64(32)
    shift = np.uint64(64 - bits)
    ends = np.zeros((1 << bits) + 1, dtype=np.int64)
    for i in range(id_high.size):
        ends[np.int64(id_high[i] >> shift) + 1] += 1
    given = np.arange(id_high.size)
    if ends.max() > CROWDED:
        inner = np.zeros((1 << bits) + 1, dtype=np.int64)
        for i in range(id_high.size):
            inner[np.int64((id_high[i] << half) >> shift) + 1] += 1
        for b in range(1, inner.size):
            inner[b] += inner[b - 1]
        for i in range(id_high.size):
            bucket = np.int64((id_high[i] << half) >> shift)
            given[inner[bucket]] = i
            inner[bucket] += 1
    for b in range(1, ends.size):
        ends[b] += ends[b - 1]
    for place in given:
        bucket = np.int64(id_high[place] >> shift)
        order[ends[bucket]] = place
        ends[bucket] += 1
    moves = 8 * id_high.size
    for i in range(1, id_high.size):
        at = order[i]
        j = i
        while j > 0:
            before = order[j - 1]
            if id_high[before] < id_high[at] or (
                id_high[before] == id_high[at] and id_low[before] <= id_low[at]
            ):
                break
            order[j] = before
            j -= 1
            moves -= 1
        order[j] = at
        if moves < 0:
            return False
    return True
