"""How the files of a table are written: plain data that is sent with every task.

Idea: the driver opens the table once, checks its columns and describes its files. Tasks then need
neither the table's library nor its log.

Limits: values of partition columns are part of folder names where a table has such folders, as
Hive and Spark write them: strings, integers, booleans and dates.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from icestream.core.units import parse_bytes
from icestream.state.files import Files, LocalFiles
from icestream.state.stores.files import StoreFiles, store_scheme
from icestream.state.versions.table_files import TableFileName

#: bytes after which a task starts another file, by default
TARGET_FILE_SIZE = 256 << 20
#: the folder name that Hive and Spark use for null
NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"

#: characters that Spark does not leave as they are in the names of folders
_ESCAPED = {*"\"#%'*/:=?\\{[]^\x7f", *map(chr, range(1, 32))}


class TableFiles(LocalFiles):
    """The local disk for tables, which others read too: modes are those of the user's umask."""

    file_mode = 0o666
    folder_mode = 0o777


def table_storage(place: str) -> Files:
    """Return the files of a table that is used without a query: in a folder or in a store."""
    return TableFiles() if store_scheme(place) is None else StoreFiles(limit=0)


@dataclass(frozen=True)
class TableTarget:
    """Who writes a table, and how its user wants it."""

    #: the identity of the checkpoint and the number of the view
    writer: str = f"{'0' * 32}-0"
    view: int = 0
    #: columns that the table is partitioned by
    partition_by: Sequence[str] = ()
    #: of the writer; `targetFileSize` are the bytes after which a task starts another file
    options: Mapping[str, str] = field(default_factory=dict)
    #: returns the storage of a location
    files: Callable[[str], Files] = table_storage

    @property
    def file_bytes(self) -> int:
        """Return the bytes after which a task starts another file."""
        return parse_bytes(self._given.get("targetfilesize", TARGET_FILE_SIZE))

    @property
    def merges(self) -> bool:
        """Return whether columns that the table does not have are added to it."""
        return str(self._given.get("mergeschema", "")).lower() == "true"

    @property
    def _given(self) -> dict[str, str]:
        return {key.lower(): value for key, value in self.options.items()}


class OpenTableFile(io.RawIOBase):
    """A file of a table, as pyarrow reads it."""

    def __init__(self, files: Files, path: str) -> None:
        self._file = files.open(path)
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        """Return the place of the next byte."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        begin = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._file.size}[whence]
        self._at = begin + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read bytes into a buffer; return how many."""
        data = self._file.read_at(self._at, len(buffer))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


@dataclass(frozen=True)
class TableLayout:
    """Where and how tasks write the files of a table."""

    #: the view whose rows the table has
    view: int
    #: the identity of the checkpoint and the number of the view
    writer: str
    #: folder of the table, or its URI in a store
    folder: str
    #: columns of the table
    schema: pa.Schema
    #: codec by the name of pyarrow, and the ending of file names
    codec: str = "snappy"
    ending: str = ".snappy.parquet"
    partition_by: tuple[str, ...] = ()
    #: whether values of partition columns are in the names of folders instead of the files
    hive: bool = True
    #: folder of data files inside the table
    data: str = ""
    #: key-value metadata of every file
    metadata: Mapping[str, str] = field(default_factory=dict)
    #: whether timestamps are stored in 96 bits
    int96: bool = False
    #: whether integers may be stored as differences: not all readers of Iceberg know that
    packs: bool = True
    #: whether the table's log stores statistics of files
    statistics: bool = False
    #: places of its columns in the rows of the query, and in their structs; None if they are equal
    picked: tuple[tuple[int, ...], ...] | None = None
    #: bytes after which a task starts another file
    target: int = TARGET_FILE_SIZE
    files: Files = field(default_factory=TableFiles)

    @property
    def stored(self) -> pa.Schema:
        """Return the columns inside the files."""
        if not self.hive:
            return self.schema
        return pa.schema([each for each in self.schema if each.name not in self.partition_by])

    def path(self, name: str, values: Mapping[str, str | None]) -> str:
        folders = [f"{escaped(key)}={escaped(value)}" for key, value in values.items()]
        return "/".join([*filter(None, [self.data]), *folders, f"{name}{self.ending}"])

    def written(self) -> Iterator[tuple[str, TableFileName]]:
        """Yield the files that tasks of this query wrote, whether the table knows them or not."""
        start = f"{self.data}/" if self.data else ""
        for path in self.files.walk(f"{self.folder}/{self.data}".rstrip("/")):
            *folders, name = path.split("/")
            told = TableFileName.of(name)
            hidden = any(each.startswith(("_", ".")) for each in folders)
            if told is not None and told.writer == self.writer and not hidden:
                yield f"{start}{path}", told


def can_partition(kind: pa.DataType) -> bool:
    """Return whether values of a type can be in the layout of a table, as part of folder names."""
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date32(kind)
    )


def partition_value(value: Any) -> str | None:
    """Return a value in the layout of Hive and Spark; an empty string is null to both."""
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None or value == "" else str(value)


def escaped(value: str | None) -> str:
    """Return a part of a folder name in the layout of a partitioned table."""
    if value is None:
        return NULL_FOLDER
    return "".join(f"%{ord(each):02X}" if each in _ESCAPED else each for each in value)
