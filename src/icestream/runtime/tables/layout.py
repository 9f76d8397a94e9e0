"""How the files of a table are written: plain data that is sent with every task.

Idea: the driver opens the table once, checks its columns and describes its files. Tasks then need
neither the table's library nor its log.

Limits: values of partition columns are part of folder names where a table has such folders, as
Hive and Spark write them: strings, integers, booleans and dates.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from icestream.state.files import Files, LocalFiles
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


@dataclass(frozen=True)
class TableLayout:
    """Where and how tasks write the files of a table."""

    #: the view whose rows the table has
    view: int
    #: the identity of the checkpoint and the number of the view
    writer: str
    #: folder of the table
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
    #: whether the table's log stores statistics of files
    statistics: bool = False
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
        """Return the path of a file inside the table."""
        folders = [f"{escaped(key)}={escaped(value)}" for key, value in values.items()]
        return "/".join([*filter(None, [self.data]), *folders, f"{name}{self.ending}"])

    def written(self) -> Iterator[tuple[str, TableFileName]]:
        """Yield the files that tasks of this query wrote, whether the table knows them or not."""
        top = os.path.join(self.folder, self.data)
        for folder, folders, names in os.walk(top):
            folders[:] = [each for each in folders if not each.startswith(("_", "."))]
            for name in names:
                told = TableFileName.of(name)
                if told is not None and told.writer == self.writer:
                    yield os.path.relpath(os.path.join(folder, name), self.folder), told


def can_partition(kind: pa.DataType) -> bool:
    """Return whether values of a type can be part of folder names."""
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date32(kind)
    )


def partition_value(value: Any) -> str | None:
    """Return a value as Hive and Spark write it; an empty string is null to both."""
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None or value == "" else str(value)


def escaped(value: str | None) -> str:
    """Return a part of a folder name."""
    if value is None:
        return NULL_FOLDER
    return "".join(f"%{ord(each):02X}" if each in _ESCAPED else each for each in value)


__all__ = ["TARGET_FILE_SIZE", "TableFiles", "TableLayout", "can_partition", "partition_value"]
