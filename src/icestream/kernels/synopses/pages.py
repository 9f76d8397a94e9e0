"""Sorted entries of groups in pages: found by a binary search inside a stretch of them.

Invariants:
1. An entry that is there is found, and no other (`test_parity_entries_in_pages`).
2. Merging keeps the newer of two entries of a group (`test_parity_merging_entries`).
3. Identities that look like hashes are put in order, others left alone
   (`test_parity_the_order_of_identities`).

Cost: O(log entries of a page) per lookup; one pass to merge; O(identities) to order them.
"""

from __future__ import annotations

import numpy as np

from icestream.kernels.compile import kernel
from icestream.kernels.windows.fold import Ids
from icestream.kernels.words import Ints, Table

#: first bits of identities that are looked at to put them in order, at most
MOST_BITS = 20


@kernel
def find_entries(entries: Table, firsts: Ints, lasts: Ints, hi: Ids, lo: Ids, found: Ints) -> None:
    """Fill in the row of each identity between its first and last row, -1 if it is not there."""
    for i in range(hi.size):
        first = firsts[i]
        last = lasts[i]
        end = last
        while first < last:
            middle = (first + last) >> 1
            high = np.uint64(entries[middle, 0])
            if high < hi[i] or (high == hi[i] and np.uint64(entries[middle, 1]) < lo[i]):
                first = middle + 1
            else:
                last = middle
        found[i] = -1
        if first == end or np.uint64(entries[first, 0]) != hi[i]:
            continue
        if np.uint64(entries[first, 1]) == lo[i]:
            found[i] = first


def find_entries_reference(
    entries: Table, firsts: Ints, lasts: Ints, hi: Ids, lo: Ids, found: Ints
) -> None:
    """Do what `find_entries` does, by comparing with every row."""
    identities = entries[:, :2].view(np.uint64).tolist()
    for i, wanted in enumerate(zip(hi.tolist(), lo.tolist(), strict=True)):
        rows = range(int(firsts[i]), int(lasts[i]))
        found[i] = next((row for row in rows if identities[row] == list(wanted)), -1)


@kernel
def merge_entries(older: Table, newer: Table, out: Table) -> int:
    """Merge sorted entries into `out`, newer ones instead of older ones; return how many."""
    i = 0
    j = 0
    count = 0
    width = out.shape[1]
    while i < older.shape[0] or j < newer.shape[0]:
        side = 0
        if i == older.shape[0]:
            side = 1
        elif j < newer.shape[0]:
            old_hi = np.uint64(older[i, 0])
            new_hi = np.uint64(newer[j, 0])
            old_lo = np.uint64(older[i, 1])
            new_lo = np.uint64(newer[j, 1])
            if new_hi < old_hi or (new_hi == old_hi and new_lo < old_lo):
                side = 1
            elif new_hi == old_hi and new_lo == old_lo:
                side = 1
                i += 1
        if side == 0:
            for w in range(width):
                out[count, w] = older[i, w]
            count += 1
            i += 1
        else:
            for w in range(width):
                out[count, w] = newer[j, w]
            count += 1
            j += 1
    return count


def merge_entries_reference(older: Table, newer: Table) -> list[list[int]]:
    """Return what `merge_entries` makes, with a dictionary."""
    merged = {tuple(row[:2].view(np.uint64).tolist()): row.tolist() for row in older}
    merged |= {tuple(row[:2].view(np.uint64).tolist()): row.tolist() for row in newer}
    return [merged[identity] for identity in sorted(merged)]


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


def order_identities_reference(hi: Ids, lo: Ids) -> list[int]:
    """Return the order that `order_identities` fills in, by sorting pairs."""
    pairs = list(zip(hi.tolist(), lo.tolist(), strict=True))
    return sorted(range(len(pairs)), key=pairs.__getitem__)
