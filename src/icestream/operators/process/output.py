"""Output of user code as changes: checked columns, a time, and the group it belongs to.

Idea: rows of many calls are collected into one batch. A row is a point event at the time of the
call that returned it, unless it has `__le` and, if it is not a point, `__re`.

Invariant: output without the declared columns is rejected, and the error shows both
(`test_wrong_output_is_shown_beside_what_was_declared`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ids, Ints
from icestream.core.errors import DefinitionError, IcestreamError, InputError
from icestream.core.times import Micros
from icestream.operators.lifetimes.changes import DIFF, LE, RE, changes_of
from icestream.operators.process.values import Row, RowCoder, shown

#: columns that output may have in addition to those declared
TIMES = (LE, RE, DIFF)


def wrong_output(result: pa.Schema, found: pa.Schema | Iterable[str], why: str = "") -> Exception:
    """Return the error for output of user code whose columns differ from those declared."""
    return DefinitionError(
        f"output has the columns ({shown(found)}), but ({shown(result)}) are declared{why}; "
        "__le, __re and __diff may be added"
    )


@contextmanager
def user_errors(place: Callable[[], str], details: Callable[[], str] = str) -> Iterator[None]:
    """Let errors of user code, and of its output, name the place they come from."""
    try:
        yield
    except (DefinitionError, InputError) as error:
        msg = f"{place()}: {error}"
        raise type(error)(msg) from error
    except IcestreamError:
        raise
    except Exception as error:
        msg = f"{place()}: user code failed with {type(error).__name__}: {error}{details()}"
        raise DefinitionError(msg) from error


def fitted(batch: pa.RecordBatch, result: pa.Schema, extra: Iterable[str]) -> pa.RecordBatch:
    """Return the declared columns of a batch of output in their types."""
    if batch.schema.equals(result):
        return batch
    names = set(batch.schema.names)
    if names - set(extra) != set(result.names) or len(names) < batch.num_columns:
        raise wrong_output(result, batch.schema)
    try:
        return batch.select(result.names).cast(result)
    except (pa.ArrowException, ValueError) as error:
        raise wrong_output(result, batch.schema, f": {error}") from None


def time_columns(batch: pa.RecordBatch, now: Ints) -> tuple[Ints, Ints, Ints]:
    """Return start, end and count of the events of output returned at time `now`."""
    names = batch.schema.names
    le = _integers(batch, LE) if LE in names else now
    re = _integers(batch, RE) if RE in names else le + 1
    diff = _integers(batch, DIFF) if DIFF in names else np.ones(len(le), dtype=np.int64)
    if (re <= le).any():
        at = int(np.argmax(re <= le))
        raise _backwards(int(le[at]), int(re[at]))
    return le, re, diff


def _integers(batch: pa.RecordBatch, name: str) -> Ints:
    try:
        column = batch.column(name).cast(pa.int64())
    except pa.ArrowException as error:
        msg = f"output column {name} must be a whole number of microseconds: {error}"
        raise DefinitionError(msg) from None
    if column.null_count:
        msg = f"output column {name} is null in a row: give it an instant, or leave the column out"
        raise DefinitionError(msg)
    return np.asarray(column)


class Collected:
    """Rows that user code returned, group by group."""

    def __init__(self, result: pa.Schema) -> None:
        self._result = result
        self._coder = RowCoder(result)
        self._expected = frozenset(result.names)
        self._values = itemgetter(*result.names) if len(result) > 1 else None
        self._rows: list[Row] = []
        #: position, start, end and count of each row
        self._heads: list[tuple[int, int, int, int]] = []
        self._batches: list[tuple[int, int, pa.RecordBatch]] = []

    def add(self, position: int, now: Micros, made: Any) -> None:
        """Add what one call returned: an iterator, a row, a batch, or None."""
        if made is None:
            return
        if isinstance(made, (dict, pa.RecordBatch, pa.Table)):
            made = (made,)
        for item in made:
            if type(item) is dict:
                self._add_row(position, now, item)
            elif isinstance(item, pa.RecordBatch):
                self._check(item)
                self._batches.append((position, now, item))
            elif isinstance(item, pa.Table):
                self.add(position, now, item.to_batches())
            else:
                msg = f"output must be dicts or Arrow batches; got {item!r}"
                raise DefinitionError(msg)

    def take(self, id_high: Ids, id_low: Ids) -> Iterator[pa.RecordBatch]:
        """Yield the collected rows as changes, given the identities of the positions."""
        if self._rows:
            payload = self._coder.batch(self._rows)
            at, le, re, diff = np.array(self._heads, dtype=np.int64).T
            yield changes_of(payload, le, re, diff, id_high[at], id_low[at])
        if self._batches:
            parts = [fitted(batch, self._result, TIMES) for _, _, batch in self._batches]
            heads = [
                time_columns(batch, np.full(batch.num_rows, now, dtype=np.int64))
                for _, now, batch in self._batches
            ]
            sizes = [batch.num_rows for batch in parts]
            at = np.repeat([position for position, _, _ in self._batches], sizes)
            le, re, diff = (np.concatenate(column) for column in zip(*heads, strict=True))
            yield changes_of(pa.concat_batches(parts), le, re, diff, id_high[at], id_low[at])

    def _add_row(self, position: int, now: Micros, row: dict[str, Any]) -> None:
        le, re, diff = now, now + 1, 1
        if len(row) != len(self._expected):
            if row.keys() - TIMES != self._expected:
                raise wrong_output(self._result, row)
            le = _instant(row, LE, now)
            re = _instant(row, RE, le + 1)
            diff = _instant(row, DIFF, 1)
            if re <= le:
                raise _backwards(le, re)
        try:
            values = (row[self._result.names[0]],) if self._values is None else self._values(row)
        except KeyError:
            raise wrong_output(self._result, row) from None
        self._rows.append(values)
        self._heads.append((position, le, re, diff))

    def _check(self, batch: pa.RecordBatch) -> None:
        """Check a batch now, while the call that returned it is known."""
        if not batch.schema.equals(self._result):
            fitted(batch, self._result, TIMES)
            time_columns(batch, np.zeros(batch.num_rows, dtype=np.int64))


def _instant(row: dict[str, Any], name: str, otherwise: int) -> int:
    value = row.get(name, otherwise)
    if not isinstance(value, (int, np.integer)):
        msg = f"output column {name} must be a whole number of microseconds; got {value!r}"
        raise DefinitionError(msg)
    return int(value)


def _backwards(le: int, re: int) -> DefinitionError:
    return DefinitionError(f"output ends before it begins: __le {le}, __re {re}")
