"""Combining rows of 8-byte words: the arithmetic under every numeric state.

Idea: a table is `int64[n, width]`; a *field* is some neighbouring words with an operation that
merges two values of it. A field's operation and place are data (`ops`, `places`), so one compiled
kernel serves every set of aggregates.

Invariants:
1. Merging is associative, commutative and exact (`test_parity_combining_rows_in_any_grouping`).
2. `ADD_I64`, `ADD_I128` and `ADD_FIXED` can be subtracted; subtracting with another operation is an
   error of the caller that `is_invertible` reveals (`test_parity_taking_back_undoes_merging`).

Cost: O(fields) per row.
"""

from __future__ import annotations

import numpy as np

from icestream.core.arrays import Ints, Table
from icestream.kernels.compile import kernel, lean_kernel
from icestream.kernels.double_sums import add_digits, take_digits

ADD_I64 = 0
ADD_I128 = 1
MIN = 3
MAX = 4
#: the least of three, four or five words compared one after the other: what is chosen by comes
#: first, what is carried along last
LEAST_3 = 5
LEAST_4 = 6
LEAST_5 = 7
#: a sum of doubles with n digits is merged by the operation ADD_FIXED + n (`kernels.double_sums`)
ADD_FIXED = 16

#: words a field of each operation takes
WORDS = {ADD_I64: 1, ADD_I128: 2, MIN: 1, MAX: 1, LEAST_3: 3, LEAST_4: 4, LEAST_5: 5}
#: initial words of each field, before any merge
IDENTITY = {
    ADD_I64: 0,
    ADD_I128: 0,
    MIN: 2**63 - 1,
    MAX: -(2**63),
    LEAST_3: 2**63 - 1,
    LEAST_4: 2**63 - 1,
    LEAST_5: 2**63 - 1,
}


def is_invertible(op: int) -> bool:
    """Return whether words of a field that were merged can be taken back exactly."""
    return op <= ADD_I128 or op >= ADD_FIXED


@kernel
def op_words(op: int) -> int:
    """Return how many words a field of an operation has, as `WORDS` does."""
    if op >= 16:
        return op - 16
    if op >= 5:
        return op - 2
    return 2 if op == 1 else 1


@kernel
def has_inverse(op: int) -> bool:
    """Return what `is_invertible` does, in kernels."""
    return bool(op < 2 or op >= 16)


@lean_kernel
def merge_field(target: Table, i: int, at: int, source: Table, j: int, place: int, op: int) -> None:
    """Merge one field of row `j` of `source` into row `i` of `target`."""
    if op == 0:
        target[i, at] += source[j, place]
    elif op == 1:
        a = np.uint64(target[i, at])
        c = a + np.uint64(source[j, place])
        target[i, at] = np.int64(c)
        target[i, at + 1] += source[j, place + 1]
        if c < a:
            target[i, at + 1] += 1
    elif op == 3:
        target[i, at] = min(target[i, at], source[j, place])
    elif op == 4:
        target[i, at] = max(target[i, at], source[j, place])
    elif op >= 16:
        add_digits(target, i, at, source, j, place, op - 16)
    else:
        count = op_words(op)
        for w in range(count):
            if source[j, place + w] != target[i, at + w]:
                if source[j, place + w] < target[i, at + w]:
                    for m in range(w, count):
                        target[i, at + m] = source[j, place + m]
                break


@lean_kernel
def unmerge_field(
    target: Table, i: int, at: int, source: Table, j: int, place: int, op: int
) -> None:
    """Subtract an invertible field of row `j` of `source` from row `i` of `target`."""
    if op == 0:
        target[i, at] -= source[j, place]
    elif op >= 16:
        take_digits(target, i, at, source, j, place, op - 16)
    else:
        a = np.uint64(target[i, at])
        b = np.uint64(source[j, place])
        target[i, at] = np.int64(a - b)
        target[i, at + 1] -= source[j, place + 1]
        if a < b:
            target[i, at + 1] -= 1


@kernel
def combine_sorted(
    order: Ints, panes: Ints, rows: Table, ops: Ints, places: Ints, out: Table, out_panes: Ints
) -> int:
    """Merge the field words of rows of one (pane, id), in `order`, into `out`; count them.

    `order` sorts by (pane, upper bits of id_high); rows with equal upper bits may come in any order
    and are sorted by insertion, so the result is sorted by (pane, id) as unsigned numbers.
    """
    count = 0
    for k in range(order.size):
        j = order[k]
        pane = panes[j]
        id_high = np.uint64(rows[j, 0])
        id_low = np.uint64(rows[j, 1])
        at = count
        found = False
        while at > 0 and out_panes[at - 1] == pane:
            other = np.uint64(out[at - 1, 0])
            if other < id_high:
                break
            if other == id_high:
                other_id_low = np.uint64(out[at - 1, 1])
                if other_id_low < id_low:
                    break
                if other_id_low == id_low:
                    found = True
                    break
            at -= 1
        if found:
            for f in range(ops.size):
                merge_field(out, at - 1, places[f], rows, j, places[f], ops[f])
            continue
        for m in range(count, at, -1):
            out_panes[m] = out_panes[m - 1]
            out[m] = out[m - 1]
        out_panes[at] = pane
        out[at] = rows[j]
        count += 1
    return count
