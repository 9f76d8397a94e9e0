"""Merges rows over the numbered segments that each spans, without subtraction.

Idea: segments are the leaves of a tree in which a node covers those below it. A row is merged into
the few nodes that cover its span exactly, and in the end every node into its two children: then a
leaf contains each row that spans it, once.

Invariants:
1. Each segment holds the merge of the rows that span it (`test_parity_merging_over_spans`).
2. A segment does not depend on rows that do not span it, not even in floats
   (`test_a_row_leaves_no_trace_where_it_is_not`).

Cost: O(rows x fields x log segments).

References: range updates with point queries on a segment tree.
"""

from __future__ import annotations

from icestream.core.arrays import Ints, Table
from icestream.kernels.compile import kernel
from icestream.kernels.field_words import merge_field


@kernel
def merge_spans(first: Ints, last: Ints, rows: Table, ops: Ints, places: Ints, tree: Table) -> None:
    """Merge every row into the segments of time that it spans, from `first` up to `last`.

    `tree` has two rows for each segment, all neutral elements; its second half is the result.
    """
    size = tree.shape[0] // 2
    for row in range(first.size):
        left = first[row] + size
        right = last[row] + size
        while left < right:
            if left & 1:
                for f in range(ops.size):
                    merge_field(tree, left, places[f], rows, row, places[f], ops[f])
                left += 1
            if right & 1:
                right -= 1
                for f in range(ops.size):
                    merge_field(tree, right, places[f], rows, row, places[f], ops[f])
            left >>= 1
            right >>= 1
    for node in range(1, size):
        for child in range(2 * node, 2 * node + 2):
            for f in range(ops.size):
                merge_field(tree, child, places[f], tree, node, places[f], ops[f])
