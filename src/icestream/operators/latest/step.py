"""The expensive step behind a queue: a user's function over many keys at once, or row by row.

Idea: the function gets the newest rows of some keys as one Arrow batch (or pandas frame, or one
mapping for each row) and returns rows of a declared schema. Its result is checked: columns are cast
to the schema, and rows may only have keys that the function received, because the application would
take them for updates of these keys.

Invariants:
1. Rows have exactly the declared columns (`test_results_have_the_declared_columns`).
2. A function that changes the update key is rejected (`test_a_step_may_not_change_the_key`).
3. A stamped row has the time of its key's update
   (`test_stamped_rows_have_the_time_of_their_update`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints
from icestream.core.errors import DefinitionError, IcestreamError, InputError
from icestream.operators.bad_rows import Made, in_parts
from icestream.state.identities import places_among
from icestream.state.keys import identified

ARROW = "arrow"
PANDAS = "pandas"
ROWS = "rows"
#: column of results with the time of the update that a row answers
UPDATED = "updated"


@dataclass(frozen=True)
class UpdateStep:
    """A user's function with its input and output columns."""

    function: Callable[[Any], Any]
    #: columns of the rows it gets
    payload: pa.Schema
    #: columns of the rows it returns
    result: pa.Schema
    #: columns of the update key
    keys: tuple[str, ...] = ()
    #: `arrow`, `pandas` or `rows`: what the function takes and returns
    form: str = ARROW
    #: whether it runs on every event, not only on the newest of a key
    every: bool = False
    #: how often the function is called again if it fails
    retries: int = 0
    #: column of the rows it gets with the time of the update, if results have it as `updated`
    stamp: str | None = None

    def __post_init__(self) -> None:
        """Reject a result without the key."""
        for name in self.keys:
            place = self.result.get_field_index(name)
            kind = self.payload.field(name).type
            if place < 0 or self.result.field(place).type != kind:
                msg = (
                    f"{self.name} must keep the update key, so that the key of each row is known: "
                    f"add '{name} {kind}' to its schema ({_shown(self.result)})"
                )
                raise DefinitionError(msg)

    def stamped(self, time: str | None) -> UpdateStep:
        """Return the step with the time of the update in its results, or without it for None."""
        returned = self._returned
        if time is None:
            return replace(self, result=returned, stamp=None)
        if UPDATED in returned.names:
            msg = f"output mode 'now' adds a column {UPDATED!r}: let {self.name} use another name"
            raise DefinitionError(msg)
        result = returned.append(pa.field(UPDATED, self.payload.field(time).type))
        return replace(self, result=result, stamp=time)

    @property
    def _returned(self) -> pa.Schema:
        """Return the columns that the function returns."""
        if self.stamp is None:
            return self.result
        return self.result.remove(self.result.get_field_index(UPDATED))

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)

    @property
    def text(self) -> str:
        """Return the step as text, for readers and for checkpoints."""
        return f"{self.name}: {_shown(self.result)}"

    def served(self, rows: pa.RecordBatch) -> Made:
        """Yield the function's results for rows, and the rows on which it fails."""
        return in_parts(self.name, rows, lambda some: iter((self(some),)))

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        for left in range(self.retries, -1, -1):
            try:
                return self._called(rows)
            except IcestreamError:
                raise
            except Exception as error:
                if not left:
                    msg = f"{self.name} failed with {type(error).__name__}: {error}"
                    raise DefinitionError(msg) from error
        raise AssertionError

    def _called(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if self.form == PANDAS:
            made: object = pa.RecordBatch.from_pandas(
                self.function(rows.to_pandas()), preserve_index=False
            )
        elif self.form == ROWS:
            made = self._by_row(rows)
        else:
            made = self.function(rows)
        if isinstance(made, pa.Table):
            made = one_batch(made)
        if not isinstance(made, pa.RecordBatch):
            msg = f"{self.name} must return an Arrow record batch or table; got {type(made)}"
            raise InputError(msg)
        shaped = self._shaped(made)
        places = self._places(rows, shaped)
        if self.stamp is None:
            return shaped
        times = rows.column(self.stamp).take(pa.array(places))
        return pa.RecordBatch.from_arrays([*shaped.columns, times], schema=self.result)

    def _by_row(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        made: list[Mapping[str, Any]] = []
        for row in rows.to_pylist():
            one: object = self.function(row)
            if one is not None and not isinstance(one, Mapping):
                msg = f"{self.name} must return a dictionary or None; got {type(one)}"
                raise InputError(msg)
            if one is not None:
                made.append(one)
        return pa.RecordBatch.from_pylist(made, schema=self._returned)

    def _shaped(self, made: pa.RecordBatch) -> pa.RecordBatch:
        returned = self._returned
        missing = [name for name in returned.names if name not in made.schema.names]
        if missing:
            msg = (
                f"{self.name} returned the columns {made.schema.names}; its schema "
                f"({_shown(returned)}) also has {missing}"
            )
            raise InputError(msg)
        try:
            columns = [made.column(field.name).cast(field.type) for field in returned]
        except pa.ArrowInvalid as error:
            msg = f"{self.name} returned values that do not fit ({_shown(returned)}): {error}"
            raise InputError(msg) from None
        return pa.RecordBatch.from_arrays(columns, schema=returned)

    def _places(self, rows: pa.RecordBatch, made: pa.RecordBatch) -> Ints:
        """Return which row each result belongs to; InputError for a key that was not asked for."""
        if not self.keys or not made.num_rows:
            return np.zeros(made.num_rows, dtype=np.int64)
        asked, returned = identified(rows, self.keys), identified(made, self.keys)
        places = places_among(*returned, *asked)
        if (places < 0).any():
            place = int(np.flatnonzero(places < 0)[0])
            row = made.select(list(self.keys)).slice(place, 1).to_pylist()[0]
            msg = (
                f"{self.name} returned a row for the key {row}, which it did not receive: a step "
                "over an update stream may not change the key"
            )
            raise InputError(msg)
        return places


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """Return a table as one batch, for the function of a step over an update stream."""
    columns = [column.combine_chunks() for column in table.columns]
    return pa.RecordBatch.from_arrays(columns, schema=table.schema)


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{each.name} {each.type}" for each in schema)
