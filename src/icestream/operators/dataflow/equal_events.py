"""Events of a chunk that are equal, taken as one that counts as often.

Idea: several aggregates of one statement, of distinct values above all, read the same events, each
a few of their columns, in which many events are equal; what is aggregated counts each event of a
change. A hash of groups, lifetimes and columns tells which are equal. Where few are, looking for
them does not pay: the first rows of a chunk are tried, and the step is left alone from then on.

Invariant: changes add up to the same events
(`test_equal_events_are_taken_as_one_that_counts_as_often`).

Cost: a hash of each row and a sort of these; of a few rows only where most differ.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from icestream.core.arrays import Ints
from icestream.operators.dataflow.sorted_changes import by_group
from icestream.operators.lifetimes.changes import DIFF, column_of, taken, with_column
from icestream.state.identities import in_order
from icestream.state.keys import identified

#: rows that are tried first, and the share of them that must go for looking to pay
TRIED = 4_096
WORTH = 1 / 4


class EqualEvents:
    """What a component knows about the events that its steps make."""

    def __init__(self, steps: Iterable[int]) -> None:
        """Look for equal events among those that some steps make."""
        self._steps = set(steps)

    def counted(self, step: int, changes: pa.RecordBatch) -> pa.RecordBatch:
        """Return the changes that a step makes, by group: equal events as one, none that cancel."""
        if step not in self._steps:
            return changes
        tried = changes.slice(0, TRIED)
        if len(_first(tried)[1]) > (1 - WORTH) * tried.num_rows:
            self._steps.discard(step)
            return changes
        order, begins = _first(changes)
        counts = np.add.reduceat(column_of(changes, DIFF)[order], begins)
        left = counts != 0
        return by_group(with_column(taken(changes, order[begins[left]]), DIFF, counts[left]))


def are_told_apart(payload: pa.Schema) -> bool:
    """Return whether values of columns that are equal are the same, as 0.0 and -0.0 are not."""
    kinds = pt.is_integer, pt.is_boolean, pt.is_string, pt.is_timestamp, pt.is_date
    return all(any(is_kind(each.type) for is_kind in kinds) for each in payload)


def _first(changes: pa.RecordBatch) -> tuple[Ints, Ints]:
    """Return the order of changes by their columns, and where equal ones begin."""
    columns = tuple(name for name in changes.schema.names if name != DIFF)
    ids = identified(changes, columns)
    order = in_order(*ids)
    same = np.ones(max(0, len(order) - 1), dtype=np.bool_)
    for each in ids:
        ordered = each[order]
        same &= ordered[1:] == ordered[:-1]
    return order, np.flatnonzero(np.concatenate([[True], ~same]))
