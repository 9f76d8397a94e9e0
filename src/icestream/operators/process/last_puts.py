"""The rows of a map that count: the last one of each key, unless it removes the key.

Idea: keys are compared by their 128-bit identities, sorted, so that the last row of each key of
each group is found by one sort, whatever the types.

Invariant: they are what a dictionary has, in the order of the last puts
(`test_parity_both_forms_give_equal_results`).

Cost: O(rows log rows).
"""

from __future__ import annotations

import numpy as np

from icestream.core.arrays import Ids, Ints, Mask
from icestream.operators.process.grouping import take
from icestream.state.groups.spec import GroupRows
from icestream.state.keys import KeyCodec


def last_puts(found: GroupRows, keys: KeyCodec, gone: str) -> GroupRows:
    """Return the last row of each key of each group; `gone` is true in rows that remove a key."""
    owners, rows = found.owners, found.rows
    id_high, id_low = keys.identify(rows.select(keys.schema.names))
    order = np.lexsort((id_low, id_high, owners))
    _, last = ends_of_runs(owners[order], id_high[order], id_low[order])
    chosen = order[last]
    chosen = chosen[~np.asarray(rows.column(gone).to_numpy(zero_copy_only=False))[chosen]]
    chosen = chosen[np.lexsort((chosen, owners[chosen]))]
    return GroupRows(owners[chosen], take(rows, chosen))


def ends_of_runs(owners: Ints, id_high: Ids, id_low: Ids) -> tuple[Mask, Mask]:
    """Return which of the sorted (group, key) pairs are the first and the last of equal ones."""
    differs = np.ones(len(owners) + 1, dtype=np.bool_)
    differs[1:-1] = (
        (owners[1:] != owners[:-1]) | (id_high[1:] != id_high[:-1]) | (id_low[1:] != id_low[:-1])
    )
    return differs[:-1], differs[1:]
