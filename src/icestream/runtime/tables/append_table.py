"""What a table is to a query: files are added to it once per version.

Idea: the table's own log records, in the same step that makes the files part of the table, the last
version that was added under the identity of the query. That identity was made with the checkpoint
and moves with it. A version that is added again, by whoever, changes nothing.

Invariants:
1. Whoever adds a version, and however often, its rows are in the table once
   (`test_a_version_is_added_once_by_whoever_delivers_it`).
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Protocol, Self, TypeVar
from urllib.parse import urlsplit

import pyarrow as pa

from icestream.core.errors import DefinitionError, StorageError
from icestream.runtime.tables.layout import TableLayout
from icestream.state.files import Files
from icestream.state.stores.store_files import StoreFiles
from icestream.state.versions.table_files import TableFile

#: times that a transaction is tried, each time after another writer's
TRIES = 1000

Result = TypeVar("Result")


class AppendTable(Protocol):
    """A table whose files tasks write."""

    @property
    def layout(self) -> TableLayout:
        """Return how its files are written."""
        ...

    def latest(self) -> int:
        """Return the last version that was added, or -1."""
        ...

    def add(self, version: int, files: Sequence[TableFile]) -> None:
        """Make files part of the table, unless this version was added before."""
        ...

    def holds(self, paths: Collection[str]) -> set[str]:
        """Return those of some paths inside the table that are part of it."""
        ...


class PickingTable(AppendTable, Protocol):
    """A table of a sink, whose columns may be some of those of the rows."""

    def picking(self, places: Sequence[tuple[int, ...]]) -> AppendTable:
        """Return this table for rows from which its columns are picked."""
        ...


class TransactionTable(ABC):
    """A table whose library adds files in a transaction, which another writer's may outrun."""

    def __init__(self, table: Any, layout: TableLayout) -> None:
        """Use a table of the library, which has been checked."""
        self._table = table
        self.layout = layout

    def picking(self, places: Sequence[tuple[int, ...]]) -> Self:
        """Return this table for rows from which its columns are picked."""
        other = copy(self)
        other.layout = replace(self.layout, picked=tuple(places))
        return other

    @abstractmethod
    def latest(self) -> int:
        """Return the last version that was added, or -1."""

    def add(self, version: int, files: Sequence[TableFile]) -> None:
        """Add files in one transaction, unless this version was added before."""
        if files:
            self._with_retries(lambda: self._add(version, files))

    def _add(self, version: int, files: Sequence[TableFile]) -> None:
        for _ in range(TRIES):
            try:
                if version > self.latest():
                    self._commit(version, files)
            except self._outrun():
                continue
            return
        msg = (
            f"other writers of {self.layout.folder} commit faster than this query can follow: stop "
            "them and start it again, or give it a table of its own"
        )
        raise StorageError(msg)

    @abstractmethod
    def _commit(self, version: int, files: Sequence[TableFile]) -> None:
        """Try once to add files to the newest state of the table."""

    @abstractmethod
    def _outrun(self) -> type[Exception]:
        """Return the error of the library if another writer was faster."""

    def _with_retries(self, act: Callable[[], Result]) -> Result:
        return with_retries(self.layout.files, self.layout.folder, act, self._failures())

    def _failures(self) -> tuple[type[Exception], ...]:
        """Return the errors of the library that may come from the network."""
        return (OSError,)


def check_columns(
    table: str,
    found: Iterable[tuple[str, Any]],
    rows: Iterable[tuple[str, Any]],
    *,
    merges: bool = False,
) -> list[str]:
    """Refuse to write rows to a table with other columns, naming every difference.

    With `merges`, columns may be missing in the table; they are returned.
    """
    there: Mapping[str, Any] = dict(found)
    here: Mapping[str, Any] = dict(rows)
    missing = [name for name in here if name not in there]
    differ = [
        *(f"{name} ({here[name]}) is missing in it" for name in missing if not merges),
        *(f"the query has no {name} ({kind})" for name, kind in there.items() if name not in here),
        *(
            f"{name} is {there[name]} in it, {kind} in the query"
            for name, kind in here.items()
            if name in there and there[name] != kind
        ),
    ]
    if differ:
        add = ", add missing columns with option('mergeSchema', True)" if missing else ""
        msg = (
            f"the table {table} has other columns than the query writes: {'; '.join(differ)}. "
            f"Choose another table{add}, or change the query"
        )
        raise DefinitionError(msg)
    return missing


def check_partitions(table: str, found: Sequence[str], wanted: Sequence[str]) -> None:
    """Refuse a table that is partitioned otherwise; a query that names no columns follows it."""
    if wanted and [*found] != [*wanted]:
        msg = (
            f"the table {table} is partitioned by {[*found]}, but the query says "
            f"partitionBy{(*wanted,)}: leave partitionBy out, or choose another table"
        )
        raise DefinitionError(msg)


def with_retries(
    files: Files,
    place: str,
    act: Callable[[], Result],
    failures: tuple[type[Exception], ...] = (OSError,),
) -> Result:
    """Do something with the log of a table; in a store, until it succeeds or patience is over.

    It must find out by itself whether it was done before: answers get lost.
    """
    if not isinstance(files, StoreFiles):
        return act()
    return files.repeated("commit", place, act, failures)


def relative(folder: str, location: str) -> str:
    """Return the path of a file inside its table, whichever way the table's log names both."""
    return _plain(location)[len(_plain(folder)) + 1 :]


def _plain(location: str) -> str:
    return os.path.normpath(urlsplit(location).path if "://" in location else location)


def columns_of(schema: pa.Schema) -> list[tuple[str, pa.DataType]]:
    """Return names and types of the columns of a table that is appended to."""
    return [(each.name, each.type) for each in schema]
