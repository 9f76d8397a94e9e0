"""The resident groups of a shard: lookup, running aggregates, expiry and emission.

Idea: groups are dense rows `int64[capacity, width]`; an open-addressing index of int32 maps
(id_high, id_low) to a row. A row is id_high, id_low, the *last* pane with an entry of the group,
whether it *changed* since it was emitted, the running fields, then one *front* for every field that
cannot be subtracted. The running words of such a field are the *back*: the merge of the panes after
those that have suffixes. A window's value is front merged with back. If the next stack of suffixes
is built while one is in use, a row has two more sets of words, the *next front* and *next back*.

Invariants:
1. A group is found if and only if its row is in the index (`test_parity_groups_beside_a_dict`).
2. After any adds and expiries in pane order, front merged with back equals folding the panes of
   the window (`test_parity_running_aggregates_beside_recomputation`).
3. A group without rows in the window has identity fields: an empty window ends all drift
   (the same test, and `test_parity_emptying_all_rows_at_once`).
4. Replacing front and back by the next ones leaves nothing of the next ones behind
   (`test_parity_taking_the_next_suffix_and_back`).

Cost: O(rows of the slice) to add or expire; O(resident groups) to emit, and to switch
to the next front and back.

References: two-stacks aggregation for operations without an inverse.
"""

from __future__ import annotations

from icestream.core.arrays import Ints, Slots, Table
from icestream.kernels.compile import kernel, lean_kernel
from icestream.kernels.field_words import has_inverse, merge_field, op_words, unmerge_field

#: places in a group's row
ID_HIGH = 0
ID_LOW = 1
LAST = 2
CHANGED = 3
FIELDS = 4


@kernel
def touch(rows: Table, slots: Slots, panes: Ints) -> None:
    """Record that each running group of a grid has an entry in a pane."""
    for k in range(slots.size):
        rows[slots[k], 2] = max(rows[slots[k], 2], panes[k])


@lean_kernel
def _merge_without_inverse(
    rows: Table, slot: int, at: int, entries: Table, k: int, ops: Ints, places: Ints
) -> None:
    """Merge the fields without an inverse of an entry into the words of a row from `at` on."""
    for f in range(ops.size):
        if not has_inverse(ops[f]):
            merge_field(rows, slot, at, entries, k, places[f], ops[f])
            at += op_words(ops[f])


@kernel
def add_slice(
    rows: Table, slots: Slots, entries: Table, ops: Ints, places: Ints, next_back: int
) -> None:
    """Merge a pane slice into the running fields of its groups, and into a next back.

    The next back begins at word `next_back` of a row; 0 means that there is none.
    """
    for k in range(slots.size):
        slot = slots[k]
        for f in range(ops.size):
            merge_field(rows, slot, places[f] + FIELDS - 2, entries, k, places[f], ops[f])
        if next_back > 0:
            _merge_without_inverse(rows, slot, next_back, entries, k, ops, places)
        rows[slot, CHANGED] = 1


@kernel
def expire_slice(
    rows: Table,
    slots: Slots,
    entries: Table,
    ops: Ints,
    places: Ints,
    identity: Ints,
    suffixes: Table,
    suffixes_at: int,
    pane: int,
    dead: Slots,
) -> int:
    """Remove a slice of `pane` from its groups; list in `dead` those whose last pane it was.

    Fields with an inverse are subtracted. The others take the front that `push_suffix` computed for
    the time after this slice. A group with no row left in the window is reset.
    """
    count = 0
    width = identity.size
    for k in range(slots.size):
        slot = slots[k]
        for f in range(ops.size):
            if has_inverse(ops[f]):
                unmerge_field(rows, slot, places[f] + FIELDS - 2, entries, k, places[f], ops[f])
        for m in range(suffixes.shape[1]):
            rows[slot, suffixes_at + m] = suffixes[k, m]
        rows[slot, CHANGED] = 1
        if rows[slot, FIELDS] == 0:
            for w in range(FIELDS, width):
                rows[slot, w] = identity[w]
            if rows[slot, 2] == pane:
                dead[count] = slot
                count += 1
    return count


@kernel
def empty_rows(rows: Table, used: int, identity: Ints, end: int, dead: Slots) -> int:
    """Reset every group of a grid; list in `dead` those with rows and no pane from `end` on.

    If everything leaves the window, its entries need not be read again.
    """
    count = 0
    for slot in range(used):
        if rows[slot, FIELDS] == 0:
            continue
        for w in range(FIELDS, identity.size):
            rows[slot, w] = identity[w]
        rows[slot, CHANGED] = 1
        if rows[slot, LAST] < end:
            dead[count] = slot
            count += 1
    return count


@kernel
def start_flip(rows: Table, used: int, ops: Ints, places: Ints, identity: Ints) -> None:
    """Clear suffixes and backs of the groups of a grid where fields have no inverse."""
    suffix = places[-1] + FIELDS - 2 + op_words(ops[-1])
    for slot in range(used):
        for f in range(ops.size):
            if not has_inverse(ops[f]):
                for w in range(op_words(ops[f])):
                    rows[slot, places[f] + FIELDS - 2 + w] = identity[places[f] + FIELDS - 2 + w]
        for w in range(suffix, identity.size):
            rows[slot, w] = identity[w]


@kernel
def push_suffix(
    rows: Table, slots: Slots, entries: Table, ops: Ints, places: Ints, suffix: int, out: Table
) -> None:
    """Push one older pane slice onto the front, at a word of the rows of its groups.

    The front after it is recorded in `out`, then the slice is merged in.
    """
    for k in range(slots.size):
        slot = slots[k]
        for m in range(out.shape[1]):
            out[k, m] = rows[slot, suffix + m]
        _merge_without_inverse(rows, slot, suffix, entries, k, ops, places)


@kernel
def push_back(rows: Table, slots: Slots, entries: Table, ops: Ints, places: Ints) -> None:
    """Merge fields without an inverse of a pane slice into the backs of its groups."""
    for k in range(slots.size):
        for f in range(ops.size):
            if not has_inverse(ops[f]):
                merge_field(rows, slots[k], places[f] + FIELDS - 2, entries, k, places[f], ops[f])


@kernel
def take_next(
    rows: Table, used: int, ops: Ints, places: Ints, identity: Ints, suffix: int, width: int
) -> None:
    """Replace front and back of a grid's groups by the next ones, of `width` words each."""
    next_suffix = suffix + width
    next_back = next_suffix + width
    for slot in range(used):
        for w in range(width):
            rows[slot, suffix + w] = rows[slot, next_suffix + w]
        at = next_back
        for f in range(ops.size):
            if not has_inverse(ops[f]):
                for w in range(op_words(ops[f])):
                    rows[slot, places[f] + FIELDS - 2 + w] = rows[slot, at]
                    at += 1
        for w in range(next_suffix, next_back + width):
            rows[slot, w] = identity[w]


@kernel
def emit(
    rows: Table,
    first: int,
    used: int,
    ops: Ints,
    places: Ints,
    suffixes_at: int,
    out: Table,
    out_slots: Slots,
    start: int,
    updates: bool,
) -> tuple[int, int]:
    """Write the fields of every group of a grid with rows in the window to `out` from `start` on.

    With `updates`, of every group that changed since it was emitted, even if it has no rows left.
    Returns (first row not visited, rows of `out` filled); stops when `out` is full.
    """
    count = start
    for slot in range(first, used):
        if rows[slot, CHANGED] == 0 if updates else rows[slot, FIELDS] == 0:
            continue
        if count == out.shape[0]:
            return slot, count
        rows[slot, CHANGED] = 0
        for w in range(out.shape[1]):
            out[count, w] = rows[slot, w + FIELDS]
        at = suffixes_at
        for f in range(ops.size):
            if not has_inverse(ops[f]):
                merge_field(out, count, places[f] - 2, rows, slot, at, ops[f])
                at += op_words(ops[f])
        out_slots[count] = slot
        count += 1
    return used, count
