"""Which groups are written at the end of a version or when evicted, and which of them whole.

Invariants:
1. The lists are those that selecting column by column gives (`test_parity_groups_with_news`,
   `test_parity_groups_that_leave`, `test_parity_groups_in_many_small_extents`).
2. An evicted group is cold if it is on the log (`test_parity_groups_that_have_left`).

Cost: one visit to each group.
"""

from __future__ import annotations

from icestream.core.arrays import Ints, Mask, Table
from icestream.kernels.compile import kernel
from icestream.kernels.groups.heap import (
    ASKED,
    CHAIN,
    CLEAN,
    COLD,
    FLAGS,
    NO_ROOT,
    ROOT,
    STALE,
    WHOLE,
    WORDS,
)

#: average words per extent from which a chain is never too long: reading it is mere copying
LARGE = 1024


@kernel
def is_apart(table: Table, at: int, slot: int, few: int, scattered: int) -> bool:
    """Return whether eviction merges a chain: `few` extents, below `scattered` words on average."""
    length = table[slot, at + CHAIN] & 0xFFFFFFFF
    return bool(length >= few and table[slot, at + COLD] < length * scattered)


@kernel
def judge(
    table: Table, at: int, slots: Ints, limit: int, hot_limit: int, deltas: bool, whole: Mask
) -> tuple[int, int]:
    """Determine which groups with new rows are written whole, now or when evicted.

    A chain may have `limit` extents, `hot_limit` if the whole group is in memory, and any number
    of large extents. Returns how many are not whole in memory, and how many of those must be read
    first.
    """
    cold = 0
    lacking = 0
    for i in range(slots.size):
        slot = slots[i]
        flags = table[slot, at + FLAGS]
        most = hot_limit if flags & WHOLE else limit
        length = table[slot, at + CHAIN] & 0xFFFFFFFF
        new = flags & STALE != 0 or table[slot, at + ROOT] == NO_ROOT
        long = length >= most and table[slot, at + COLD] < length * LARGE
        whole[i] = new or long or not deltas
        if not flags & WHOLE:
            cold += 1
            lacking += whole[i]
    return cold, lacking


@kernel
def judge_eviction(
    table: Table,
    at: int,
    slots: Ints,
    limit: int,
    few: int,
    scattered: int,
    deltas: bool,
    clean_is_free: bool,
    held: Ints,
    dirty: Mask,
    whole: Mask,
) -> tuple[int, int]:
    """List groups with words to evict; determine which must be written, and which whole.

    A chain may have `limit` extents, more if they are large. A chain of at least `few` extents with
    fewer than `scattered` words on average is merged into one if the whole group is in memory.
    Returns how many are listed, and how many of them must be written.
    """
    count = 0
    written = 0
    for i in range(slots.size):
        slot = slots[i]
        words, flags = table[slot, at + WORDS], table[slot, at + FLAGS]
        stale = flags & STALE != 0
        if words == 0 and not stale:
            continue
        here = flags & WHOLE != 0
        cold, length = table[slot, at + COLD], table[slot, at + CHAIN] & 0xFFFFFFFF
        small = cold < length * LARGE
        apart = here and is_apart(table, at, slot, few, scattered)
        long = (length > limit and small) or apart
        news = words > table[slot, at + CLEAN] or stale
        dirty[count] = news or (here and long and words > 0) or (words > 0 and not clean_is_free)
        new = stale or table[slot, at + ROOT] == NO_ROOT or not deltas
        whole[count] = new or (length >= limit and small) or apart
        whole[count] |= here and dirty[count] and not clean_is_free
        written += dirty[count]
        held[count] = slot
        count += 1
    return count, written


@kernel
def list_apart(table: Table, at: int, slots: Ints, few: int, scattered: int, out: Ints) -> int:
    """List which groups of an eviction are on the log in many small extents."""
    count = 0
    for i in range(slots.size):
        if is_apart(table, at, slots[i], few, scattered):
            out[count] = i
            count += 1
    return count


@kernel
def let_go(table: Table, at: int, slots: Ints) -> None:
    """Record that the words of groups are evicted from memory: all their rows are on the log.

    For a group that was whole in memory, the earlier request for its cold rows is cleared.
    """
    for i in range(slots.size):
        slot = slots[i]
        if table[slot, at + ROOT] != NO_ROOT:
            was_whole = table[slot, at + FLAGS] & WHOLE != 0
            table[slot, at + FLAGS] &= ~(WHOLE | ASKED) if was_whole else ~WHOLE
        else:
            table[slot, at + FLAGS] |= WHOLE
