"""Arrow tables as payloads of records."""

from __future__ import annotations

import pyarrow as pa


def write_table(table: pa.Table | pa.RecordBatch) -> pa.Buffer:
    """Return a table or batch as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write(table)
    return sink.getvalue()


def read_batch(payload: memoryview | bytes) -> pa.RecordBatch:
    """Return the only batch of an Arrow IPC stream, without copying its values."""
    return pa.ipc.open_stream(pa.py_buffer(payload)).read_next_batch()


def read_table(payload: memoryview | bytes) -> pa.Table:
    """Return the table of an Arrow IPC stream, without copying its values."""
    return pa.ipc.open_stream(pa.py_buffer(payload)).read_all()
