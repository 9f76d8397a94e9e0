"""The log of Spark's file sink: which files are part of a Parquet folder, written without the JVM.

Idea: `_spark_metadata` has a file for each batch, with a line for each file that the batch added.
Every tenth batch is compacted: its file ends in `.compact` and lists all files up to then. A batch
is part of the table once its file exists, which is created whole and exclusively, so this works
wherever `Files.put` does.

Invariants:
1. Spark continues the log where we stopped, and we where Spark stopped
   (`test_spark_and_direct_writing_take_turns`).
2. A batch is entered once. Entering it again with the same files, by whoever, changes nothing;
   with others it is an error (`test_another_writer_is_noticed`).

Cost: a listing and a file for each batch; every tenth reads and writes the list of all files.

References: the sources of Spark, CompactibleFileStreamLog and FileStreamSinkLog.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from icestream.core.errors import DefinitionError, StorageError
from icestream.state.files import Files
from icestream.state.versions.table_files import TableFile

#: the folder of the log, and the ending of entries that list all files
LOG = "_spark_metadata"
LISTS_ALL = ".compact"
#: batches between two lists of all files, by default
INTERVAL = 10
#: batches whose entries are kept for readers that have just begun
_KEPT = 100

_VERSION = "v1"

Entry = dict[str, Any]


class SinkLog:
    """The log of one folder."""

    def __init__(self, files: Files, folder: str, interval: int = INTERVAL) -> None:
        """Use a folder or the URI of one; an existing log keeps its interval."""
        self.folder = folder
        self._files = files
        self._interval = _interval_of(self._lists(self.names()), interval)

    def names(self) -> list[str]:
        names = self._files.list(f"{self.folder}/{LOG}")
        return [name for name in names if name.removesuffix(LISTS_ALL).isdigit()]

    @property
    def latest(self) -> int:
        """Return the last batch that was entered, or -1."""
        return max((int(name.removesuffix(LISTS_ALL)) for name in self.names()), default=-1)

    def files(self) -> list[str]:
        """Return the paths of all files that are part of the table, oldest first."""
        return [self.path(entry) for entry in self._entries(self.latest)]

    def path(self, entry: Mapping[str, Any]) -> str:
        """Return the path of a file that an entry names."""
        inside = unquote(urlsplit(entry["path"]).path)[len(_place(self.folder)) :]
        return f"{self.folder}{inside}"

    def fill(self, latest: int, batch: int) -> None:
        """Enter empty batches before one: a log is read from its last list of all files on.

        Numbers are missing if a query started with history, or wrote elsewhere before. There are
        two lists, so that Spark finds the interval.
        """
        listed = batch // self._interval * self._interval - 1
        for missing in (listed - self._interval, *range(listed, batch)):
            if missing > latest and missing >= 0:
                self.enter(missing, ())

    def enter(self, batch: int, files: Sequence[TableFile]) -> None:
        entries = [
            entry_of(f"{self.folder}/{each.path}", each.bytes, each.written) for each in files
        ]
        lists_all = (batch + 1) % self._interval == 0
        if lists_all:
            entries = [*self._entries(batch - 1), *entries]
        name = f"{self.folder}/{LOG}/{batch}{LISTS_ALL if lists_all else ''}"
        data = text_of(entries)
        if not self._files.put(name, data) and self._files.read(name) != data:
            msg = (
                f"another query wrote batch {batch} to the log of {self.folder} at the same time: "
                "only one query may write to a folder"
            )
            raise StorageError(msg)
        if lists_all:
            self._forget(batch - _KEPT)

    def read(self, name: str) -> list[Entry]:
        version, *lines = self._files.read(f"{self.folder}/{LOG}/{name}").decode().splitlines()
        if version != _VERSION:
            msg = (
                f"the log of Spark's file sink in {self.folder} has version {version!r}, and this "
                "Icestream reads v1: write to another folder"
            )
            raise DefinitionError(msg)
        return [json.loads(line) for line in lines]

    def _entries(self, last: int) -> list[Entry]:
        """Return the files of all batches up to one."""
        names = {int(name.removesuffix(LISTS_ALL)): name for name in self.names()}
        chain = [number for number in sorted(names) if number <= last]
        lists = [number for number in chain if names[number].endswith(LISTS_ALL)]
        first = lists[-1] if lists else 0
        return [line for number in chain if number >= first for line in self.read(names[number])]

    def _forget(self, batch: int) -> None:
        """Remove entries that the last list of all files up to a batch contains."""
        names = self.names()
        listed = max((each for each in self._lists(names) if each <= batch), default=-1)
        old = [name for name in names if int(name.removesuffix(LISTS_ALL)) < listed]
        hidden = [f".{name}.crc" for name in old]
        self._files.unlink(*(f"{self.folder}/{LOG}/{name}" for name in (*old, *hidden)))

    def _lists(self, names: Sequence[str]) -> list[int]:
        return sorted(int(name[: -len(LISTS_ALL)]) for name in names if name.endswith(LISTS_ALL))


def entry_of(path: str, size: int, written: int) -> Entry:
    """Return the line of a file in the log of a sink, given its bytes and milliseconds."""
    place = _place(path)
    start = "file://" if place == path else path[: -len(place)]
    return {
        "path": f"{start}{quote(place)}",
        "size": size,
        "isDir": False,
        "modificationTime": written,
        "blockReplication": 1,
        "blockSize": 32 << 20,
        "action": "add",
    }


def text_of(entries: Sequence[Entry]) -> bytes:
    """Return the content of an entry of the log."""
    lines = [json.dumps(each, separators=(",", ":")) for each in entries]
    return "\n".join([_VERSION, *lines]).encode()


def _place(path: str) -> str:
    """Return a path without the scheme and the bucket of a store."""
    start, found, rest = path.partition("://")
    return f"/{rest.partition('/')[2]}" if found else start


def _interval_of(lists: Sequence[int], default: int) -> int:
    """Return after how many batches all files are listed, as Spark finds it from what is there."""
    if len(lists) > 1:
        return lists[-1] - lists[-2]
    if not lists:
        return default
    known = lists[0] + 1
    divisors = (each for each in range(default, known // 2 + 1) if known % each == 0)
    return next(divisors, known) if default < known // 2 else known
