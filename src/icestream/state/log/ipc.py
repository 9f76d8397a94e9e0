"""Arrow tables as payloads of records.

Invariants:
1. A payload whose values do not match their lengths is refused when it is read, before anything
   uses them (`test_values_that_do_not_fit_are_refused`).

Cost: reading copies nothing; strings and lists are scanned once.
"""

from __future__ import annotations

import pyarrow as pa

#: given, so that Arrow does not look for others in the environment each time
_OPTIONS = pa.ipc.IpcWriteOptions()


def write_table(table: pa.Table | pa.RecordBatch) -> pa.Buffer:
    """Return a table or batch as an Arrow IPC stream, the payload of a record."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=_OPTIONS) as stream:
        stream.write(table)
    return sink.getvalue()


def read_batch(payload: memoryview | bytes) -> pa.RecordBatch:
    """Return the only batch of an Arrow IPC stream, without copying its values."""
    batch = next(iter(pa.ipc.open_stream(pa.py_buffer(payload))), None)
    if batch is None:
        msg = "an Arrow stream has no batch"
        raise ValueError(msg)
    batch.validate(full=True)
    return batch


def read_table(payload: memoryview | bytes) -> pa.Table:
    """Return the table of an Arrow IPC stream, without copying its values."""
    table = pa.ipc.open_stream(pa.py_buffer(payload)).read_all()
    table.validate(full=True)
    return table
