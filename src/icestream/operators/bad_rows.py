"""Rows that a step refuses, one by one, with the reason.

Idea: a step that fails on some rows is tried again on halves of them, until the failing rows are
alone. What it refuses is part of its output: whoever runs the operator decides whether a refused
row ends the query or is stored. Before anything is tried again, the failure itself is emitted, so
that a query that ends at the first bad row calls no user code twice.

Invariants:
1. Good rows have the same effect as if bad ones had not been there
   (`test_oracle_bad_rows_leave_no_trace`).
2. A row is refused only if the step fails on it alone (the same test).

Cost: nothing while nothing fails; O(log rows) further calls for each bad row.

Limits: a step may be tried again only if its failure changed no state. Errors of memory, storage
and damaged files are not errors of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from icestream.core.errors import DefinitionError, InputError

#: errors that rows, or the user code that gets them, may cause
ROW_ERRORS = (DefinitionError, InputError)


@dataclass(frozen=True)
class BadRows:
    """Rows that a step refused; without rows, that it failed and tries again on parts of them."""

    #: the name of the step
    step: str
    error: Exception
    rows: pa.RecordBatch | None = None


Made = Iterator[pa.RecordBatch | BadRows]


def in_parts(
    step: str, rows: pa.RecordBatch, run: Callable[[pa.RecordBatch], Iterator[pa.RecordBatch]]
) -> Made:
    """Yield what a step makes of rows, and the rows that it refuses, in order.

    `run` changes state only if it does not fail.
    """
    try:
        made = list(run(rows))
    except ROW_ERRORS as error:
        if rows.num_rows <= 1:
            yield BadRows(step, error, rows)
            return
        yield BadRows(step, error)
        half = rows.num_rows // 2
        yield from in_parts(step, rows.slice(0, half), run)
        yield from in_parts(step, rows.slice(half), run)
    else:
        yield from made


def mapped(
    step: str, rows: pa.RecordBatch, change: Callable[[pa.RecordBatch], pa.RecordBatch]
) -> Made:
    """Yield the rows that a change of each row refuses, then what it makes of all others."""
    good = []
    for made in in_parts(step, rows, lambda some: iter((change(some),))):
        if isinstance(made, BadRows):
            yield made
        else:
            good.append(made)
    if good:
        yield good[0] if len(good) == 1 else pa.concat_batches(good)


__all__ = ["ROW_ERRORS", "BadRows", "Made", "in_parts", "mapped"]
