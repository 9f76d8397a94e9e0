"""What happens to rows that are refused: they end the query, or are stored with the reason.

Idea: rows that arrive too late or without a time, and rows that a step or user code refuses, go to
one table: the columns of the sources, then where the row was refused, and why. A row that a step
refuses no longer has the columns of its source: it is stored as JSON, as the step saw it. Without
a quarantine the first such row ends the query, and the error names the option.

Invariant: a version stores the rows that it refused, or does not exist
(`test_a_query_goes_on_after_bad_rows_are_quarantined`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from icestream.operators.bad_rows import BadRows
from icestream.operators.folding.fold import ID_HIGH_COLUMN, ID_LOW_COLUMN

#: columns of refused rows besides those of their sources
SOURCE_NAME = "_source"
REASON = "_reason"
ROW = "_row"
#: characters of a reason that are stored
LONGEST_REASON = 2_000
ADVICE = (
    "To store such rows with the reason and go on, set .option('onBadRow', 'quarantine') and "
    ".option('lateEvents', <folder>)"
)


class Quarantine:
    """Stores rows that steps refuse, or raises at the first."""

    def __init__(self, columns: pa.Schema | None, store: Callable[[pa.RecordBatch], None]) -> None:
        """Take the columns of the table; None if refused rows end the query."""
        self._columns = columns
        self._store = store
        #: rows that steps refused
        self.count = 0

    @property
    def stores(self) -> bool:
        return self._columns is not None

    def take(self, bad: BadRows) -> None:
        """Store rows that a step refused, or raise its error."""
        if self._columns is None:
            msg = f"{bad.error}. {ADVICE}"
            raise type(bad.error)(msg) from bad.error
        if bad.rows is not None:
            self.refuse(bad.rows, [bad.step] * bad.rows.num_rows, str(bad.error))

    def refuse(
        self,
        rows: pa.RecordBatch,
        sources: Sequence[str | None],
        reason: str,
        kept: Sequence[pa.Array] = (),
    ) -> None:
        """Store rows that were refused for a reason; `kept` are the columns of their sources."""
        self.count += rows.num_rows
        self.keep(rows, sources, reason, kept)

    def keep(
        self,
        rows: pa.RecordBatch,
        sources: Sequence[str | None],
        reason: str,
        kept: Sequence[pa.Array] = (),
    ) -> None:
        """Store rows without counting them as refused."""
        assert self._columns is not None
        count = rows.num_rows
        names = self._columns.names[: -len((SOURCE_NAME, REASON, ROW))]
        texts = [None] * count if len(kept) else _texts(rows)
        columns = [
            *(kept or [pa.nulls(count, self._columns.field(name).type) for name in names]),
            pa.array(sources, pa.string()),
            pa.array([reason[:LONGEST_REASON]] * count, pa.string()),
            pa.array(texts, pa.string()),
        ]
        self._store(pa.RecordBatch.from_arrays(columns, self._columns.names))


def refused_columns(kept: pa.Schema | None = None) -> pa.Schema:
    """Return the columns of refused rows, given those of their sources."""
    texts = [pa.field(name, pa.string()) for name in (SOURCE_NAME, REASON, ROW)]
    return pa.schema([*(kept or ()), *texts])


def _texts(rows: pa.RecordBatch) -> list[str]:
    """Return rows as JSON; values that JSON does not have are written as text."""
    internal = {ID_HIGH_COLUMN, ID_LOW_COLUMN}
    shown = rows.select([name for name in rows.schema.names if name not in internal])
    try:
        return _dumped(shown)
    except (OverflowError, ValueError):  # Python has no such instants
        columns = [
            each.cast(pa.int64()) if pa.types.is_timestamp(each.type) else each
            for each in shown.columns
        ]
        return _dumped(pa.RecordBatch.from_arrays(columns, names=shown.schema.names))


def _dumped(shown: pa.RecordBatch) -> list[str]:
    return [json.dumps(row, default=_plain, ensure_ascii=False) for row in shown.to_pylist()]


def _plain(value: Any) -> str:
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
