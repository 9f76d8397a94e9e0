"""The join of two streams: every pair of events of a group, for the instants at which both live.

Idea: a symmetric join over lifetimes. Changes of one side are paired with the stored rows of the
other side and appended to those of their own side, which need not be read. The answer is linear in
both sides, so a retracted event is paired with a negative count.

Invariants:
1. The output adds up to the pairs of the input, exactly, whatever the chunks and the order of the
   sides (`test_oracle_join_in_any_chunks`).
2. A row is stored only while the watermark is before its end
   (`test_bounded_expired_rows_are_gone`). A row whose shortened lifetime ended before it arrived is
   *late*: it is stored until the watermark moves, because the other side may be in the middle of
   its changes.
3. Only the other side is read (`test_adding_to_a_side_does_not_read_it`).
4. Rows that cancel out are summed up, whether they are read or not
   (`test_bounded_ended_events_leave_a_side_that_nobody_probes`).

Cost: O(changes + rows read + pairs); output in batches of at most 64K rows.

A group too large for memory is read in pieces (`test_bounded_one_group_of_many_times_the_budget`).

Limits: the caller groups by the key, so that keys of a group are equal; `residual` is evaluated for
every pair.

References: symmetric hash join; grouped cross product over lifetimes, add-only and read-only access
to its synopses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc

from icestream.core.errors import DefinitionError
from icestream.core.times import Micros
from icestream.operators.lifetimes.changes import (
    DIFF,
    PromptOperator,
    changes_of,
    column_of,
)
from icestream.operators.lifetimes.pairs import Pairs, bounds_of, lifetimes_of, pairs_of
from icestream.operators.lifetimes.rows_by_group import (
    RowsByGroup,
    ids_of,
    late_events_synopsis,
    live_events_synopsis,
    located,
    store_alive,
    store_late,
    summed,
)
from icestream.state.groups.spec import Groups

#: sides of a join: its ports and its synopses; the synopses of late rows follow
LEFT, RIGHT, LATE = 0, 1, 2
#: returns whether each row of the joined columns is in the answer; null means no
Predicate = Callable[[pa.RecordBatch], pa.Array]


class StreamJoin(PromptOperator):
    """All pairs of events of two streams that share a group and an instant."""

    forgets = True

    def __init__(
        self,
        left: pa.Schema,
        right: pa.Schema,
        names: Sequence[str] | None = None,
        residual: Predicate | None = None,
        hidden: Sequence[str] = (),
    ) -> None:
        """Join payloads; `names` are those of the left columns, then the right ones.

        `residual` sees all of them; `hidden` columns are not in the result.
        """
        fields = [*left, *right]
        names = [field.name for field in fields] if names is None else list(names)
        _check(names, len(fields), hidden)
        self.sides = left, right
        self._joined = pa.schema([f.with_name(n) for f, n in zip(fields, names, strict=True)])
        self._shown = [name for name in names if name not in set(hidden)]
        self.residual = residual
        self.result = pa.schema([self._joined.field(name) for name in self._shown])
        self.synopses = (
            live_events_synopsis("left", left),
            live_events_synopsis("right", right),
            late_events_synopsis("late left", left),
            late_events_synopsis("late right", right),
        )

    def renames(self, keys: Sequence[str]) -> bool:
        """Return whether a column has another name in pairs, except keys of the right side."""
        left, right = (each.names for each in self.sides)
        names = self._joined.names
        pairs = zip(right, names[len(left) :], strict=True)
        return names[: len(left)] != left or any(a != b and a not in keys for a, b in pairs)

    def on_last_changes(
        self,
        port: int,
        changes: pa.RecordBatch,
        groups: Groups,
        watermark: Micros,
        over: Micros,
    ) -> Iterator[pa.RecordBatch]:
        """Store changes of one side; yield their pairs with the other."""
        if not changes.num_rows:
            return
        touched = RowsByGroup(located(changes, groups))
        store_alive(port, changes, touched.slots, groups, max(watermark, over))
        if over <= watermark:
            store_late(LATE + port, changes, touched.slots, groups, watermark)
        for portion in groups.portions(touched.distinct, (1 - port, LATE + 1 - port)):
            mine, bounds = touched.of(portion)
            probes = changes.take(pa.array(mine))
            pieces = (groups.pieces(synopsis, portion) for synopsis in (1 - port, LATE + 1 - port))
            for other in chain.from_iterable(pieces):
                if (column_of(other.rows, DIFF) < 0).any():
                    # rows that cancel each other would make pairs that do
                    other = summed(other)  # noqa: PLW2901
                if other.rows.num_rows:
                    stored = lifetimes_of(other.rows, bounds_of(other.owners, len(portion)))
                    for pairs in pairs_of(lifetimes_of(probes, bounds), stored):
                        made, _ = self.answer(port, probes, other.rows, pairs)
                        if made.num_rows:
                            yield made

    def answer(
        self, port: int, probes: pa.RecordBatch, stored: pa.RecordBatch, pairs: Pairs
    ) -> tuple[pa.RecordBatch, Pairs]:
        """Return the changes that pairs are, and those of them that satisfy the residual."""
        joined, pairs = self.joined(port, probes, stored, pairs)
        made = changes_of(
            joined.select(self._shown),
            pairs.le,
            pairs.re,
            column_of(probes, DIFF)[pairs.probes] * column_of(stored, DIFF)[pairs.stored],
            *ids_of(probes, pairs.probes),
        )
        return made, pairs

    def joined(
        self, port: int, probes: pa.RecordBatch, stored: pa.RecordBatch, pairs: Pairs
    ) -> tuple[pa.RecordBatch, Pairs]:
        """Return the columns of pairs that satisfy the residual, and these pairs."""
        rows = {port: (probes, pairs.probes), 1 - port: (stored, pairs.stored)}
        columns = [
            column
            for side, (batch, chosen) in sorted(rows.items())
            for column in batch.select(self.sides[side].names).take(pa.array(chosen)).columns
        ]
        joined = pa.RecordBatch.from_arrays(columns, schema=self._joined)
        if self.residual is None:
            return joined, pairs
        holds = pc.fill_null(self.residual(joined), pa.scalar(value=False))
        return joined.filter(holds), pairs.where(holds.to_numpy(zero_copy_only=False))


def _check(names: Sequence[str], columns: int, hidden: Sequence[str]) -> None:
    if len(names) != columns:
        msg = f"the join has {columns} columns but {len(names)} names; name each column once"
        raise DefinitionError(msg)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        msg = f"both sides of the join have {', '.join(map(repr, twice))}; rename one of each"
        raise DefinitionError(msg)
    unknown = sorted(set(hidden) - set(names))
    if unknown:
        msg = f"the join cannot hide {', '.join(map(repr, unknown))}: it has {', '.join(names)}"
        raise DefinitionError(msg)
