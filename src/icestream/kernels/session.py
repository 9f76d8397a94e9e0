"""Sessions as rows of words: cutting events into fragments, and merging sorted runs of sessions.

Idea: a session is a row `id_high, id_low, start, end, fields...`; an event alone is one from its
time to its own end. A *fragment* is the session that a few events form on their own. Two sessions
of one group touch if one begins no later than the other ends. Runs sorted by (id_high, id_low,
start) are merged in one pass; touching rows are combined.

Invariants:
1. Events share a fragment exactly when none begins after the latest end of those before it
   (`test_parity_fragments_of_random_events`).
2. A merged run is sorted, no two of its rows touch, and each field is the merge of its input rows,
   those of the left run first if starts are equal (`test_parity_merging_two_runs`).

Cost: O(events), O(rows x fields).
"""

from __future__ import annotations

import numpy as np

from icestream.core.arrays import Ids, Ints, Table
from icestream.kernels.compile import kernel
from icestream.kernels.field_words import merge_field


@kernel
def cut_fragments(
    order: Ints,
    id_high: Ids,
    id_low: Ids,
    time: Ints,
    ends: Ints,
    slots: Ints,
    heads: Ints,
    last: Ints,
) -> int:
    """Number the session fragment of each event; `order` sorts by (id_high, id_low, time).

    `ends` are the ends of the events alone. Fills `slots` (fragment of each event), and `heads` and
    `last` (first event and end of each fragment). Returns the number of fragments.
    """
    count = 0
    for k in range(order.size):
        i = order[k]
        if k > 0:
            j = order[k - 1]
            if id_high[i] == id_high[j] and id_low[i] == id_low[j] and time[i] <= last[count - 1]:
                slots[i] = count - 1
                last[count - 1] = max(last[count - 1], ends[i])
                continue
        slots[i] = count
        heads[count] = i
        last[count] = ends[i]
        count += 1
    return count


@kernel
def merge_sessions(
    left: Table, right: Table, ops: Ints, places: Ints, out: Table, sources: Ints
) -> int:
    """Merge two runs sorted by (id_high, id_low, start) into `out`; return its number of rows.

    `sources` is, for each row of `out`, a row with its group: a row of `left`, or a row of `right`
    counted on from the end of `left`.
    """
    count = 0
    i = 0
    j = 0
    while i < left.shape[0] or j < right.shape[0]:
        from_left = j == right.shape[0]
        if not from_left and i < left.shape[0]:
            a = np.uint64(left[i, 0])
            b = np.uint64(right[j, 0])
            if a == b:
                a = np.uint64(left[i, 1])
                b = np.uint64(right[j, 1])
            from_left = a < b or (a == b and left[i, 2] <= right[j, 2])
        if from_left:
            run = left
            at = i
            source = i
            i += 1
        else:
            run = right
            at = j
            source = left.shape[0] + j
            j += 1
        if (
            count > 0
            and out[count - 1, 0] == run[at, 0]
            and out[count - 1, 1] == run[at, 1]
            and run[at, 2] <= out[count - 1, 3]
        ):
            out[count - 1, 3] = max(out[count - 1, 3], run[at, 3])
            for f in range(ops.size):
                merge_field(out, count - 1, places[f], run, at, places[f], ops[f])
            continue
        out[count] = run[at]
        sources[count] = source
        count += 1
    return count
