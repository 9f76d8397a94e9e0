"""Merges small files of a Parquet folder that has the log of Spark's file sink.

Idea: Spark compacts its log: every tenth entry lists all files up to then. The files of the last
such list are merged, folder by folder, into files of a target size, and the list is replaced, in
one step, by one with the merged files. Later entries stay as they are.

Invariants:
1. Rows, columns and codecs stay the same (`test_oracle_a_compacted_folder_has_the_same_rows`).
2. Killed anywhere, the table has its rows once, for readers of its log
   (`test_crash_a_compaction_at_every_step`).
3. A folder that is written to meanwhile is left as it is (`test_a_busy_folder_is_not_compacted`).

Limits: only while no query writes to the folder. Readers that started before may miss files.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote, urlparse

import pyarrow.parquet as pq

from icestream.core.errors import DefinitionError, StorageError
from icestream.runtime.tables.layout import TARGET_FILE_SIZE, TableFiles

#: the folder of the log, and the ending of entries that list all files
LOG = "_spark_metadata"
LISTS_ALL = ".compact"

_VERSION = "v1"


@dataclass(frozen=True)
class Compaction:
    """What was merged."""

    folder: str
    before: int
    after: int
    bytes: int


def compact(folder: str, target: int = TARGET_FILE_SIZE) -> Compaction:
    """Merge small files of a folder until they have about `target` bytes."""
    files, log = TableFiles(), os.path.join(folder, LOG)
    names = files.list(log)
    if not names:
        msg = f"{folder} has no log of Spark's file sink ({LOG}): only such folders are compacted"
        raise DefinitionError(msg)
    lists = [int(name[: -len(LISTS_ALL)]) for name in names if name.endswith(LISTS_ALL)]
    if not lists:
        return Compaction(folder, 0, 0, 0)
    path = os.path.join(log, f"{max(lists)}{LISTS_ALL}")
    entries = _entries(files.read(path).decode())
    made: dict[str, dict[str, Any]] = {}
    merged: set[str] = set()
    try:
        for group in _groups(entries, target):
            made[group[0]["path"]] = _merged(group, files)
            merged |= {each["path"] for each in group}
        _check_idle(folder, names, files)
    except BaseException:
        for each in made.values():
            files.unlink(_local(each["path"]))
        raise
    if merged:
        kept = [each for each in entries if each["path"] not in merged or each["path"] in made]
        _replace(path, [made.get(each["path"], each) for each in kept], files)
    for old in merged:
        files.unlink(_local(old))
    after = len(entries) - len(merged) + len(made)
    return Compaction(folder, len(entries), after, sum(each["size"] for each in made.values()))


def _check_idle(folder: str, names: Sequence[str], files: TableFiles) -> None:
    if files.list(os.path.join(folder, LOG)) != [*names]:
        msg = f"a query writes to {folder}: stop it, then compact the folder"
        raise StorageError(msg)


def _entries(text: str) -> list[dict[str, Any]]:
    version, *lines = text.splitlines()
    if version != _VERSION:
        msg = f"the log of the folder has version {version!r}; this Icestream reads {_VERSION!r}"
        raise DefinitionError(msg)
    return [json.loads(line) for line in lines]


def _groups(entries: Sequence[dict[str, Any]], target: int) -> Iterator[list[dict[str, Any]]]:
    """Yield files that become one: of one folder, together about the target size."""
    folders: dict[str, list[dict[str, Any]]] = {}
    for entry in entries:
        if entry["size"] < target // 2:
            folders.setdefault(os.path.dirname(_local(entry["path"])), []).append(entry)
    for files in folders.values():
        group: list[dict[str, Any]] = []
        for entry in files:
            if sum(each["size"] for each in group) + entry["size"] > target:
                yield from [group] if len(group) > 1 else []
                group = []
            group.append(entry)
        yield from [group] if len(group) > 1 else []


def _merged(group: Sequence[dict[str, Any]], files: TableFiles) -> dict[str, Any]:
    """Write the rows of some files to a new one; return its entry."""
    sources = [_local(each["path"]) for each in group]
    first = pq.ParquetFile(sources[0], coerce_int96_timestamp_unit="us")
    columns = range(first.metadata.num_columns)
    chunks = [first.metadata.row_group(0).column(c) for c in columns if first.num_row_groups]
    codec = chunks[0].compression.lower() if chunks else "snappy"
    ending = "" if codec == "uncompressed" else f".{codec}"
    name = f"part-00000-{uuid.uuid4()}-c000{ending}.parquet"
    path = os.path.join(os.path.dirname(sources[0]), name)
    with pq.ParquetWriter(
        path,
        first.schema_arrow,
        compression="none" if codec == "uncompressed" else codec,
        use_deprecated_int96_timestamps=any(each.physical_type == "INT96" for each in chunks),
        store_decimal_as_integer=True,
        store_schema=False,
    ) as writer:
        for source in sources:
            opened = pq.ParquetFile(source, coerce_int96_timestamp_unit="us")
            for number in range(opened.num_row_groups):
                writer.write_table(opened.read_row_group(number).cast(first.schema_arrow))
        about = first.metadata.metadata or {}
        writer.add_key_value_metadata({k: v for k, v in about.items() if k != b"ARROW:schema"})
    files.sync_files([path])
    found = os.stat(path)
    return {
        **group[0],
        "path": f"file://{quote(path)}",
        "size": found.st_size,
        "modificationTime": int(found.st_mtime * 1000),
    }


def _replace(path: str, entries: Sequence[dict[str, Any]], files: TableFiles) -> None:
    """Replace a list of files in one step."""
    folder, name = os.path.split(path)
    lines = [json.dumps(each, separators=(",", ":")) for each in entries]
    hidden = os.path.join(folder, f".{name}.{uuid.uuid4().hex}")
    file = files.create(hidden)
    try:
        file.write("\n".join([_VERSION, *lines]).encode())
        file.sync()
    finally:
        file.close()
    # Hadoop's checksum of the list that is replaced
    files.unlink(os.path.join(folder, f".{name}.crc"))
    files.rename(hidden, path)
    files.sync_folder(folder)


def _local(uri: str) -> str:
    return unquote(urlparse(uri).path)


__all__ = ["Compaction", "compact"]
