"""One pass over the directory for each step of reading groups and of writing them to the log.

Idea: a group's row in the directory is a few cache lines somewhere in memory, so what is asked of
many groups is asked in one visit of each. Lists of groups with something to do come from one pass
over the rows in the order in which they lie. Columns are those of `kernels.groups.heap`.

Invariants:
1. Each list has the slots that selecting by columns gives (`test_parity_lists_of_groups`).
2. Headers and columns are those that working column by column gives
   (`test_parity_describing_and_settling`).

Cost: O(groups passed), or O(slots) for a list of all; nothing is sorted.
"""

from __future__ import annotations

import numpy as np

from icestream.core.arrays import Ids, Ints, Mask, Table
from icestream.kernels.compile import kernel
from icestream.kernels.fold import Index
from icestream.kernels.groups.extents import (
    BACK,
    BACK_LATEST,
    LATEST,
    LENGTH,
    SHAPE,
)
from icestream.kernels.groups.heap import (
    CHAIN,
    CLEAN,
    COLD,
    DUE,
    EXPIRY,
    FLAGS,
    GROUP,
    HEAT,
    ID_HIGH,
    ID_LOW,
    MARK,
    NO_ROOT,
    PAGED,
    PARTS,
    PIN,
    PLAIN_FLAGS,
    REMINDED,
    ROOT,
    ROOT_EXPIRY,
    STALE,
    STAMP,
    TAIL,
    WHOLE,
    WORDS,
)
from icestream.kernels.hash_index import insert

#: places in the facts of a directory: first free slot plus one, slots ever used, free slots
FREE_SLOT = 0
USED_SLOTS = 1
FREE_SLOTS = 2
_LEAST = -9223372036854775808
_MOST = 9223372036854775807


# -- which groups --------------------------------------------------------------------------


@kernel
def list_news(table: Table, at: int, before: int, slots: Ints) -> int:
    """Pass over the directory: list groups with words not on the log, or stale ones there."""
    count = 0
    for slot in range(table.shape[0]):
        news = table[slot, at + WORDS] > table[slot, at + CLEAN]
        if (news or table[slot, at + FLAGS] & STALE) and 0 < table[slot, STAMP] < before:
            slots[count] = slot
            count += 1
    return count


@kernel
def list_over(table: Table, at: int, watermark: int, slots: Ints) -> int:
    """Pass over the directory: list groups that have rows, all of them expired."""
    count = 0
    for slot in range(table.shape[0]):
        if table[slot, at + EXPIRY] > watermark or table[slot, STAMP] == 0:
            continue
        if table[slot, at + WORDS] > 0 or table[slot, at + ROOT] != NO_ROOT:
            slots[count] = slot
            count += 1
    return count


@kernel
def list_held(table: Table, pin: int, before: int, slots: Ints) -> int:
    """Pass over the directory: list groups with words, another pin, accessed before a chunk."""
    count = 0
    for slot in range(table.shape[0]):
        stamp = table[slot, STAMP]
        if stamp == 0 or stamp >= before or table[slot, PIN] == pin:
            continue
        for at in range(GROUP, table.shape[1], PARTS):
            if table[slot, at + WORDS] > 0:
                slots[count] = slot
                count += 1
                break
    return count


@kernel
def list_residue(table: Table, at: int, before: int, slots: Ints) -> int:
    """Pass over the directory: list groups with words in memory on top of a cold root."""
    count = 0
    for slot in range(table.shape[0]):
        on_cold = table[slot, at + WORDS] > 0 and table[slot, at + FLAGS] & WHOLE == 0
        if on_cold and 0 < table[slot, STAMP] < before:
            slots[count] = slot
            count += 1
    return count


@kernel
def is_empty(table: Table, slot: int) -> bool:
    """Return, on a pass over the directory, whether a group has no rows anywhere and no timer."""
    for at in range(GROUP, table.shape[1], PARTS):
        if table[slot, at + WORDS] != 0 or table[slot, at + COLD] != 0:
            return False
        if table[slot, at + DUE] != _MOST or table[slot, at + FLAGS] & (STALE | REMINDED):
            return False
    return True


@kernel
def list_gone(table: Table, slots: Ints) -> int:
    """Pass over the directory: list empty groups that need not hide an older entry."""
    count = 0
    for slot in range(table.shape[0]):
        if table[slot, STAMP] != 0 and table[slot, PAGED] == 0 and is_empty(table, slot):
            slots[count] = slot
            count += 1
    return count


@kernel
def list_needed(table: Table, slots: Ints, out: Ints) -> int:
    """Pass over the directory: list positions of groups whose entries the cold index needs."""
    count = 0
    for i in range(slots.size):
        if table[slots[i], PAGED] != 0 or not is_empty(table, slots[i]):
            out[count] = i
            count += 1
    return count


# -- how much ------------------------------------------------------------------------------


@kernel
def words_of(
    table: Table, parts: Ints, slots: Ints, with_cold: bool, block: int, out: Ints
) -> None:
    """Pass over the directory: count the words of groups, those behind cold roots if asked.

    `parts` are the first columns of the synopses. Words in memory are rounded up to whole blocks
    of `block` words.
    """
    for i in range(slots.size):
        slot = slots[i]
        total = np.int64(0)
        for at in parts:
            total += (table[slot, at + WORDS] + block - 1) // block * block
            if with_cold and table[slot, at + FLAGS] & WHOLE == 0:
                total += table[slot, at + COLD]
        out[i] = total


@kernel
def known_words(table: Table, block: int) -> int:
    """Pass over the directory: count all words of groups, in whole blocks of `block` words."""
    total = np.int64(0)
    for slot in range(table.shape[0]):
        if table[slot, STAMP] == 0:
            continue
        for at in range(GROUP, table.shape[1], PARTS):
            words = table[slot, at + COLD] + table[slot, at + WORDS] - table[slot, at + CLEAN]
            total += (words + block - 1) // block * block
    return int(total)


@kernel
def measure(
    table: Table, at: int, slots: Ints, whole: Mask, skipped: Ints, offsets: Ints, cleans: Ints
) -> int:
    """Pass over the directory: find words in memory to take, new ones, or all of `whole` groups.

    `skipped` are the words left out, `cleans` the number of clean ones among the others. Returns
    how many groups are not whole in memory.
    """
    total = np.int64(0)
    cold = 0
    for i in range(slots.size):
        slot = slots[i]
        clean = table[slot, at + CLEAN]
        offsets[i] = total
        skipped[i] = 0 if whole[i] else clean
        cleans[i] = clean if whole[i] else 0
        total += table[slot, at + WORDS] - skipped[i]
        if table[slot, at + FLAGS] & WHOLE == 0:
            cold += 1
    offsets[slots.size] = total
    return cold


# -- writing -------------------------------------------------------------------------------


@kernel
def describe(
    table: Table,
    at: int,
    slots: Ints,
    whole: Mask,
    offsets: Ints,
    rows: Ints,
    latest: Ints,
    watermark: int,
    is_logged: bool,
    headers: Table,
    oldest: Ints,
    again: Mask,
    written: Ints,
) -> int:
    """Pass over the directory: fill in headers of extents with new rows; list those with any.

    `oldest` is the ordinal of the first extent of the chain, 0 if this is it; `again` marks groups
    that were whole on the log before.
    """
    count = 0
    for i in range(slots.size):
        slot = slots[i]
        root, root_expiry = table[slot, at + ROOT], table[slot, at + ROOT_EXPIRY]
        chain = table[slot, at + CHAIN]
        stale = table[slot, at + FLAGS] & STALE != 0
        lives = root != NO_ROOT and root_expiry > watermark
        follows = lives and not whole[i]
        hides = lives and stale and is_logged
        size = offsets[i + 1] - offsets[i]
        headers[i, ID_HIGH] = table[slot, ID_HIGH]
        headers[i, ID_LOW] = table[slot, ID_LOW]
        headers[i, LENGTH] = size
        if follows:
            headers[i, SHAPE] = ((chain & 0xFFFFFFFF) + 1) << 32 | rows[i]
            headers[i, BACK] = root
            headers[i, BACK_LATEST] = root_expiry
            oldest[i] = chain >> 32
        else:
            headers[i, SHAPE] = 1 << 32 | rows[i]
            headers[i, BACK] = NO_ROOT
            headers[i, BACK_LATEST] = _LEAST
            oldest[i] = 0
        headers[i, LATEST] = max(latest[i], root_expiry) if follows or hides else latest[i]
        again[i] = whole[i] and not stale and root != NO_ROOT
        if size > 0 or hides:
            written[count] = i
            count += 1
    return count


@kernel
def settle(
    table: Table,
    at: int,
    slots: Ints,
    whole: Mask,
    headers: Table,
    sizes: Ints,
    oldest: Ints,
    markers: Ints,
) -> None:
    """Pass over the directory: record what was written of groups; `NO_ROOT` is nothing.

    Words in memory are clean now. Groups that are only partly in memory are released by others. An
    extent that marks a group as empty is only for a restore: nothing points to it.
    """
    for i in range(slots.size):
        slot = slots[i]
        table[slot, at + CLEAN] = table[slot, at + WORDS]
        table[slot, at + MARK] = table[slot, at + TAIL]
        table[slot, at + FLAGS] &= ~STALE
        length = headers[i, SHAPE] >> 32
        is_gone = whole[i] if markers[i] == NO_ROOT else length == 1 and sizes[i] == 0
        if is_gone:
            table[slot, at + ROOT] = NO_ROOT
            table[slot, at + ROOT_EXPIRY] = _LEAST
            table[slot, at + COLD] = 0
            table[slot, at + CHAIN] = 0
            table[slot, at + FLAGS] = table[slot, at + FLAGS] & PLAIN_FLAGS | WHOLE
        elif markers[i] != NO_ROOT:
            first = oldest[i] if oldest[i] > 0 else markers[i] >> 32
            # a chain of one has no predecessor, whatever was there
            table[slot, at + COLD] = sizes[i] + (table[slot, at + COLD] if length > 1 else 0)
            table[slot, at + ROOT] = markers[i]
            table[slot, at + ROOT_EXPIRY] = headers[i, LATEST]
            table[slot, at + CHAIN] = first << 32 | length


@kernel
def open_slots(
    index: Index,
    table: Table,
    facts: Ints,
    row: Ints,
    id_high: Ids,
    id_low: Ids,
    stamp: int,
    slots: Ints,
) -> None:
    """Pass over new, distinct groups: give each a slot of the directory; there must be enough."""
    for i in range(id_high.size):
        slot = facts[FREE_SLOT] - 1
        if slot >= 0:
            facts[FREE_SLOT] = table[slot, ID_HIGH]
            facts[FREE_SLOTS] -= 1
        else:
            slot = facts[USED_SLOTS]
            facts[USED_SLOTS] += 1
        for w in range(row.size):
            table[slot, w] = row[w]
        table[slot, ID_HIGH] = np.int64(id_high[i])
        table[slot, ID_LOW] = np.int64(id_low[i])
        table[slot, STAMP] = stamp
        insert(index, table, slot)
        slots[i] = slot


@kernel
def close_slots(table: Table, facts: Ints, slots: Ints) -> None:
    """Pass over slots of the directory: make them free; they must be out of the index."""
    for k in range(slots.size):
        slot = slots[k]
        for w in range(GROUP):
            table[slot, w] = 0
        table[slot, ID_HIGH] = facts[FREE_SLOT]
        facts[FREE_SLOT] = slot + 1
        facts[FREE_SLOTS] += 1


@kernel
def compact_slots(table: Table, facts: Ints) -> None:
    """Pass over the directory: move open groups to the first slots, all out of the index."""
    count = 0
    for slot in range(table.shape[0]):
        if table[slot, STAMP] == 0:
            continue
        if slot > count:
            for w in range(table.shape[1]):
                table[count, w] = table[slot, w]
        count += 1
    for slot in range(count, table.shape[0]):
        table[slot, STAMP] = 0
    facts[FREE_SLOT] = 0
    facts[FREE_SLOTS] = 0
    facts[USED_SLOTS] = count


@kernel
def stamp(table: Table, slots: Ints, chunk: int) -> None:
    """Pass over slots of the directory: record the chunk that accesses them; count the accesses."""
    for k in range(slots.size):
        table[slots[k], STAMP] = chunk
        table[slots[k], HEAT] += 1
