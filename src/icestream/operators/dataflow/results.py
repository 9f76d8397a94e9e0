"""Changes as the rows that users see."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from icestream.core.times import INFINITY
from icestream.operators.temporal.changes import DIFF, LE, RE, column_of, payload_of

#: the first column of every row, and the one that tells what happens to it in update mode
LIFETIME = "lifetime"
CHANGE = "change"


@dataclass(frozen=True)
class LifetimeRows:
    """Turns changes into rows: the lifetime, what happens, the payload.

    A lifetime without an end has a null there. An event that comes several times is several rows.
    """

    payload: pa.Schema
    time: pa.DataType
    mode: str

    @property
    def schema(self) -> pa.Schema:
        """Return the columns of the rows."""
        change = [pa.field(CHANGE, pa.int32(), nullable=False)] * (self.mode == "update")
        return pa.schema(
            [pa.field(LIFETIME, self._lifetime, nullable=False), *change, *self.payload]
        )

    @property
    def _lifetime(self) -> pa.DataType:
        return pa.struct([pa.field("start", self.time), pa.field("end", self.time)])

    def __call__(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of changes."""
        diff = column_of(changes, DIFF)
        if (np.abs(diff) != 1).any():
            changes = changes.take(pa.array(np.repeat(np.arange(len(diff)), np.abs(diff))))
            diff = column_of(changes, DIFF)
        ends = column_of(changes, RE)
        lifetime = pa.StructArray.from_arrays(
            [
                changes.column(LE).cast(self.time),
                pa.array(ends, mask=ends == INFINITY).cast(self.time),
            ],
            fields=list(self._lifetime),
        )
        change = [pa.array(np.sign(diff).astype(np.int32))] * (self.mode == "update")
        columns = [lifetime, *change, *payload_of(changes).columns]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)
