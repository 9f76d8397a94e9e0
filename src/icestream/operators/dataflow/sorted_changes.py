"""The changes of a batch in the order of their groups, as many at a time as fit into memory.

Idea: a chunk sorted by group looks up each group once and reads each record of the log once. The
input of a batch is in records that are sorted this way individually. A pass takes the groups of one
range of identities from all of them and sorts them together. Ranges are chosen by the first
identity and the size of each record, so that passes have about equal sizes.

Invariants:
1. All passes together yield every change once, changes of a group in their order, or by time
   (`test_oracle_passes_yield_every_change_once_in_order`).
2. A pass takes about as many bytes as there is memory for, unless one record alone is larger
   (`test_bounded_passes_take_about_what_there_is_room_for`); there are as few passes as possible,
   of about equal size (`test_passes_are_alike_and_no_more_than_needed`).
3. Pieces have few rows and groups; entire pieces have all changes of their groups
   (`test_oracle_entire_pieces_have_all_changes_of_their_groups`). Those of groups inside others
   say where the groups around them end (`test_pieces_say_where_the_groups_around_them_end`).

Cost: each record is looked at by the passes whose range it overlaps, many if what was sent at once
is small beside all; mapped parcels are verified and parsed once for all of them. One sort per pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ids, Ints, Mask
from icestream.operators.folding.fold import ID_HIGH_COLUMN
from icestream.operators.lifetimes.changes import LE, column_of, taken
from icestream.operators.protocol import ChangeInputs

#: one more than the greatest identity
END = 1 << 64
#: an excess below this share of a pass is added to the passes instead of to another one
SPARED = 1 / 8
#: lower bits of `id_high` that groups inside others have of their own; those above route them
INNER = 32
INNER_BITS = np.uint64((1 << INNER) - 1)
#: splits changes into pieces, each with whether it is entire
Cut = Callable[[pa.RecordBatch], Iterator[tuple[pa.RecordBatch, bool]]]
#: runs are merged if they have at least this many rows on average
MERGED_RUN = 64


def gathered(
    inputs: ChangeInputs, edge: int, room: int, *, timed: bool = False, inside: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield the changes of an edge sorted by group and, if requested, by time within a group.

    Where groups are `inside` others, those around them are not torn if there is room for them.
    """
    bounds = [0]
    for bound in bounds_of(*inputs.ranges(edge), room):
        around = bound >> INNER << INNER
        bounds.append(around if inside and around > bounds[-1] else bound)
    for first, last in pairwise([*bounds, END]):
        parts = list(inputs.changes(edge, first, last))
        if parts:
            together = pa.concat_batches(parts)
            yield by_group_and_time(together) if timed else by_group(together)


def collected(inputs: ChangeInputs, edge: int, room: int) -> Iterator[pa.RecordBatch]:
    """Yield the changes of an edge, not sorted, about as many at a time as fit into memory."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for part in inputs.changes(edge, 0, END):
        if waiting and size + part.nbytes > room:
            yield pa.concat_batches(waiting)
            waiting, size = [], 0
        waiting.append(part)
        size += part.nbytes
    if waiting:
        yield pa.concat_batches(waiting)


def by_group(changes: pa.RecordBatch) -> pa.RecordBatch:
    """Return changes sorted by group; those of a group keep their order."""
    identities = _identities(changes)
    if not _falls(identities):
        return changes
    return taken(changes, order_of(identities))


def by_group_and_time(changes: pa.RecordBatch) -> pa.RecordBatch:
    """Return sorted changes: by group, then by the start of their lifetimes."""
    identities = _identities(changes)
    order = order_of(identities)
    ordered, begins = identities[order], column_of(changes, LE)[order]
    fresh = np.zeros(len(order), dtype=np.bool_)
    fresh[1:] = ordered[1:] != ordered[:-1]
    return taken(changes, order[order_in_runs(np.cumsum(fresh), begins)])


def order_of(identities: Ids) -> Ints:
    """Return the stable order by identity in which changes are sorted.

    They are spread evenly, so sorting by their first bits, which takes no comparisons, almost
    sorts them; input that already has long sorted runs is merged.
    """
    if _falls(identities) * MERGED_RUN < len(identities):
        return np.argsort(identities, kind="stable")
    rough = np.argsort((identities >> np.uint64(48)).astype(np.uint16), kind="stable")
    return rough[np.argsort(identities[rough], kind="stable")]


def order_in_runs(runs: Ints, times: Ints) -> Ints:
    """Return the stable order of sorted changes by the number of the run, then by time."""
    if len(runs) == 0:
        return runs
    first = int(times.min())
    wide = int(times.max()) - first + 1
    if (int(runs.max()) + 1) * wide < 1 << 63:
        return np.argsort(runs * wide + (times - first), kind="stable")
    return np.lexsort((times, runs))


def pieces(
    changes: pa.RecordBatch,
    rows: int,
    groups: int,
    counted: Callable[[pa.RecordBatch], Mask] | None = None,
) -> Iterator[tuple[pa.RecordBatch, bool]]:
    """Split sorted changes into pieces of at most `rows` rows and `groups` groups.

    Changes are sorted by group if they must be split. The flag of a piece is whether it is entire,
    that is, has all changes of its groups; a piece that is not entire belongs to one group.
    `counted` returns which changes belong to groups that count towards the limit.
    """
    count, identities = changes.num_rows, _identities(changes)
    if counted is not None and groups < count <= rows:
        identities = identities[counted(changes)]
    if count <= rows and _has_at_most(groups, identities):
        if count:
            yield changes, True
        return
    changes = by_group(changes)
    identities = _identities(changes)
    fresh = np.ones(count + 1, dtype=np.bool_)
    fresh[1:-1] = identities[1:] != identities[:-1]
    begins = np.flatnonzero(fresh)
    before, most = np.arange(len(begins)), min(groups, count)
    if counted is not None and count > groups:
        before[1:] = np.cumsum(counted(changes)[begins[:-1]])
    first = 0
    while first < count:
        group = int(np.searchsorted(begins, first, side="right")) - 1
        last = int(np.searchsorted(before, before[group] + most, side="right")) - 1
        last = max(last, group + 1) if fresh[first] else group + 1
        end = min(first + rows, int(begins[last]))
        begin = int(begins[np.searchsorted(begins, end, side="right") - 1])
        end = begin if begin > first else end
        yield changes.slice(first, end - first), bool(fresh[first] and fresh[end])
        first = end


def apart(changes: pa.RecordBatch, cut: Cut) -> Iterator[tuple[pa.RecordBatch, bool, bool]]:
    """Yield pieces of changes, whether each is entire, and that no group around it goes on."""
    return ((piece, entire, True) for piece, entire in cut(changes))


def nested(
    changes: pa.RecordBatch, rows: int, cut: Cut
) -> Iterator[tuple[pa.RecordBatch, bool, bool]]:
    """Yield sorted changes of groups inside others in pieces, and whether each is entire.

    The second flag is whether there are no more changes of the groups around those of the piece.
    If changes are sorted, pieces end with a group around others where its changes are at most
    `rows`. The flag is never set for the last piece, as others may follow these changes.
    """
    identities, first, count = _identities(changes), 0, changes.num_rows
    ends = np.array([count])
    if not _falls(identities):
        outer = identities & ~INNER_BITS
        ends = np.append(np.flatnonzero(outer[1:] != outer[:-1]) + 1, count)
    while first < count:
        fitting = np.searchsorted(ends, [first, first + rows], side="right") - [0, 1]
        last = int(ends[fitting.max()])
        for piece, entire in cut(changes.slice(first, last - first)):
            first += piece.num_rows
            yield piece, entire, first == last < count


def rows_of_group(changes: pa.RecordBatch, id_high: int) -> int:
    """Return how many rows of changes belong to a group."""
    return int(np.count_nonzero(_identities(changes) == np.uint64(id_high)))


def between(changes: pa.RecordBatch, first: int, last: int) -> pa.RecordBatch:
    """Return the changes with `first <= id_high < last`, given sorted changes."""
    identities = _identities(changes)
    start = int(identities.searchsorted(np.uint64(first)))
    end = int(identities.searchsorted(np.uint64(last - 1), side="right"))
    return changes.slice(start, end - start)


def first_and_last(changes: pa.RecordBatch) -> tuple[int, int]:
    """Return the least and the greatest identity of sorted changes."""
    identities = _identities(changes)
    return int(identities[0]), int(identities[-1])


def bounds_of(firsts: Ids, sizes: Ints, room: int) -> list[int]:
    """Return where to split sorted changes by identity, so that passes fill the memory alike."""
    order = np.argsort(firsts, kind="stable")
    filled = np.cumsum(sizes[order])
    count = max(1, math.ceil(int(filled[-1]) / room - SPARED)) if len(filled) else 1
    begins = np.flatnonzero(np.diff((filled - 1) * count // filled[-1:])) + 1
    return [each for each in np.unique(firsts[order][begins]).tolist() if each > 0]


def _has_at_most(groups: int, identities: Ids) -> bool:
    """Return whether there are at most `groups` distinct identities; sort only if necessary."""
    if len(identities) <= groups:
        return True
    runs = 1 + int(np.count_nonzero(identities[1:] != identities[:-1]))
    return runs <= groups or (_falls(identities) > 0 and len(np.unique(identities)) <= groups)


def _falls(identities: Ids) -> int:
    """Return how often an identity is less than its predecessor."""
    return int(np.count_nonzero(identities[1:] < identities[:-1]))


def _identities(changes: pa.RecordBatch) -> Ids:
    return np.asarray(changes.column(ID_HIGH_COLUMN).to_numpy())
