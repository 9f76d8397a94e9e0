"""What all readers of file formats share, and the shape that ingest expects.

Idea: a reader yields the requested columns of one piece in the requested types, under the names of
the file. This module puts them in the order and under the names that ingest expects, beside the
time of the batch where the query asks for it.

Invariant: columns that the query does not use are not decoded
(`test_columns_that_are_not_used_are_not_read`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from icestream.core.errors import IcestreamError
from icestream.core.times import Micros
from icestream.plan.nodes.queries import SOURCE
from icestream.runtime.ingest.file_splits import FileSplit

#: rows that a task decodes at once
BATCH_ROWS = 196_608
#: stands for a column of the files, none of which has this name: the current time of the batch
BATCH_TIME = "\0batch time"


class UnlikeSpark(IcestreamError):
    """Spark must read a file, because our reader might read it differently."""


class FormatReader(Protocol):
    """Reads pieces of files of one format."""

    def batches(self, piece: FileSplit, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield columns of a piece; raise `UnlikeSpark` if the result may differ from Spark's."""
        ...


@dataclass(frozen=True)
class FileSource:
    """A stream of files that tasks can read, and the file column behind each of its columns."""

    reader: FormatReader
    columns: Mapping[str, str]
    #: its number among the sources of the query, and the folder of its files; empty if alone
    number: int = 0
    folder: str = ""

    def has(self, path: str) -> bool:
        return not self.folder or path.startswith(f"{self.folder}/")

    @property
    def timed(self) -> str | None:
        """Return a column that has the time of the batch."""
        return next((name for name, of in self.columns.items() if of == BATCH_TIME), None)


def read(
    pieces: Sequence[FileSplit],
    sources: Sequence[FileSource],
    schema: pa.Schema,
    now: Micros | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read the events of some pieces of files, at a time that Spark gave the batch.

    Raise `UnlikeSpark` if Spark must read them.
    """
    for piece in pieces:
        source = next(each for each in sources if each.has(piece.path))
        names = source.columns
        types = {names[each.name]: each.type for each in schema if each.name in names}
        types.pop(BATCH_TIME, None)
        try:
            for batch in source.reader.batches(piece, pa.schema(list(types.items()))):
                yield _shaped(batch, source, schema, now)
        except (pa.ArrowException, OSError) as error:
            # damaged, or gone: Spark ignores such a file or reports it, as its settings say
            msg = f"{piece.path}: {error}"
            raise UnlikeSpark(msg) from None


def _shaped(
    batch: pa.RecordBatch, source: FileSource, schema: pa.Schema, now: Micros | None
) -> pa.RecordBatch:
    """Name the columns as ingest does, with the source number; columns of others are null."""
    arrays = [
        batch.column(source.columns[field.name])
        if source.columns.get(field.name, BATCH_TIME) != BATCH_TIME
        else _beside(field, source, now, batch.num_rows)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _beside(field: pa.Field, source: FileSource, now: Micros | None, rows: int) -> pa.Array:
    """Return a column that the files do not have."""
    if field.name == SOURCE:
        return pa.array(np.full(rows, source.number, dtype=np.int32))
    if field.name in source.columns:
        return pa.array(np.full(rows, now, dtype=np.int64)).cast(field.type)
    return pa.nulls(rows, field.type)
