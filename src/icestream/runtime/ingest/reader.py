"""What all readers of file formats share, and the shape that ingest expects.

Idea: a reader yields the requested columns of one piece in the requested types, under the names of
the file. This module puts them in the order and under the names that ingest expects.

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
from icestream.plan.nodes.queries import SOURCE
from icestream.runtime.ingest.file_splits import FileSplit

#: rows that a task decodes at once
BATCH_ROWS = 196_608


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


def read(
    pieces: Sequence[FileSplit], sources: Sequence[FileSource], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Read the events of some pieces of files; raise `UnlikeSpark` if Spark must read them."""
    for piece in pieces:
        source = next(each for each in sources if each.has(piece.path))
        names = source.columns
        types = {names[each.name]: each.type for each in schema if each.name in names}
        try:
            for batch in source.reader.batches(piece, pa.schema(list(types.items()))):
                yield _shaped(batch, source, schema)
        except (pa.ArrowException, OSError) as error:
            # damaged, or gone: Spark ignores such a file or reports it, as its settings say
            msg = f"{piece.path}: {error}"
            raise UnlikeSpark(msg) from None


def _shaped(batch: pa.RecordBatch, source: FileSource, schema: pa.Schema) -> pa.RecordBatch:
    """Name the columns as ingest does, with the source number; columns of others are null."""
    arrays = [
        batch.column(source.columns[field.name])
        if field.name in source.columns
        else _beside(field, source.number, batch.num_rows)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _beside(field: pa.Field, number: int, rows: int) -> pa.Array:
    if field.name == SOURCE:
        return pa.array(np.full(rows, number, dtype=np.int32))
    return pa.nulls(rows, field.type)
