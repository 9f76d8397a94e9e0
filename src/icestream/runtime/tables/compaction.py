"""Merges small files of a Parquet folder that has the log of Spark's file sink.

Idea: Spark compacts its log: every tenth entry lists all files up to then. The files of the last
such list are merged, folder by folder, into files of a target size, and the list is replaced, in
one step, by one with the merged files. Later entries stay as they are.

Invariants:
1. Rows, columns and codecs stay the same (`test_oracle_a_compacted_folder_has_the_same_rows`).
2. Killed anywhere, the table has its rows once, for readers of its log
   (`test_crash_a_compaction_at_every_step`).
3. A folder that is written to meanwhile is left as it is (`test_a_busy_folder_is_not_compacted`).

Limits: only while no query writes to the folder. Readers that started before may miss files. In a
store the merged files are as large as the target at most, and pass through the local disk.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import pyarrow.parquet as pq

from icestream.core.errors import DefinitionError, StorageError
from icestream.runtime.tables.layout import (
    TARGET_FILE_SIZE,
    OpenTableFile,
    table_storage,
)
from icestream.runtime.tables.sink_log import LISTS_ALL, LOG, Entry, SinkLog, entry_of, text_of
from icestream.runtime.tables.writer import NewTableFile
from icestream.state.files import Files, replace_file


@dataclass(frozen=True)
class Compaction:
    """What was merged."""

    folder: str
    before: int
    after: int
    bytes: int


def compact(folder: str, target: int = TARGET_FILE_SIZE) -> Compaction:
    """Merge small files of a folder or a store until they have about `target` bytes."""
    files = table_storage(folder)
    log = SinkLog(files, folder.rstrip("/"))
    names = log.names()
    if not names:
        msg = f"{folder} has no log of Spark's file sink ({LOG}): only such folders are compacted"
        raise DefinitionError(msg)
    lists = [int(name[: -len(LISTS_ALL)]) for name in names if name.endswith(LISTS_ALL)]
    if not lists:
        return Compaction(folder, 0, 0, 0)
    name = f"{max(lists)}{LISTS_ALL}"
    entries = log.read(name)
    made: dict[str, Entry] = {}
    merged: set[str] = set()
    try:
        for group in _groups(entries, target):
            made[group[0]["path"]] = _merged(group, log, files)
            merged |= {each["path"] for each in group}
        _check_idle(log, names)
    except BaseException:
        files.unlink(*map(log.path, made.values()))
        raise
    if merged:
        kept = [each for each in entries if each["path"] not in merged or each["path"] in made]
        listed = [made.get(each["path"], each) for each in kept]
        # Hadoop's checksum of the list that is replaced
        files.unlink(f"{log.folder}/{LOG}/.{name}.crc")
        replace_file(files, f"{log.folder}/{LOG}/{name}", text_of(listed))
    files.unlink(*(log.path(each) for each in entries if each["path"] in merged))
    after = len(entries) - len(merged) + len(made)
    return Compaction(folder, len(entries), after, sum(each["size"] for each in made.values()))


def _check_idle(log: SinkLog, names: Sequence[str]) -> None:
    if log.names() != names:
        msg = f"a query writes to {log.folder}: stop it, then compact the folder"
        raise StorageError(msg)


def _groups(entries: Sequence[Entry], target: int) -> Iterator[list[Entry]]:
    """Yield files that become one: of one folder, together about the target size."""
    folders: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry["size"] < target // 2:
            folders.setdefault(entry["path"].rpartition("/")[0], []).append(entry)
    for files in folders.values():
        group: list[Entry] = []
        for entry in files:
            if sum(each["size"] for each in group) + entry["size"] > target:
                yield from [group] if len(group) > 1 else []
                group = []
            group.append(entry)
        yield from [group] if len(group) > 1 else []


def _merged(group: Sequence[Entry], log: SinkLog, files: Files) -> Entry:
    """Write the rows of some files to a new one; return its entry."""
    with ExitStack() as stack:

        def opened(path: str) -> pq.ParquetFile:
            file = stack.enter_context(OpenTableFile(files, path))
            return pq.ParquetFile(file, coerce_int96_timestamp_unit="us")

        sources = [log.path(each) for each in group]
        first = opened(sources[0])
        columns = range(first.metadata.num_columns)
        chunks = [first.metadata.row_group(0).column(c) for c in columns if first.num_row_groups]
        codec = chunks[0].compression.lower() if chunks else "snappy"
        ending = "" if codec == "uncompressed" else f".{codec}"
        name = f"part-00000-{uuid.uuid4()}-c000{ending}.parquet"
        path = f"{sources[0].rpartition('/')[0]}/{name}"
        sink = NewTableFile(files.create(path))
        with pq.ParquetWriter(
            sink,
            first.schema_arrow,
            compression="none" if codec == "uncompressed" else codec,
            use_deprecated_int96_timestamps=any(each.physical_type == "INT96" for each in chunks),
            store_decimal_as_integer=True,
            store_schema=False,
        ) as writer:
            for source in sources:
                file = opened(source)
                for number in range(file.num_row_groups):
                    writer.write_table(file.read_row_group(number).cast(first.schema_arrow))
            about = first.metadata.metadata or {}
            writer.add_key_value_metadata({k: v for k, v in about.items() if k != b"ARROW:schema"})
        sink.close()
    files.sync_files([path])
    return {**group[0], **entry_of(path, sink.place, int(time.time() * 1000))}
