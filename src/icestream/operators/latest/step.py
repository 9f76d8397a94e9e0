"""The expensive step behind a queue: a user's function over many keys at once, or row by row.

Idea: the function gets the newest rows of some keys as one Arrow batch (or pandas frame, or one
mapping for each row) and returns rows of a declared schema. Its result is checked: columns are cast
to the schema, and rows may only have keys that the function received, because the application would
take them for updates of these keys.

Invariants:
1. Rows have exactly the declared columns (`test_results_have_the_declared_columns`).
2. A function that changes the update key is rejected (`test_a_step_may_not_change_the_key`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from icestream.core.errors import DefinitionError, IcestreamError, InputError
from icestream.operators.bad_rows import Made, in_parts
from icestream.operators.latest.identities import places_among
from icestream.operators.payload_identity import identified

ARROW = "arrow"
PANDAS = "pandas"
ROWS = "rows"


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

    @property
    def name(self) -> str:
        """Return the name of the function."""
        return getattr(self.function, "__name__", type(self.function).__name__)

    @property
    def text(self) -> str:
        """Return the step as text, for readers and for checkpoints."""
        return f"{self.name}: {_shown(self.result)}"

    def served(self, rows: pa.RecordBatch) -> Made:
        """Yield the function's results for rows, and the rows on which it fails."""
        return in_parts(self.name, rows, lambda some: iter((self(some),)))

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the function's result for rows."""
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
        self._check_keys(rows, shaped)
        return shaped

    def _by_row(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        made: list[Mapping[str, Any]] = []
        for row in rows.to_pylist():
            one = self.function(row)
            if one is not None:
                made.append(one)
        return pa.RecordBatch.from_pylist(made, schema=self.result)

    def _shaped(self, made: pa.RecordBatch) -> pa.RecordBatch:
        missing = [name for name in self.result.names if name not in made.schema.names]
        if missing:
            msg = (
                f"{self.name} returned the columns {made.schema.names}; its schema "
                f"({_shown(self.result)}) also has {missing}"
            )
            raise InputError(msg)
        try:
            columns = [made.column(field.name).cast(field.type) for field in self.result]
        except pa.ArrowInvalid as error:
            msg = f"{self.name} returned values that do not fit ({_shown(self.result)}): {error}"
            raise InputError(msg) from None
        return pa.RecordBatch.from_arrays(columns, schema=self.result)

    def _check_keys(self, rows: pa.RecordBatch, made: pa.RecordBatch) -> None:
        if not self.keys or not made.num_rows:
            return
        asked, returned = identified(rows, self.keys), identified(made, self.keys)
        known = places_among(*returned, *asked) >= 0
        if not known.all():
            place = int(np.flatnonzero(~known)[0])
            row = made.select(list(self.keys)).slice(place, 1).to_pylist()[0]
            msg = (
                f"{self.name} returned a row for the key {row}, which it did not receive: a step "
                "over an update stream may not change the key"
            )
            raise InputError(msg)


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """Return a table as one batch, for the function of a step over an update stream."""
    columns = [column.combine_chunks() for column in table.columns]
    return pa.RecordBatch.from_arrays(columns, schema=table.schema)


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{each.name} {each.type}" for each in schema)
