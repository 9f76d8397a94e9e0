"""Groups in one row each: their entry, and all words of small ones.

Idea: a row begins with some columns of the directory, the *entry*, in which the share of worn words
is stored between oldest ordinal and length of a chain; then comes a word with the access count and
how often counts had been halved; then one with the number of words of each synopsis, `BITS` bits
for each, and the words themselves. Only a group that is whole in memory and small enough has such
words; all zeros mean that it has none. A group that leaves the directory is *stowed*: its row is
filled in and its blocks are freed.

Invariants:
1. Packed words are restored, and nothing else changes (`test_parity_small_groups_in_rows`).
2. Entries are copied as columns are (`test_parity_entries_of_groups`), with about as many worn
   words (`test_an_entry_has_the_share_of_worn_words`).
3. Planned extents have the words that were packed (`test_parity_extents_of_inline_groups`).

Cost: one visit to each group, one copy of its words.
"""

from __future__ import annotations

import numpy as np

from icestream.core.arrays import Ints, Table
from icestream.kernels.compile import kernel
from icestream.kernels.groups.extents import BACK, BACK_LATEST, LATEST, LENGTH, SHAPE
from icestream.kernels.groups.heap import (
    CHAIN,
    CLEAN,
    COLD,
    EXPIRY,
    FLAG_BITS,
    FLAGS,
    FREE_COUNT,
    GROUP,
    HEAD,
    HEAT,
    ID_HIGH,
    ID_LOW,
    MARK,
    NO_ROOT,
    PAGED,
    PARTS,
    ROOT,
    ROOT_EXPIRY,
    TAIL,
    USED,
    WHOLE,
    WORDS,
    Links,
    extend,
    free,
)

#: words of the id at the start of an entry
IDENTITY = 2
#: words after an entry: access count and its halvings; numbers of words
BESIDE = 2
#: bits of the first of them for each, and the greatest number there
HEAT_BITS = 31
MOST_HEAT = (1 << HEAT_BITS) - 1
#: bits of the first word for the number of words of a synopsis
BITS = 6
#: maximum words of a synopsis, and maximum number of synopses
MOST_WORDS = (1 << BITS) - 1
MOST_SYNOPSES = 62 // BITS
#: bits of a chain's length in an entry, and above them of the share of worn words
LENGTH_BITS = 16
ALL_WORN = (1 << 16) - 1
_LEAST = -9223372036854775808
_MOST = 9223372036854775807


@kernel
def packed_at(entry: int) -> int:
    """Return where packed words begin in the row of an inline group with `entry` words before."""
    return entry + BESIDE - 1


@kernel
def adopt(table: Table, columns: Ints, slots: Ints, rows: Table) -> None:
    """Fill in the log columns of each group that was just opened, from its inline row."""
    for k in range(slots.size):
        slot = slots[k]
        for c in range(IDENTITY, columns.size):
            table[slot, columns[c]] = rows[k, c]
        for at in range(GROUP, table.shape[1], PARTS):
            share = table[slot, at + CHAIN] >> LENGTH_BITS & ALL_WORN
            worn = share * table[slot, at + COLD] // ALL_WORN
            table[slot, at + CHAIN] -= share << LENGTH_BITS
            whole = 0 if table[slot, at + ROOT] != NO_ROOT else WHOLE
            table[slot, at + FLAGS] = worn << FLAG_BITS | whole
            table[slot, at + EXPIRY] = table[slot, at + ROOT_EXPIRY]


@kernel
def copy_entry(table: Table, columns: Ints, slot: int, rows: Table, k: int) -> None:
    """Fill in the entry of a group, which begins row `k`."""
    for c in range(columns.size):
        rows[k, c] = table[slot, columns[c]]
        at = columns[c] - CHAIN
        if at >= GROUP and (at - GROUP) % PARTS == 0:
            worn, words = table[slot, at + FLAGS] >> FLAG_BITS, table[slot, at + COLD]
            if worn > 0 and words > 0:
                rows[k, c] |= min(-(-worn * ALL_WORN // words), ALL_WORN) << LENGTH_BITS


@kernel
def copy_entries(table: Table, columns: Ints, slots: Ints, rows: Table) -> None:
    """Fill in the entries of inline groups."""
    for k in range(slots.size):
        copy_entry(table, columns, slots[k], rows, k)


@kernel
def warm(table: Table, entry: int, slots: Ints, rows: Table, halved: int) -> None:
    """Restore the access counts of inline groups, halved as often as others were meanwhile."""
    for k in range(slots.size):
        heat, before = rows[k, entry] >> HEAT_BITS, rows[k, entry] & MOST_HEAT
        table[slots[k], HEAT] = heat >> min(halved - before, 62)
        table[slots[k], PAGED] = 1


@kernel
def stow(
    table: Table,
    columns: Ints,
    blocks: Table,
    links: Links,
    facts: Ints,
    slots: Ints,
    halved: int,
    rows: Table,
) -> None:
    """Make groups inline: fill in entry, access count and words of each, and free its blocks.

    It gets no words unless all are in memory and fit.
    """
    first = packed_at(columns.size)
    for k in range(slots.size):
        slot = slots[k]
        copy_entry(table, columns, slot, rows, k)
        rows[k, columns.size] = min(table[slot, HEAT], MOST_HEAT) << HEAT_BITS | halved
        rows[k, first] = pack(table, blocks, links, slot, rows, k, first + 1)
        for at in range(GROUP, table.shape[1], PARTS):
            free(table, at, slot, blocks.shape[1], links, facts)


@kernel
def pack(
    table: Table, blocks: Table, links: Links, slot: int, rows: Table, k: int, first: int
) -> int:
    """Copy the words of a group into its inline row, then zeros; return how many by synopsis."""
    size = blocks.shape[1]
    total = np.int64(0)
    fits = True
    for at in range(GROUP, table.shape[1], PARTS):
        total += table[slot, at + WORDS]
        fits &= table[slot, at + FLAGS] & WHOLE != 0
    counts = np.int64(0)
    target = first
    if fits and total <= rows.shape[1] - first:
        for at in range(GROUP, table.shape[1], PARTS):
            count = table[slot, at + WORDS]
            counts |= count << ((at - GROUP) // PARTS * BITS)
            block = table[slot, at + HEAD] - 1
            for w in range(count):
                if w > 0 and w % size == 0:
                    block = links[block] - 1
                rows[k, target + w] = blocks[block, w % size]
            target += count
    for w in range(target, rows.shape[1]):
        rows[k, w] = 0
    return int(counts)


@kernel
def blocks_needed(rows: Table, first: int, synopses: int, size: int) -> int:
    """Return the blocks, of `size` words, that all inline groups need when unpacked."""
    blocks = 0
    for k in range(rows.shape[0]):
        for s in range(synopses):
            blocks += ((rows[k, first] >> (s * BITS) & MOST_WORDS) + size - 1) // size
    return int(blocks)


@kernel
def unpack(
    table: Table, blocks: Table, links: Links, facts: Ints, slots: Ints, rows: Table, first: int
) -> None:
    """Restore the words of inline groups that have none in memory, until blocks run out.

    They are clean; a synopsis without a root stays without words.
    """
    size = blocks.shape[1]
    for k in range(slots.size):
        slot = slots[k]
        begin = first + 1
        for at in range(GROUP, table.shape[1], PARTS):
            count = rows[k, first] >> ((at - GROUP) // PARTS * BITS) & MOST_WORDS
            free = facts[FREE_COUNT] + blocks.shape[0] - facts[USED]
            fits = (count + size - 1) // size <= free
            if count > 0 and fits and table[slot, at + ROOT] != NO_ROOT:
                extend(table, at, slot, blocks, links, facts, rows[k], begin, begin + count)
                table[slot, at + CLEAN] = count
                table[slot, at + MARK] = table[slot, at + TAIL]
                table[slot, at + FLAGS] |= WHOLE
            begin += int(count)


@kernel
def plan_extents(
    rows: Table, first: int, synopsis: int, width: int, headers: Table, begins: Ints
) -> None:
    """Fill in headers of extents with all words of inline groups, and where those begin.

    Rows of the synopsis have `width` words each, and never expire.
    """
    for k in range(rows.shape[0]):
        counts = rows[k, first]
        begin = k * rows.shape[1] + first + 1
        for s in range(synopsis):
            begin += counts >> (s * BITS) & MOST_WORDS
        count = counts >> (synopsis * BITS) & MOST_WORDS
        headers[k, ID_HIGH] = rows[k, ID_HIGH]
        headers[k, ID_LOW] = rows[k, ID_LOW]
        headers[k, SHAPE] = 1 << 32 | count // width
        headers[k, LENGTH] = count
        headers[k, BACK] = NO_ROOT
        headers[k, LATEST] = _MOST
        headers[k, BACK_LATEST] = _LEAST
        begins[k] = begin
