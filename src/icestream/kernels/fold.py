"""Folding events into entries: one row of partial aggregates per (group, pane).

Idea: `assign_entries` gives every event the number of its entry in an open-addressing table; then
one tight loop per field folds that field's column into the entries; sums of integers, which many
queries have several of, are folded together. A field without nulls does not pay for null checks.

Invariants:
1. Two events share an entry exactly when pane, id_high and id_low are equal
   (`test_parity_events_share_an_entry_exactly_when_group_and_pane_agree`).
2. Folding equals the obvious loop with Python's numbers (`test_parity_fold_of_every_field`).

Cost: O(events) for each field; the table is at most half full.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from icestream.core.arrays import Ids, Ints, Mask, Table
from icestream.kernels.compile import kernel
from icestream.kernels.double_sums import word_product

Index = npt.NDArray[np.int32]

#: stands for "no value is null" where a kernel takes a mask
ALL_VALID: Mask = np.zeros(0, dtype=np.bool_)


@kernel
def assign_entries(
    id_high: Ids,
    id_low: Ids,
    pane: Ints,
    first: int,
    index: Index,
    entries: Table,
    panes: Ints,
    used: int,
    identity: Ints,
    slots: Ints,
    opened: Ints,
) -> tuple[int, int, int]:
    """Number the entry that each event folds into, from `first` on; stop when it is full.

    Fills `slots` (entry of each event) and `opened` (events that opened an entry). Returns
    (first event not done, entries used, events listed in `opened`).
    """
    mask = index.size - 1
    listed = 0
    for i in range(first, id_high.size):
        h = id_high[i]
        low = id_low[i]
        p = pane[i]
        place = (
            np.int64((low ^ (np.uint64(p) * np.uint64(0x9E3779B97F4A7C15))) >> np.uint64(20)) & mask
        )
        while True:
            at = index[place] - 1
            if at < 0:
                if used == entries.shape[0]:
                    return i, used, listed
                at = used
                used += 1
                index[place] = at + 1
                panes[at] = p
                entries[at] = identity
                entries[at, 0] = np.int64(h)
                entries[at, 1] = np.int64(low)
                opened[listed] = i
                listed += 1
                break
            if (
                panes[at] == p
                and np.uint64(entries[at, 0]) == h
                and np.uint64(entries[at, 1]) == low
            ):
                break
            place = (place + 1) & mask
        slots[i] = at
    return id_high.size, used, listed


@kernel
def new_keys(
    id_high: Ids,
    id_low: Ids,
    pane: Ints,
    rows: Ints,
    count: int,
    index: Index,
    seen: Ids,
    last: Ints,
    used: int,
    fresh: Ints,
) -> tuple[int, int]:
    """List in `fresh` the folded events among `rows[:count]` of groups not seen before.

    Also records in `last` the latest pane of every group. Returns (groups seen, events listed).
    """
    mask = index.size - 1
    found = 0
    for k in range(count):
        i = rows[k]
        place = np.int64(id_low[i] >> np.uint64(20)) & mask
        while True:
            at = index[place] - 1
            if at < 0:
                index[place] = used + 1
                seen[used, 0] = id_high[i]
                seen[used, 1] = id_low[i]
                last[used] = pane[i]
                used += 1
                fresh[found] = i
                found += 1
                break
            if seen[at, 0] == id_high[i] and seen[at, 1] == id_low[i]:
                last[at] = max(last[at], pane[i])
                break
            place = (place + 1) & mask
    return used, found


@kernel
def fold_count(entries: Table, at: int, slots: Ints, valid: Mask, first: int, last: int) -> None:
    """Fold events into a count of all, or of those with a value where `valid` is given."""
    if valid.size == 0:
        for i in range(first, last):
            entries[slots[i], at] += 1
    else:
        for i in range(first, last):
            if valid[i]:
                entries[slots[i], at] += 1


@kernel
def fold_sum_i64(
    entries: Table, at: int, slots: Ints, values: Ints, valid: Mask, first: int, last: int
) -> None:
    """Fold an integer of each event into a sum that cannot overflow 64 bits."""
    for i in range(first, last):
        if valid.size == 0 or valid[i]:
            entries[slots[i], at] += values[i]


@kernel
def fold_sums_i64(
    entries: Table, places: Ints, slots: Ints, values: Table, first: int, last: int
) -> None:
    """Fold several integers of each event, a row of `values`, into sums; nulls are zeros there."""
    words = entries.reshape(-1)
    # unsigned places, so that no negative index has to be handled
    width = np.uint64(entries.shape[1])
    for i in range(first, last):
        row = np.uint64(slots[i]) * width
        for k in range(places.size):
            words[row + np.uint64(places[k])] += values[i, k]


@kernel
def fold_sum_i128(
    entries: Table,
    at: int,
    slots: Ints,
    low: Ints,
    high: Ints,
    valid: Mask,
    first: int,
    last: int,
) -> None:
    """Fold a 128-bit integer of each event, given as two words, into their sum."""
    for i in range(first, last):
        if valid.size == 0 or valid[i]:
            e = slots[i]
            a = np.uint64(entries[e, at])
            c = a + np.uint64(low[i])
            entries[e, at] = np.int64(c)
            entries[e, at + 1] += high[i]
            if c < a:
                entries[e, at + 1] += 1


@kernel
def fold_products_i128(
    entries: Table,
    at: int,
    slots: Ints,
    x_low: Ints,
    x_high: Ints,
    y_low: Ints,
    y_high: Ints,
    valid: Mask,
    first: int,
    last: int,
) -> None:
    """Fold the product of two integers of each event into a 128-bit sum."""
    for i in range(first, last):
        if valid.size == 0 or valid[i]:
            e = slots[i]
            below, above = word_product(np.uint64(x_low[i]), np.uint64(y_low[i]))
            low, high = np.int64(below), np.int64(above)
            high += x_low[i] * y_high[i] + x_high[i] * y_low[i]
            a = np.uint64(entries[e, at])
            c = a + np.uint64(low)
            entries[e, at] = np.int64(c)
            entries[e, at + 1] += high
            if c < a:
                entries[e, at + 1] += 1


@kernel
def fold_least(
    entries: Table, at: int, slots: Ints, rows: Table, valid: Mask, first: int, last: int
) -> None:
    """Fold a row of words of each event into the least, compared one word after the other."""
    count = rows.shape[1]
    for i in range(first, last):
        if valid.size == 0 or valid[i]:
            e = slots[i]
            for w in range(count):
                if rows[i, w] != entries[e, at + w]:
                    if rows[i, w] < entries[e, at + w]:
                        for m in range(w, count):
                            entries[e, at + m] = rows[i, m]
                    break


@kernel
def fold_min(
    entries: Table, at: int, slots: Ints, values: Ints, valid: Mask, first: int, last: int
) -> None:
    """Fold a value of each event into the least."""
    for i in range(first, last):
        if valid.size == 0 or valid[i]:
            e = slots[i]
            entries[e, at] = min(entries[e, at], values[i])


@kernel
def fold_max(
    entries: Table, at: int, slots: Ints, values: Ints, valid: Mask, first: int, last: int
) -> None:
    """Fold a value of each event into the greatest."""
    for i in range(first, last):
        if valid.size == 0 or valid[i]:
            e = slots[i]
            entries[e, at] = max(entries[e, at], values[i])


@kernel
def order_floats(bits: Ints, out: Ints) -> None:
    """Map float64 bits to fold to integers of the same order, -0.0 below 0.0, NaNs greatest."""
    for i in range(bits.size):
        b = bits[i]
        if (b & 0x7FFFFFFFFFFFFFFF) > 0x7FF0000000000000:
            out[i] = 0x7FF8000000000000
        elif b < 0:
            out[i] = b ^ 0x7FFFFFFFFFFFFFFF
        else:
            out[i] = b


@kernel
def routes_of(id_high: Ids, key_groups: int, route: Ints, out: Ints, load: Ints) -> None:
    """Look up the shard of every group with folded entries; count entries per key group."""
    for i in range(id_high.size):
        group = np.int64(((id_high[i] >> np.uint64(32)) * np.uint64(key_groups)) >> np.uint64(32))
        load[group] += 1
        out[i] = route[group]
