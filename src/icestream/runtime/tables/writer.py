"""What a task does with rows of a table: encode them as Parquet, once.

Idea: rows are collected until they fill a row group, then encoded: what repeats with dictionaries,
integers that are close together as packed differences. All shards of a task write to the same
file, or to one file for each value that the table is partitioned by. The report names the files;
nobody reads them as part of the table until its log does.

Invariants:
1. Rows that were written are in the reported files, once, in order within a partition
   (`test_parity_rows_of_a_task_beside_its_files`).
2. Few files are open, and what waits is bounded, whatever the number of partitions
   (`test_bounded_files_and_rows_that_a_task_has_open`).

Cost: one encoding per row; memory of `GROUP_BYTES` and an encoded row group per open file.
"""

from __future__ import annotations

import io
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from icestream.runtime.tables.layout import (
    OpenTableFile,
    TableLayout,
    partition_value,
    table_storage,
)
from icestream.state.files import Files, NewFile
from icestream.state.versions.attempts import new_attempt
from icestream.state.versions.table_files import TableFile, table_file_name

#: bytes of rows that wait to be encoded
GROUP_BYTES = 16 << 20
#: bytes of encoded pages that are written at once
_WRITTEN_AT_ONCE = 1 << 18
#: files that a task has open at the same time
MOST_OPEN = 64
#: rows of a file that are looked at to choose its encodings
_SAMPLED = 1024
#: characters of the longest string that statistics contain
_LONGEST = 64

#: types of Parquet whose greatest value may be NaN, which footers leave out
_WITH_NAN = ("FLOAT", "DOUBLE")

#: metadata of files with columns that were picked: where each was
_PICKED = b"icestream.picked"

Values = tuple[Any, ...]
#: the place of a column, and places in structs
Place = tuple[int, ...]


class TableWriters:
    """The files that one attempt of a task writes, for the tables of some views."""

    def __init__(
        self, layouts: Sequence[TableLayout], version: int, place: int, epoch: int
    ) -> None:
        attempt = new_attempt(epoch)
        self._writers = {
            layout.view: TableWriter(
                layout, partial(table_file_name, layout.writer, version, place, attempt)
            )
            for layout in layouts
        }

    def write(self, view: int, rows: pa.RecordBatch) -> bool:
        """Take rows of a view; False if it has no table."""
        writer = self._writers.get(view)
        if writer is None:
            return False
        writer.write(rows)
        return True

    def finish(self, *, sync: bool = False) -> list[TableFile]:
        """Close all files and return them; they are durable only if they are synced."""
        files = [file for writer in self._writers.values() for file in writer.finish()]
        if sync:
            for writer in self._writers.values():
                writer.sync()
        return files

    @property
    def written(self) -> dict[str, list[str]]:
        return {each.folder: each.written for each in self._writers.values()}

    def abandon(self) -> None:
        """Remove everything that was written."""
        for writer in self._writers.values():
            writer.abandon()


class TableWriter:
    """Writes rows to new files of one table."""

    def __init__(self, layout: TableLayout, name: Callable[[int], str]) -> None:
        """Write nothing yet; `name` returns the name of the file with a number."""
        self.folder = layout.folder
        #: paths of all files
        self.written: list[str] = []
        self._layout = layout
        self._name = name
        self._open: dict[Values, _OpenTableFile] = {}
        self._done: list[TableFile] = []
        self._waiting = 0

    def write(self, rows: pa.RecordBatch | pa.Table) -> None:
        schema, picked = self._layout.schema, self._layout.picked
        found = rows.columns if picked is None else [_picked(rows, place) for place in picked]
        columns = [
            each if each.type == field.type else each.cast(field.type)
            for each, field in zip(found, schema, strict=True)
        ]
        table = pa.Table.from_arrays(columns, schema=schema)
        for values, part in self._parts(table):
            file = self._open.get(values) or self._start(values)
            file.waiting.append(part)
            file.waiting_bytes += part.nbytes
            self._waiting += part.nbytes
        if self._waiting >= GROUP_BYTES:
            self._encode()

    def finish(self) -> list[TableFile]:
        for values in [*self._open]:
            self._close(values)
        return self._done

    def sync(self) -> None:
        """Make all files durable."""
        self._layout.files.sync_files(self.written)

    def abandon(self) -> None:
        """Remove everything that was written."""
        for file in self._open.values():
            file.discard()
        self._open.clear()
        self._layout.files.unlink(*self.written)

    def empty(self) -> list[TableFile]:
        """Write a file without rows, for readers that take the columns from a file."""
        self._start((None,) * len(self._layout.partition_by))
        return self.finish()

    def _start(self, values: Values) -> _OpenTableFile:
        if len(self._open) >= MOST_OPEN:
            self._close(next(iter(self._open)))
        layout = self._layout
        texts: dict[str, str | None] = {}
        if layout.hive:
            names = layout.partition_by
            texts = {n: partition_value(v) for n, v in zip(names, values, strict=True)}
        path = layout.path(self._name(len(self.written)), texts)
        self.written.append(f"{layout.folder}/{path}")
        self._open[values] = _OpenTableFile(layout, path, texts)
        return self._open[values]

    def _encode(self) -> None:
        for values, file in [*self._open.items()]:
            file.encode()
            if file.encoded >= self._layout.target:
                self._close(values)
        self._waiting = 0

    def _close(self, values: Values) -> None:
        file = self._open[values]
        self._waiting -= file.waiting_bytes
        self._done.append(file.finish())
        del self._open[values]

    def _parts(self, table: pa.Table) -> Iterator[tuple[Values, pa.Table]]:
        """Yield the rows of each partition, in order."""
        names, stored = self._layout.partition_by, self._layout.stored.names
        if not names:
            if table.num_rows:
                yield (), table
            return
        codes = np.zeros(table.num_rows, dtype=np.int64)
        for name in names:
            column = table.column(name).combine_chunks().dictionary_encode(null_encoding="encode")
            codes = codes * (len(column.dictionary) + 1) + column.indices.to_numpy()
            codes = np.unique(codes, return_inverse=True)[1]
        order = np.argsort(codes, kind="stable")
        cuts = np.flatnonzero(np.diff(codes[order])) + 1
        for rows in np.split(order, cuts) if len(order) else ():
            part = table.take(pa.array(rows))
            yield tuple(part.column(name)[0].as_py() for name in names), part.select(stored)


def read_back(file: TableFile, schema: pa.Schema, files: Files | None = None) -> pa.Table:
    """Return the rows of a file with all columns of its table, also with those added later."""
    with OpenTableFile(files or table_storage(file.table), file.location) as opened:
        stored = pq.ParquetFile(opened, coerce_int96_timestamp_unit="us")
        found, marks = stored.read(), stored.metadata.metadata or {}
    for name, value in file.values.items():
        found = found.append_column(name, pa.array([value] * found.num_rows, pa.string()))
    if _PICKED not in marks:
        return with_columns(found, schema)
    parts = {
        tuple(place): found.column(name).combine_chunks()
        for name, place in json.loads(marks[_PICKED]).items()
    }
    columns = [_put_back(parts, (n,), each.type, len(found)) for n, each in enumerate(schema)]
    return pa.Table.from_arrays(columns, schema=schema)


def _picked(rows: pa.RecordBatch | pa.Table, place: Place) -> pa.Array | pa.ChunkedArray:
    """Return a column, or a field of one."""
    column, *fields = place
    found = rows.column(column)
    return pc.struct_field(found, fields) if fields else found


def _put_back(parts: Mapping[Place, pa.Array], place: Place, kind: pa.DataType, rows: int) -> Any:
    """Return a column whose parts were picked; what was not is null."""
    if place in parts:
        return parts[place].cast(kind)
    if not any(each[: len(place)] == place for each in parts):
        return pa.nulls(rows, kind)
    fields = [kind.field(number) for number in range(kind.num_fields)]
    inside = [_put_back(parts, (*place, n), each.type, rows) for n, each in enumerate(fields)]
    return pa.StructArray.from_arrays(inside, fields=fields)


def with_columns(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with the columns that are written now, null where the query had none then."""
    columns = [
        rows.column(each.name).cast(each.type)
        if each.name in rows.column_names
        else pa.nulls(rows.num_rows, each.type)
        for each in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


class _OpenTableFile:
    """One Parquet file that is being written."""

    def __init__(self, layout: TableLayout, path: str, values: Mapping[str, str | None]) -> None:
        self.waiting: list[pa.Table] = []
        self.waiting_bytes = 0
        self._layout = layout
        self._path = path
        self._values = values
        self._footer: list[pq.FileMetaData] = []
        self._sink = NewTableFile(layout.files.create(f"{layout.folder}/{path}"))
        self._pages = pa.BufferedOutputStream(pa.PythonFile(self._sink, "w"), _WRITTEN_AT_ONCE)
        self._writer: pq.ParquetWriter | None = None

    @property
    def encoded(self) -> int:
        """Return the bytes of the file so far."""
        return int(self._pages.tell())

    def encode(self) -> None:
        if self.waiting:
            rows = pa.concat_tables(self.waiting)
            self._writer_for(rows).write_table(rows)
            self.waiting = []
            self.waiting_bytes = 0

    def _writer_for(self, rows: pa.Table) -> pq.ParquetWriter:
        """Return the writer, whose encodings suit the rows that come first."""
        if self._writer is None:
            sample = rows.slice(0, _SAMPLED)
            dictionary = repeating(sample)
            packed = close_together(sample) - {*dictionary} if self._layout.packs else ()
            self._writer = pq.ParquetWriter(
                self._pages,
                self._layout.stored,
                compression=self._layout.codec,
                use_dictionary=dictionary,
                column_encoding=dict.fromkeys(packed, "DELTA_BINARY_PACKED") or None,
                use_deprecated_int96_timestamps=self._layout.int96,
                store_decimal_as_integer=True,
                store_schema=False,
                metadata_collector=self._footer,
            )
        return self._writer

    def finish(self) -> TableFile:
        self.encode()
        writer = self._writer_for(self._layout.stored.empty_table())
        marks = dict(self._layout.metadata)
        if self._layout.picked is not None:
            places = dict(zip(self._layout.schema.names, self._layout.picked, strict=True))
            marks[_PICKED.decode()] = json.dumps(places)
        if marks:
            writer.add_key_value_metadata(marks)
        writer.close()
        self._pages.close()
        footer = self._footer[0]
        layout = self._layout
        statistics = statistics_of(footer, layout.stored) if layout.statistics else {}
        return TableFile(
            layout.view,
            layout.folder,
            self._path,
            footer.num_rows,
            self._sink.place,
            self._values,
            statistics,
            int(time.time() * 1000),
        )

    def discard(self) -> None:
        self._sink.discard()
        if self._writer is not None:
            self._writer.close()
        self._pages.close()


def repeating(rows: pa.Table) -> list[str]:
    """Return the columns to write with a dictionary: those in which most values repeat."""
    return [
        each.name
        for each in rows.schema
        if not pa.types.is_nested(each.type)
        and 2 * len(rows.column(each.name).unique()) <= rows.num_rows
    ]


def close_together(rows: pa.Table) -> set[str]:
    """Return the columns of integers whose differences take a good deal less than their bits.

    Packing the differences takes less time and space than compressing the integers.
    """
    found = set()
    for each in rows.schema:
        if each.type in (pa.int32(), pa.int64()):
            # differences wrap around, as those of the encoding do
            steps = np.diff(rows.column(each.name).drop_null().to_numpy())
            spread = int(steps.max()) - int(steps.min()) if len(steps) else 0
            if len(steps) and 4 * spread.bit_length() <= 3 * each.type.bit_width:
                found.add(each.name)
    return found


class NewTableFile(io.RawIOBase):
    """A new file as the file object that pyarrow writes to."""

    def __init__(self, file: NewFile) -> None:
        self._file = file
        self._discarded = False
        self.place = 0

    def discard(self) -> None:
        """Ignore what a writer still writes when it is closed."""
        self._discarded = True
        self._file.close()

    def write(self, data: Any) -> int:
        view = memoryview(data)
        if not self._discarded:
            self._file.write(view)
        self.place += view.nbytes
        return view.nbytes

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        """Return the number of bytes so far."""
        return self.place

    def close(self) -> None:
        super().close()
        self._file.close()


def statistics_of(footer: pq.FileMetaData, schema: pa.Schema) -> dict[str, Any]:
    """Return the numbers that Delta's log stores about a written file, from its footer."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    repeated = {each.name for each in schema if pa.types.is_nested(each.type)}
    repeated -= {each.name for each in schema if pa.types.is_struct(each.type)}
    columns = range(footer.num_columns) if footer.num_row_groups else ()
    for column in columns:
        groups = [footer.row_group(g).column(column) for g in range(footer.num_row_groups)]
        names = groups[0].path_in_schema.split(".")
        found = [each.statistics for each in groups if each.statistics is not None]
        if names[0] in repeated or len(found) < len(groups):
            continue
        _nested(nulls, names, sum(each.null_count or 0 for each in found))
        having = [each for each in found if each.has_min_max]
        if having and all(each.has_min_max or each.num_values == 0 for each in found):
            low = _shown(min(each.min for each in having))
            high = _shown(max(each.max for each in having))
            if low is not None and high is not None:
                _nested(least, names, low)
                if groups[0].physical_type not in _WITH_NAN:
                    _nested(greatest, names, high)
    return {
        "numRecords": footer.num_rows,
        "minValues": least,
        "maxValues": greatest,
        "nullCount": nulls,
    }


def _nested(target: dict[str, Any], names: Sequence[str], value: Any) -> None:
    for name in names[:-1]:
        target = target.setdefault(name, {})
    target[names[-1]] = value


def _shown(value: Any) -> Any:
    """Return a value as JSON of Delta's statistics has it; None if it has none."""
    if isinstance(value, bool) or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if isinstance(value, int | float):
        return value
    if isinstance(value, str):
        return value if len(value) <= _LONGEST else None
    if isinstance(value, datetime):
        zone = "" if value.tzinfo is None else "Z"
        plain = value if value.tzinfo is None else value.astimezone(UTC)
        return f"{plain:%Y-%m-%dT%H:%M:%S.%f}{zone}"
    return value.isoformat() if isinstance(value, date) else None
