"""Extents: the rows of several groups in one record of the log, found by a binary search.

Idea: a record is the number of its extents, a header of `HEADER` words for each, sorted by
identity, then the words of their rows in the same order. A header says where its words begin, so an
extent is found in a record with a few comparisons and copied without a look at the others.

Invariants:
1. An extent that was put in is found, and no other (`test_parity_extents_in_a_record`).

Cost: O(log extents of the record) to find, one copy of the words.
"""

from __future__ import annotations

import numpy as np

from icestream.kernels.compile import kernel
from icestream.kernels.synopses.heap import GROUP, HEAT, HI, LO, STAMP
from icestream.kernels.windows.fold import Ids, Index
from icestream.kernels.windows.groups import insert
from icestream.kernels.words import Ints, Table

#: words of a header: identity, rows and place in the chain, flags and words, previous extent,
#: latest expiry of the chain from here on and of the chain before
SHAPE = 2
LENGTH = 3
BACK = 4
LATEST = 5
BACK_LATEST = 6
HEADER = 7
#: part of `LENGTH` that is the number of words
WORDS = 0xFFFFFFFF
#: flag in `LENGTH`: no row behind this extent has a better rank than any in it
IN_ORDER = 1 << 32

#: places in the facts of a directory: first free slot plus one, slots ever used, free slots
FREE_SLOT = 0
USED_SLOTS = 1
FREE_SLOTS = 2


@kernel
def find_extents(record: Ints, hi: Ids, lo: Ids, found: Ints) -> int:
    """Fill `found` with the number of each identity's extent, -1 for none; return the words."""
    total = 0
    count = record[0]
    for i in range(hi.size):
        first = np.int64(0)
        last = count
        while first < last:
            middle = (first + last) >> 1
            at = 1 + middle * HEADER
            high = np.uint64(record[at + HI])
            if high < hi[i] or (high == hi[i] and np.uint64(record[at + LO]) < lo[i]):
                first = middle + 1
            else:
                last = middle
        at = 1 + first * HEADER
        found[i] = -1
        if first < count and np.uint64(record[at]) == hi[i] and np.uint64(record[at + 1]) == lo[i]:
            found[i] = first
            total += record[at + LENGTH] & WORDS
    return total


def find_extents_reference(record: Ints, hi: Ids, lo: Ids, found: Ints) -> int:
    """Do what `find_extents` does, with a dictionary."""
    headers = record[1 : 1 + int(record[0]) * HEADER].reshape(-1, HEADER)
    highs, lows = (headers[:, column].view(np.uint64).tolist() for column in (HI, LO))
    identities = zip(highs, lows, strict=True)
    numbers = {identity: number for number, identity in enumerate(identities)}
    wanted = zip(hi.tolist(), lo.tolist(), strict=True)
    found[:] = [numbers.get(identity, -1) for identity in wanted]
    return int((headers[found[found >= 0], LENGTH] & WORDS).sum())


@kernel
def copy_extents(record: Ints, found: Ints, out: Ints, sizes: Ints) -> None:
    """Copy the words of extents to `out`, without gaps, and fill in how many each has."""
    count = record[0]
    data = 1 + count * HEADER
    begins = np.empty(count + 1, dtype=np.int64)
    begins[0] = data
    for e in range(count):
        begins[e + 1] = begins[e] + (record[1 + e * HEADER + LENGTH] & WORDS)
    target = 0
    for i in range(found.size):
        begin = begins[found[i]]
        sizes[i] = begins[found[i] + 1] - begin
        for w in range(sizes[i]):
            out[target + w] = record[begin + w]
        target += sizes[i]


def copy_extents_reference(record: Ints, found: Ints, out: Ints, sizes: Ints) -> None:
    """Do what `copy_extents` does, by slices."""
    count = int(record[0])
    headers = record[1 : 1 + count * HEADER].reshape(-1, HEADER)
    lengths = headers[:, LENGTH] & WORDS
    ends = 1 + count * HEADER + np.cumsum(lengths)
    sizes[:] = lengths[found]
    pieces = [record[ends[e] - lengths[e] : ends[e]] for e in found.tolist()]
    out[: int(sizes.sum())] = np.concatenate(pieces) if pieces else 0


@kernel
def copy_pieces(source: Ints, begins: Ints, sizes: Ints, out: Ints, places: Ints) -> None:
    """Copy pieces of `source` to `places` of `out`, and move those past them."""
    for i in range(begins.size):
        begin = begins[i]
        target = places[i]
        for w in range(sizes[i]):
            out[target + w] = source[begin + w]
        places[i] = target + sizes[i]


def copy_pieces_reference(source: Ints, begins: Ints, sizes: Ints, out: Ints, places: Ints) -> None:
    """Do what `copy_pieces` does, by slices."""
    for i, (begin, size) in enumerate(zip(begins.tolist(), sizes.tolist(), strict=True)):
        place = int(places[i])
        out[place : place + size] = source[begin : begin + size]
        places[i] = place + size


@kernel
def open_slots(
    index: Index, table: Table, facts: Ints, row: Ints, hi: Ids, lo: Ids, stamp: int, slots: Ints
) -> None:
    """Give each of some new, distinct groups a slot; there must be slots enough."""
    for i in range(hi.size):
        slot = facts[FREE_SLOT] - 1
        if slot >= 0:
            facts[FREE_SLOT] = table[slot, HI]
            facts[FREE_SLOTS] -= 1
        else:
            slot = facts[USED_SLOTS]
            facts[USED_SLOTS] += 1
        for w in range(row.size):
            table[slot, w] = row[w]
        table[slot, HI] = np.int64(hi[i])
        table[slot, LO] = np.int64(lo[i])
        table[slot, STAMP] = stamp
        insert(index, table, slot)
        slots[i] = slot


@kernel
def close_slots(table: Table, facts: Ints, slots: Ints) -> None:
    """Make slots free; they must be out of the index."""
    for k in range(slots.size):
        slot = slots[k]
        for w in range(GROUP):
            table[slot, w] = 0
        table[slot, HI] = facts[FREE_SLOT]
        facts[FREE_SLOT] = slot + 1
        facts[FREE_SLOTS] += 1


def used_slots_reference(table: Table, facts: Ints) -> dict[tuple[int, int], int]:
    """Return what `open_slots` and `close_slots` leave: the slot of each identity."""
    used = np.flatnonzero(table[: facts[USED_SLOTS], STAMP] != 0).tolist()
    return {(int(table[s, HI]) % 2**64, int(table[s, LO]) % 2**64): s for s in used}


@kernel
def stamp(table: Table, slots: Ints, chunk: int) -> None:
    """Note the chunk that names groups, and how often it does."""
    for k in range(slots.size):
        table[slots[k], STAMP] = chunk
        table[slots[k], HEAT] += 1


def stamp_reference(table: Table, slots: Ints, chunk: int) -> None:
    """Do what `stamp` does, at once."""
    table[slots, STAMP] = chunk
    np.add.at(table[:, HEAT], slots, 1)
