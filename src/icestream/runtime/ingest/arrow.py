"""Arrow files (the IPC file format), which Spark itself cannot read.

Idea: Spark lists them as binary files and reads only their paths. If Spark needs rows, a function
of this module turns paths into rows; otherwise tasks recognise that function in the plan and read
the files themselves. Both use this reader. Uncompressed columns are used in place, from the mapped
file.

Invariant: record batch i of n is read with the piece that contains byte i/n of the file, so each is
read once (`test_pieces_of_an_arrow_file_share_its_batches_without_overlap`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pyarrow as pa
from pyarrow import ipc

from icestream.core.errors import InputError
from icestream.runtime.ingest.file_splits import FileSplit
from icestream.runtime.ingest.reader import BATCH_ROWS

#: name of the function that turns paths into rows, by which a plan is recognised
ARROW_ROWS = "icestream_arrow_rows"

Batches = Iterator[pa.RecordBatch]


class ArrowReader:
    """Reads the record batches of a piece."""

    def batches(self, piece: FileSplit, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
        with pa.memory_map(piece.path) as mapped:
            size = mapped.size()
            with _opened(piece.path, mapped, wanted) as file:
                count = file.num_record_batches
                for number in range(count):
                    if piece.holds(number * size // count):
                        batch = _typed(piece.path, file.get_batch(number), wanted)
                        for first in range(0, batch.num_rows, BATCH_ROWS):
                            yield batch.slice(first, BATCH_ROWS)


def rows_of_paths(schema: pa.Schema) -> Callable[[Batches], Batches]:
    """Return a function from batches of paths to the rows of those Arrow files."""

    def rows(paths: Batches) -> Batches:
        for batch in paths:
            for uri in batch.column(0).to_pylist():
                path = _local(uri)
                yield from ArrowReader().batches(FileSplit(path, 0, os.path.getsize(path)), schema)

    rows.__name__ = ARROW_ROWS
    return rows


def _local(uri: str) -> str:
    """Return the path of a local file from an address of Spark's, which has no escapes."""
    scheme, _, path = uri.rpartition(":")
    if scheme not in ("", "file"):
        msg = f"{uri}: Arrow files can only be read from local or mounted disks; mount the folder"
        raise InputError(msg)
    return "/" + path.lstrip("/")


def _opened(path: str, mapped: pa.MemoryMappedFile, wanted: pa.Schema) -> ipc.RecordBatchFileReader:
    try:
        schema = ipc.open_file(mapped).schema
        missing = [name for name in wanted.names if schema.get_field_index(name) < 0]
        if missing:
            msg = f"{path} has the columns {schema.names}, but not {missing}"
            raise InputError(msg)
        places = [schema.get_field_index(name) for name in wanted.names]
        chosen = ipc.IpcReadOptions(included_fields=sorted(places), use_threads=False)
        return ipc.open_file(mapped, options=chosen)
    except pa.ArrowInvalid as error:
        msg = (
            f"{path} is not an Arrow file: {error}. Write it with pyarrow.ipc.new_file, and move "
            "it into the folder of the stream once it is complete"
        )
        raise InputError(msg) from None


def _typed(path: str, batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    arrays = []
    for column in wanted:
        array = batch.column(column.name)
        try:
            arrays.append(array if array.type == column.type else array.cast(column.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            msg = (
                f"{path}: column {column.name!r} is {array.type} and cannot be converted to "
                f"{column.type}: {error}. Give the stream the type that the files have"
            )
            raise InputError(msg) from None
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)
