"""The best rows of each group as they hold now, of events that stay.

Idea: nobody asks for the past, and no event is retracted or ends, so the k best rows of a group are
all there is to know of it. New events are compared with them by rank; a group that one of them
enters is written again, and its rows are emitted as a whole: they replace those of its key in the
table. So mode `now` needs no second copy of the rows, by key.

Invariants:
1. Rows are those of the top-k over all events so far, with the same order of equal ranks
   (`test_oracle_current_rows_are_those_of_the_general_top_k`).
2. A group stores k rows at most, and is neither written nor emitted if they stay the same
   (`test_bounded_events_behind_the_best_write_nothing`).

Cost: a sort of the new events that reach the worst row of their group, and of that group's rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints
from icestream.core.times import INFINITY, Micros
from icestream.operators.lifetimes.changes import (
    PromptOperator,
    changes_of,
    one_each,
    payload_of,
)
from icestream.operators.lifetimes.ordering import Ordering
from icestream.operators.lifetimes.rows_by_group import RowsByGroup, located
from icestream.state.groups.spec import GroupRows, Groups, Synopsis

_LEAST = np.iinfo(np.int64).min


class CurrentTop(PromptOperator):
    """Emits the k best rows of each group in which they have changed."""

    emits_at_once = True

    def __init__(self, payload: pa.Schema, k: int, ordering: Ordering, rank: str | None) -> None:
        """Order events by an ordering; `rank` names a column for the place of a row, from 1 on."""
        self._k, self._ordering, self._rank = k, ordering, rank
        place = [pa.field(rank, pa.int32(), nullable=False)] if rank is not None else []
        self.result = pa.schema([*payload, *place])
        self.synopses = (Synopsis("best", payload),)

    def selected(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        """Return the events that may be among the best, if nothing is known of their groups."""
        return self._ordering.selected(changes, self._k)

    def on_last_changes(
        self, _port: int, changes: pa.RecordBatch, groups: Groups, watermark: Micros, _over: Micros
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of groups whose best rows change."""
        payload = payload_of(one_each(changes))
        ranks = self._ordering.ranks(payload)
        by_slot = RowsByGroup(located(one_each(changes), groups))
        for portion in groups.portions(by_slot.distinct):
            rows, owners = by_slot.within(portion)
            kept = groups.read(0, portion)
            known = self._ordering.ranks(kept.rows)
            entering = ranks[rows] >= self._least(kept.owners, known, len(portion))[owners]
            rows, owners = rows[entering], owners[entering]
            touched = np.zeros(len(portion), dtype=np.bool_)
            touched[owners] = True
            inside = np.flatnonzero(touched[kept.owners])
            before = len(inside)
            owners = np.concatenate([kept.owners[inside], owners])
            together = pa.concat_batches(
                [kept.rows.take(pa.array(inside)), payload.take(pa.array(rows))]
            )
            order, place = self._best(
                owners, np.concatenate([known[inside], ranks[rows]]), together
            )
            changed = np.zeros(len(portion), dtype=np.bool_)
            changed[owners[order[order >= before]]] = True
            chosen = changed[owners[order]]
            order, place = order[chosen], place[chosen]
            if len(order):
                slots, best = portion[changed], together.take(pa.array(order))
                groups.rewrite(0, slots, GroupRows((np.cumsum(changed) - 1)[owners[order]], best))
                numbers = [pa.array((place + 1).astype(np.int32))] * (self._rank is not None)
                shown = pa.RecordBatch.from_arrays([*best.columns, *numbers], schema=self.result)
                since = np.full(len(order), watermark)
                identity = groups.identities(portion[owners[order]])
                yield changes_of(shown, since, np.full(len(order), INFINITY), 1, *identity)

    def _least(self, owners: Ints, ranks: Ints, count: int) -> Ints:
        """Return the rank that an event needs to enter each of some groups."""
        least = np.full(count, _LEAST)
        sizes = np.bincount(owners, minlength=count)
        begins = np.cumsum(sizes) - sizes
        full = sizes >= self._k
        if len(ranks):
            least[full] = np.minimum.reduceat(ranks, begins[sizes > 0])[full[sizes > 0]]
        return least

    def _best(self, owners: Ints, ranks: Ints, rows: pa.RecordBatch) -> tuple[Ints, Ints]:
        """Return the best rows by group, best first, and their places from 0 on."""
        order = np.lexsort((~ranks, owners))
        group, rank = owners[order], ranks[order]
        same = (group[1:] == group[:-1]) & (rank[1:] == rank[:-1])
        if same.any():
            tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
            places = self._ordering.places(rows.take(pa.array(order[tied])))
            order[tied] = order[tied][np.lexsort((places, ~rank[tied], group[tied]))]
        sizes = np.bincount(group)
        place = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        best = place < self._k
        return order[best], place[best]
