"""Reading the files of a batch in the ingest tasks, instead of taking rows from the JVM.

Idea: a row that goes through the JVM costs far more than folding it does. Where the stream is a
folder of Parquet files and the query uses plain columns of them, Spark still decides which files
belong to which batch and how they are split, and the tasks read those pieces with pyarrow.

Invariants:
1. The pieces of a batch are those of Spark's own scan, so every row is read once
   (`test_oracle_reading_files_directly_gives_the_same_rows`).
2. Whatever is not plainly the same as Spark would read it (other types, columns that are missing,
   partition folders, filters, expressions) goes through the JVM
   (`test_files_that_need_sparks_reader_go_through_the_jvm`).

Limits: Parquet on a local or mounted disk, one source.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from icestream.core.errors import IcestreamError
from icestream.plan.nodes import SOURCE, Plan

#: rows that a task decodes at once
BATCH_ROWS = 131_072

_FILE_RELATION = "StreamingRelation"
#: mark of files whose dates must be moved to today's calendar
_OLD_CALENDAR = b"org.apache.spark.legacyDateTime"


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of bytes of a file; the row groups whose middle is in it belong to it."""

    path: str
    start: int
    length: int


class UnlikeSpark(IcestreamError):
    """A file must be read by Spark, because we would not read it as Spark does."""


def file_columns(events: DataFrame) -> dict[str, str] | None:
    """Return the file column behind each column of the events; None if they need Spark's reader."""
    plan = events._jdf.queryExecution().analyzed()
    names = _resolve(plan)
    if names is None:
        return None
    output = plan.output()
    found: dict[str, str] = {}
    for place in range(output.size()):
        attribute = output.apply(place)
        name = names.get(attribute.exprId().id())
        if name is None and attribute.name() != SOURCE:
            return None
        if name is not None:
            found[attribute.name()] = name
    return found


def _resolve(plan: Any) -> dict[int, str] | None:
    """Return the file column of each expression id, through plain projections only."""
    kind = plan.getClass().getSimpleName()
    if kind == _FILE_RELATION:
        if plan.dataSource().className().lower() != "parquet":
            return None
        return {a.exprId().id(): a.name() for a in _items(plan.output())}
    if kind != "Project":
        return None
    below = _resolve(plan.children().apply(0))
    if below is None:
        return None
    above: dict[int, str] = {}
    for expression in _items(plan.projectList()):
        named = expression.getClass().getSimpleName() == "Alias"
        inner = expression.child() if named else expression
        if inner.getClass().getSimpleName() == "AttributeReference":
            name = below.get(inner.exprId().id())
            if name is not None:
                above[expression.exprId().id()] = name
    return above


def pieces_of(batch: DataFrame) -> list[list[Piece]] | None:
    """Return what each task of Spark's own scan of the batch would read; None if it is no scan."""
    found: list[list[Piece]] = []
    waiting = [batch._jdf.queryExecution().logical().rdd()]
    while waiting:
        rdd = waiting.pop()
        if rdd.getClass().getSimpleName() == "FileScanRDD":
            found += [_pieces(each.files()) for each in _items(rdd.filePartitions())]
        waiting += [each.rdd() for each in _items(rdd.dependencies())]
    plain = all(piece.path for pieces in found for piece in pieces)
    return found if found and plain else None


def _pieces(files: Any) -> list[Piece]:
    return [
        Piece(_local(file.filePath().toString()), file.start(), file.length()) for file in files
    ]


def _local(uri: str) -> str:
    """Return the path of a local file without partition folders, or nothing."""
    parts = urlsplit(uri)
    path = unquote(parts.path)
    plain = parts.scheme in ("", "file") and "=" not in path.rsplit("/", 1)[0]
    return path if plain else ""


def read(pieces: Sequence[Piece], plan: Plan, columns: dict[str, str]) -> Iterator[pa.RecordBatch]:
    """Yield the events of some pieces; `UnlikeSpark` before the first if that cannot be done."""
    opened = [(piece, _open(piece, plan, columns)) for piece in pieces]
    for piece, file in opened:
        groups = _row_groups(file, piece)
        if groups:
            wanted = list(dict.fromkeys(columns.values()))
            for batch in file.iter_batches(BATCH_ROWS, groups, wanted, use_threads=False):
                yield _shaped(batch, plan, columns)
        file.close()


def _open(piece: Piece, plan: Plan, columns: dict[str, str]) -> Any:
    file = pq.ParquetFile(piece.path, memory_map=True)
    if _OLD_CALENDAR in (file.metadata.metadata or {}):
        file.close()
        msg = f"{piece.path}: dates in the calendar of older Sparks"
        raise UnlikeSpark(msg)
    for name, source in columns.items():
        wanted = plan.batch_schema.field(name).type
        place = file.schema_arrow.get_field_index(source)
        if place < 0 or not _alike(file.schema_arrow.field(place).type, wanted):
            file.close()
            msg = f"{piece.path}: column {source!r} is not stored as {wanted}"
            raise UnlikeSpark(msg)
    return file


def _alike(stored: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_timestamp(stored) and pa.types.is_timestamp(wanted):
        return (stored.tz is None) == (wanted.tz is None) and stored.unit in ("us", "ms")
    return bool(stored == wanted)


def _row_groups(file: Any, piece: Piece) -> list[int]:
    """Return the row groups whose middle lies in the piece: the rule of Parquet's own readers."""
    chosen = []
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        first = group.column(0)
        start = first.data_page_offset
        if first.has_dictionary_page and first.dictionary_page_offset:
            start = min(start, first.dictionary_page_offset)
        size = sum(group.column(i).total_compressed_size for i in range(group.num_columns))
        if piece.start <= start + size // 2 < piece.start + piece.length:
            chosen.append(number)
    return chosen


def _shaped(batch: pa.RecordBatch, plan: Plan, columns: dict[str, str]) -> pa.RecordBatch:
    arrays = [
        batch.column(columns[field.name]).cast(field.type)
        if field.name in columns
        else pa.array(np.zeros(batch.num_rows, dtype=np.int32))
        for field in plan.batch_schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=plan.batch_schema)


def _items(sequence: Any) -> Iterator[Any]:
    for place in range(sequence.size()):
        yield sequence.apply(place)
