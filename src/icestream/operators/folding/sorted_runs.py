"""Sorted runs of entries: ordered by (rank, id_high, id_low), equal ones merged.

Idea: rank and the upper bits of `id_high` share one 64-bit sort key, so a single stable sort does
nearly all the work and the kernel only resolves ties. A rank is a pane number, or shard and pane.

Invariant: the order of merging depends only on the order of the input
(`test_a_run_depends_only_on_its_input_order`).

Cost: O(n log n) comparisons of 64-bit keys.
"""

from __future__ import annotations

import numpy as np

from icestream.core.arrays import Ints, Table
from icestream.kernels.field_words import combine_sorted
from icestream.operators.folding.fields import Layout


def sorted_run(ranks: Ints, rows: Table, layout: Layout) -> tuple[Ints, Table]:
    """Sort folded entries into a run, by (rank, id_high, id_low), equal ones merged."""
    if len(ranks) == 0:
        return ranks, rows
    out_ranks = np.empty_like(ranks)
    out = np.empty_like(rows)
    count = combine_sorted(
        _order(ranks, rows), ranks, rows, layout.ops, layout.places, out, out_ranks
    )
    return out_ranks[:count], out[:count]


def _order(ranks: Ints, rows: Table) -> Ints:
    id_high = np.ascontiguousarray(rows[:, 0]).view(np.uint64)
    relative = (ranks - ranks.min()).astype(np.uint64)
    bits = int(relative.max()).bit_length()
    if bits > 40:
        return np.lexsort((id_high, relative))
    key = id_high >> np.uint64(bits)
    if bits:
        key |= relative << np.uint64(64 - bits)
    return np.argsort(key, kind="stable")
