"""Parquet files, read as Spark reads them.

Invariants:
1. A row group, or an equal part of a large one, is read with the piece that contains its middle, so
   every row is read once (`test_pieces_of_a_file_share_its_row_groups_without_overlap`,
   `test_pieces_of_a_file_share_a_large_row_group_without_overlap`).
2. 96-bit timestamps that Spark wrote are read as the same instants
   (`test_oracle_files_that_spark_wrote_are_read_alike`).

Cost: to read the last part of a row group, those before it are decoded too; so parts are few.

Limits: Spark reads columns that are stored in another type than the stream has.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from icestream.runtime.ingest.file_splits import LEAST_SHARE, FileSplit
from icestream.runtime.ingest.reader import BATCH_ROWS, UnlikeSpark

#: metadata keys of files whose dates or 96-bit timestamps use another calendar
_OLD_CALENDARS = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
#: metadata key of the Spark that wrote a file; others may use another calendar or zone in 96 bits
_SPARK = b"org.apache.spark.version"
#: parts into which a large row group is divided
MOST_PARTS = 4


class ParquetReader:
    """Reads the row groups of a piece."""

    def batches(self, piece: FileSplit, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
        with pq.ParquetFile(piece.path, memory_map=True, coerce_int96_timestamp_unit="us") as file:
            _check(piece.path, file, wanted)
            for groups, first, last in row_ranges(file, piece):
                passed = 0
                for batch in file.iter_batches(BATCH_ROWS, groups, wanted.names, use_threads=False):
                    begin = max(0, first - passed)
                    chosen = batch.slice(begin, max(0, last - passed - begin))
                    passed += batch.num_rows
                    if chosen.num_rows:
                        yield _typed(chosen, wanted)
                    if passed >= last:
                        break


def _check(path: str, file: Any, wanted: pa.Schema) -> None:
    marks = file.metadata.metadata or {}
    if any(mark in marks for mark in _OLD_CALENDARS):
        msg = f"{path}: dates in the calendar of older versions of Spark"
        raise UnlikeSpark(msg)
    stored = file.schema_arrow
    for column in wanted:
        place = stored.get_field_index(column.name)
        if place < 0 or not (
            _alike(stored.field(place).type, column.type)
            or (_is_instant(column.type) and _is_sparks_int96(file, column.name))
        ):
            msg = f"{path}: column {column.name!r} is not stored as {column.type}"
            raise UnlikeSpark(msg)


def _alike(stored: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_timestamp(stored) and pa.types.is_timestamp(wanted):
        return (stored.tz is None) == (wanted.tz is None) and stored.unit in ("us", "ms")
    return bool(stored == wanted)


def _is_instant(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) and kind.tz is not None


def _is_sparks_int96(file: Any, name: str) -> bool:
    if _SPARK not in (file.metadata.metadata or {}):
        return False
    columns = (file.schema.column(place) for place in range(len(file.schema)))
    return any(each.path == name and each.physical_type == "INT96" for each in columns)


def row_ranges(file: Any, piece: FileSplit) -> list[tuple[list[int], int, int]]:
    """Return the row groups of a Parquet file, and which of their rows a piece has to read."""
    found: list[tuple[list[int], int, int]] = []
    whole: list[int] = []
    rows = 0
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        first, last = _part(group, piece)
        if last - first == group.num_rows:
            whole.append(number)
            rows += last
        elif first < last:
            found.append(([number], first, last))
    # a piece has parts of at most the row groups at its ends, and whole ones between these
    at = sum(numbers[0] < whole[0] for numbers, _, _ in found) if whole else 0
    return [*found[:at], *([(whole, 0, rows)] if rows else []), *found[at:]]


def _part(group: Any, piece: FileSplit) -> tuple[int, int]:
    """Return the first and last row of the parts of a row group whose middle is in a piece."""
    column = group.column(0)
    start = column.data_page_offset
    if column.has_dictionary_page and column.dictionary_page_offset:
        start = min(start, column.dictionary_page_offset)
    size = sum(group.column(i).total_compressed_size for i in range(group.num_columns))
    parts = max(1, min(MOST_PARTS, size // LEAST_SHARE))
    middles = [start + size * (2 * part + 1) // (2 * parts) for part in range(parts)]
    chosen = [part for part, middle in enumerate(middles) if piece.holds(middle)]
    if not chosen:
        return 0, 0
    return group.num_rows * chosen[0] // parts, group.num_rows * (chosen[-1] + 1) // parts


def _typed(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    arrays = [_instants(batch.column(each.name), each.type) for each in wanted]
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _instants(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert timestamps to a unit; those of 96 bits have no zone and are in UTC."""
    return array if array.type == kind else array.cast(kind)
