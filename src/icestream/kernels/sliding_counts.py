"""Windows that slide over counted values: how many are distinct, which have a rank, which is most.

Idea: the values of a group are the leaves of a binary tree in an array, in ascending order; a value
that enters or leaves changes its count and the inner nodes above it, which hold the sum of their
leaves, or their greatest. A rank is found from the root down, and so is the least value of the
greatest count. *Entries* are runs of values that enter and leave together: events, or what a group
counted before.

Invariant: answers are those of counting each window anew
(`test_parity_sliding_counts_beside_counters`).

Cost: O(log v) for a value that enters or leaves, and for each rank, with v distinct values of a
group; whatever the windows hold. Listing a window costs O(log v) for each of its values.
"""

from __future__ import annotations

from icestream.core.arrays import Floats, Ints, Table
from icestream.kernels.compile import kernel

#: what to find in each window: the number of distinct values; the number of values, then the codes
#: around each fraction of it; the code of the value with the greatest count, or -1; all codes
DISTINCT = 0
RANKS = 1
MOST = 2
LISTED = 3


@kernel
def slide_counts(
    codes: Ints,
    counts: Ints,
    starts: Ints,
    first: Ints,
    last: Ints,
    lows: Ints,
    sizes: Ints,
    kind: int,
    fractions: Floats,
    tree: Ints,
    out: Table,
    listed: Ints,
) -> None:
    """Slide over entries: those of window i are `first[i]` up to `last[i]`.

    Entry e has the codes at `starts[e] : starts[e + 1]`, each with a count. Those of window i's
    group are the `sizes[i]` codes from `lows[i]` on; windows of a group follow each other and do
    not move back. `tree` has four words for each code of the largest group. The row of a window in
    `out` gets what `kind` names; LISTED writes codes to `listed`, one window after the other.
    """
    begun = ended = width = distinct = filled = 0
    for i in range(first.size):
        low, size = lows[i], sizes[i]
        if i == 0 or low != lows[i - 1] or first[i] >= ended:
            width = 1
            while width < size:
                width *= 2
            tree[: 2 * width] = 0
            begun = ended = first[i]
            distinct = 0
        while ended < last[i]:
            for k in range(starts[ended], starts[ended + 1]):
                distinct += _change(tree, width, codes[k] - low, counts[k], kind)
            ended += 1
        while begun < first[i]:
            for k in range(starts[begun], starts[begun + 1]):
                distinct += _change(tree, width, codes[k] - low, -counts[k], kind)
            begun += 1
        if kind == DISTINCT:
            out[i, 0] = distinct
        elif kind == MOST:
            out[i, 0] = low + _most(tree, width) if distinct > 0 else -1
        elif kind == RANKS:
            total = tree[1]
            out[i, 0] = total
            for f in range(fractions.size):
                rank = max(total - 1, 0) * fractions[f]
                below = int(rank)
                above = below + 1 if rank > below else below
                out[i, 1 + 2 * f] = low + _ranked(tree, width, below)
                out[i, 2 + 2 * f] = low + _ranked(tree, width, above)
        else:
            before = 0
            for _ in range(distinct):
                leaf = _ranked(tree, width, before)
                listed[filled] = low + leaf
                filled += 1
                before += tree[width + leaf]


@kernel
def _change(tree: Ints, width: int, leaf: int, count: int, kind: int) -> int:
    """Change the count of a sliding value; return how the number of distinct ones changes."""
    node = width + leaf
    before = tree[node]
    tree[node] += count
    after = tree[node]
    if kind == MOST:
        while node > 1:
            node //= 2
            tree[node] = max(tree[2 * node], tree[2 * node + 1])
    elif kind != DISTINCT:
        while node > 1:
            node //= 2
            tree[node] += count
    return int(after > 0) - int(before > 0)


@kernel
def _ranked(tree: Ints, width: int, rank: int) -> int:
    """Return the leaf of a sliding value with a rank, counted from 0; some leaf without values."""
    node = 1
    while node < width:
        node *= 2
        if tree[node] <= rank:
            rank -= tree[node]
            node += 1
    return node - width


@kernel
def _most(tree: Ints, width: int) -> int:
    """Return the first leaf of the greatest count of sliding values."""
    node = 1
    while node < width:
        node = 2 * node if tree[2 * node] == tree[node] else 2 * node + 1
    return node - width


@kernel
def frame_begins(owners: Ints, times: Ints, ends: Ints, reach: int, rows: int, first: Ints) -> None:
    """Find where the window of each row begins that slides with it, in rows by owner and time.

    Row i has the rows of its owner with a time above `times[i] - reach`, at most the last `rows`
    up to `ends[i]`.
    """
    begin = 0
    for i in range(owners.size):
        if i == 0 or owners[i] != owners[i - 1]:
            begin = i
        past = times[i] - times[begin]
        # a difference that does not fit into a word is negative
        while past < 0 or past >= reach:
            begin += 1
            past = times[i] - times[begin]
        first[i] = max(begin, ends[i] - rows)
