"""The rows of many groups in one heap of small blocks, chained by group and synopsis.

Idea: a *directory* `int64[groups, words]` has a row for each group: its id, then `PARTS` words for
each synopsis, beginning at column `at`. A synopsis' words in memory are a chain of blocks of equal
size; the chain's last block is filled before a new one is taken, so rows straddle blocks. Numbers
of blocks are stored plus one: zero is "none". A chain is freed by splicing it into the free list as
a whole; that list is sorted now and then, or groups would end up scattered over the heap. The block
with the last *clean* word is recorded, so the new words of a large group are found without
traversing the rest. Replacing words overwrites the existing blocks.

Invariants:
1. Words appended to a group are gathered in that order, whatever happens to other groups
   (`test_parity_chains_beside_lists`).
2. Every block is in one chain, in the free list, or above the blocks ever used (same test).
3. `append` stops before the row for which there are too few blocks, `replace` before the group, and
   writes nothing of it (`test_append_stops_where_blocks_end`,
   `test_replace_stops_before_the_group_without_blocks`).
4. Sorting the free blocks loses none of them (`test_parity_free_blocks_in_order`).
5. Worn words are those of rows that cancel others, twice, or of all rows (`test_worn_words`).

Cost: append, replace and gather touch each word once, and a cache line of the directory per row or
group; freeing is O(groups), sorting the free list O(blocks).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from icestream.core.arrays import Ints, Mask, Table
from icestream.kernels.compile import kernel

Links = npt.NDArray[np.int32]

#: words of a group before those of its synopses
ID_HIGH = 0
ID_LOW = 1
#: number of the chunk that last accessed the group; 0 for a free slot
STAMP = 2
#: number of the call that pins the group in memory
PIN = 3
#: whether the cold index still has an entry of it
PAGED = 4
#: access count, halved from time to time
HEAT = 5
#: words of a classifier
SCORES = 6
GROUP = 8

#: words of a synopsis of a group: its blocks and words in memory
HEAD = 0
TAIL = 1
WORDS = 2
#: words in memory, from the first on, that the log has too, and the block with the last of them
CLEAN = 3
MARK = 4
FLAGS = 5
#: latest expiry of anything, in memory or behind the root
EXPIRY = 6
#: marker of the newest extent
ROOT = 7
#: words behind the root
COLD = 8
#: ordinal of the oldest extent in the upper half, extents in the chain in the lower
CHAIN = 9
#: latest expiry behind the root
ROOT_EXPIRY = 10
DUE = 11
PARTS = 12

#: memory has all rows, those behind the root as well
WHOLE = 1
#: rows behind the root were replaced
STALE = 2
#: `DUE` is not on the log
REMINDED = 4
#: its rows were read while cold, and left on the log
ASKED = 8
#: bits of `FLAGS` for flags; the others count *worn* words, those that may cancel or replace others
FLAG_BITS = 8
PLAIN_FLAGS = (1 << FLAG_BITS) - 1

#: places in the facts of a heap: first free block, free blocks, blocks ever used
FREE = 0
FREE_COUNT = 1
USED = 2
HEAP_FACTS = 3

#: the root of a group that was never written, as int64
NO_ROOT = -1


@kernel
def take_block(facts: Ints, links: Links) -> int:
    """Return a free block of the heap of groups; there must be one."""
    block = facts[FREE] - 1
    if block >= 0:
        facts[FREE] = links[block]
        facts[FREE_COUNT] -= 1
    else:
        block = facts[USED]
        facts[USED] += 1
    links[block] = 0
    return int(block)


@kernel
def extend(
    table: Table,
    at: int,
    slot: int,
    blocks: Table,
    links: Links,
    facts: Ints,
    words: Ints,
    begin: int,
    end: int,
) -> None:
    """Append words to the chain of blocks of a group in the heap; there must be enough blocks."""
    size = blocks.shape[1]
    count = table[slot, at + WORDS]
    block = table[slot, at + TAIL] - 1
    for i in range(begin, end):
        place = count % size
        if place == 0:
            fresh = take_block(facts, links)
            if block < 0:
                table[slot, at + HEAD] = fresh + 1
            else:
                links[block] = fresh + 1
            block = fresh
        blocks[block, place] = words[i]
        count += 1
    table[slot, at + TAIL] = block + 1
    table[slot, at + WORDS] = count


@kernel
def append(
    table: Table,
    at: int,
    blocks: Table,
    links: Links,
    facts: Ints,
    slots: Ints,
    words: Ints,
    offsets: Ints,
    first: int,
    expiry_at: int,
    watermark: int,
) -> int:
    """Append rows from `first` on to their groups in the heap; return the first not appended.

    It stops when blocks run out. Expired rows are left out. `expiry_at` is the word of a
    row with its expiry, or -1.
    """
    size = blocks.shape[1]
    for i in range(first, slots.size):
        begin = offsets[i]
        end = offsets[i + 1]
        expiry = np.int64(9223372036854775807)
        if expiry_at >= 0:
            expiry = words[begin + expiry_at]
            if expiry <= watermark:
                continue
        slot = slots[i]
        count = table[slot, at + WORDS]
        more = (count + end - begin + size - 1) // size - (count + size - 1) // size
        if more > facts[FREE_COUNT] + blocks.shape[0] - facts[USED]:
            return i
        extend(table, at, slot, blocks, links, facts, words, begin, end)
        if expiry > table[slot, at + EXPIRY]:
            table[slot, at + EXPIRY] = expiry
    return int(slots.size)


@kernel
def wear(table: Table, at: int, slots: Ints, words: Ints, offsets: Ints, sign_at: int) -> None:
    """Count the worn words of the groups to which rows are appended.

    A row whose word at `sign_at` is negative cancels another one of its size. If `sign_at` is -1,
    any row may replace another.
    """
    for i in range(slots.size):
        size = offsets[i + 1] - offsets[i]
        if sign_at < 0:
            table[slots[i], at + FLAGS] += size << FLAG_BITS
        elif words[offsets[i] + sign_at] < 0:
            table[slots[i], at + FLAGS] += 2 * size << FLAG_BITS


@kernel
def install(
    table: Table,
    at: int,
    blocks: Table,
    links: Links,
    facts: Ints,
    slots: Ints,
    words: Ints,
    offsets: Ints,
    cleans: Ints,
) -> None:
    """Give a run of words, some of them clean, to each of some groups that have none in the heap.

    There must be enough blocks.
    """
    for k in range(slots.size):
        slot, begin = slots[k], offsets[k]
        clean = begin + cleans[k]
        extend(table, at, slot, blocks, links, facts, words, begin, clean)
        table[slot, at + CLEAN] = cleans[k]
        table[slot, at + MARK] = table[slot, at + TAIL]
        extend(table, at, slot, blocks, links, facts, words, clean, offsets[k + 1])


@kernel
def overwrite(
    table: Table,
    at: int,
    slot: int,
    blocks: Table,
    links: Links,
    facts: Ints,
    words: Ints,
    offsets: Ints,
    first: int,
    end: int,
    expiry_at: int,
    watermark: int,
    spare: int,
) -> int:
    """Write rows that have not expired over a group's blocks in the heap; return its last.

    Blocks are added if it is too short, and its last `spare` ones freed.
    """
    size = blocks.shape[1]
    last = -1
    block = table[slot, at + HEAD] - 1
    place = size
    for r in range(first, end):
        if expiry_at >= 0 and words[offsets[r] + expiry_at] <= watermark:
            continue
        for i in range(offsets[r], offsets[r + 1]):
            if place == size:
                if block < 0:
                    block = take_block(facts, links)
                    if last < 0:
                        table[slot, at + HEAD] = block + 1
                    else:
                        links[last] = block + 1
                last = block
                block = links[last] - 1
                place = 0
            blocks[last, place] = words[i]
            place += 1
    if spare > 0:
        links[table[slot, at + TAIL] - 1] = facts[FREE]
        facts[FREE] = block + 1
        facts[FREE_COUNT] += spare
    if last >= 0:
        links[last] = 0
    else:
        table[slot, at + HEAD] = 0
    return last


@kernel
def replace(
    table: Table,
    at: int,
    blocks: Table,
    links: Links,
    facts: Ints,
    slots: Ints,
    words: Ints,
    offsets: Ints,
    bounds: Ints,
    first: int,
    expiry_at: int,
    watermark: int,
    is_logged: bool,
) -> int:
    """Replace all rows in the heap of groups from `first` on; return where it stopped.

    Group k has the rows between its bounds, row r the words between its offsets. It stops when
    blocks run out. Expired rows are left out. Rows on the log become stale if they have to be
    hidden, otherwise they are forgotten.
    """
    size = blocks.shape[1]
    for k in range(first, slots.size):
        slot = slots[k]
        count = np.int64(0)
        latest = np.int64(-9223372036854775808)
        for r in range(bounds[k], bounds[k + 1]):
            expiry = np.int64(9223372036854775807)
            if expiry_at >= 0:
                expiry = words[offsets[r] + expiry_at]
                if expiry <= watermark:
                    continue
            latest = max(latest, expiry)
            count += offsets[r + 1] - offsets[r]
        held = (table[slot, at + WORDS] + size - 1) // size
        needed = (count + size - 1) // size
        if needed - held > facts[FREE_COUNT] + blocks.shape[0] - facts[USED]:
            return k
        last = overwrite(
            table,
            at,
            slot,
            blocks,
            links,
            facts,
            words,
            offsets,
            bounds[k],
            bounds[k + 1],
            expiry_at,
            watermark,
            held - needed,
        )
        table[slot, at + TAIL] = last + 1
        table[slot, at + WORDS] = count
        table[slot, at + CLEAN] = 0
        table[slot, at + MARK] = 0
        table[slot, at + EXPIRY] = latest
        table[slot, at + COLD] = 0
        table[slot, at + CHAIN] = 0
        table[slot, at + FLAGS] = table[slot, at + FLAGS] & PLAIN_FLAGS | WHOLE
        if is_logged:
            if table[slot, at + ROOT] != NO_ROOT:
                table[slot, at + FLAGS] |= STALE
        else:
            table[slot, at + ROOT] = NO_ROOT
            table[slot, at + ROOT_EXPIRY] = -9223372036854775808
    return int(slots.size)


@kernel
def drop(table: Table, at: int, size: int, links: Links, facts: Ints, slots: Ints) -> None:
    """Free the blocks of groups in the heap; blocks have `size` words."""
    for k in range(slots.size):
        free(table, at, slots[k], size, links, facts)


@kernel
def free(table: Table, at: int, slot: int, size: int, links: Links, facts: Ints) -> None:
    """Free the blocks of a group in the heap; blocks have `size` words."""
    head = table[slot, at + HEAD]
    if head != 0:
        links[table[slot, at + TAIL] - 1] = facts[FREE]
        facts[FREE] = head
        facts[FREE_COUNT] += (table[slot, at + WORDS] + size - 1) // size
    for part in (HEAD, TAIL, WORDS, CLEAN, MARK):
        table[slot, at + part] = 0


@kernel
def sort_free(links: Links, facts: Ints, is_free: Mask) -> None:
    """Sort the free blocks of the heap by position, so that blocks taken together are adjacent.

    `is_free` has a place, False, for each block ever used.
    """
    block = facts[FREE] - 1
    while block >= 0:
        is_free[block] = True
        block = links[block] - 1
    facts[FREE] = 0
    for block in range(facts[USED] - 1, -1, -1):
        if is_free[block]:
            links[block] = facts[FREE]
            facts[FREE] = block + 1


@kernel
def gather(
    table: Table,
    at: int,
    blocks: Table,
    links: Links,
    slots: Ints,
    skipped: Ints,
    out: Ints,
    places: Ints,
) -> None:
    """Copy words of groups out of the heap, all but the first `skipped`; advance `places`."""
    size = blocks.shape[1]
    for k in range(slots.size):
        slot = slots[k]
        count = table[slot, at + WORDS]
        block = table[slot, at + HEAD] - 1
        target = places[k]
        begin = skipped[k]
        done = 0
        if begin > 0 and begin == table[slot, at + CLEAN]:
            block = table[slot, at + MARK] - 1
            done = (begin - 1) // size * size
        while done < count:
            last = min(size, count - done)
            for w in range(max(0, begin - done), last):
                out[target] = blocks[block, w]
                target += 1
            done += size
            block = links[block] - 1
        places[k] = target


@kernel
def sift(
    words: Ints,
    offsets: Ints,
    cleans: Ints,
    expiry_at: int,
    watermark: int,
    rows: Ints,
    live_cleans: Ints,
    latest: Ints,
) -> None:
    """Move rows of groups from the heap that have not expired together, in place.

    Group k's are between its offsets. Fills in, for each group, its rows, how many of its first
    `cleans` words are left, and the latest expiry; and updates `offsets`.
    """
    target = np.int64(0)
    begin = offsets[0]
    for k in range(rows.size):
        end = offsets[k + 1]
        offsets[k] = target
        rows[k] = 0
        live_cleans[k] = 0
        latest[k] = np.int64(-9223372036854775808)
        at = begin
        while at < end:
            size = words[at] >> 32
            expiry = np.int64(9223372036854775807)
            if expiry_at >= 0:
                expiry = words[at + expiry_at]
            if expiry_at < 0 or expiry > watermark:
                rows[k] += 1
                if at - begin < cleans[k]:
                    live_cleans[k] += size
                if expiry > latest[k]:
                    latest[k] = expiry
                if target == at:
                    target += size
                else:
                    for w in range(size):
                        words[target + w] = words[at + w]
                    target += size
            at += size
        begin = end
    offsets[rows.size] = target
