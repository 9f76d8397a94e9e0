"""The table of the rows that hold, by key: what mode `now` keeps in the checkpoint, in Parquet.

Idea: every version adds one sorted *run* with the rows of the keys that it changed; the newest rows
of a key count, and a negative change deletes it. Of too many runs, the newest ones of similar size
become one, as in a log-structured merge tree; once they have half the bytes of the *parts*, each a
range of keys that fits into memory, all are merged with these. A manifest names the runs and parts
of a version; it is created exclusively, so a version is applied once, whoever delivers it, and a
reader sees a whole version, from any process.

    now/0/manifest-0000000000007  {"version": 7, "runs": [[first, file, bytes], ...], "parts": ...}
    now/0/part-...parquet         _high, _low: the key; _version; change; the columns of the rows

The name of such a file ends with the checksum of its bytes; the manifest is sealed as a commit.

The table of an update stream has a column with the time of the update that a row answers; whoever
reads it also gets the age of each row.

Invariants:
1. The table is what applying all changes by key gives, whatever was merged
   (`test_oracle_a_table_is_its_changes_by_key`).
2. Applying a version again changes nothing (`test_a_version_is_applied_once`).
3. One range of keys is in memory at a time, and of each run a group of rows
   (`test_bounded_one_range_of_keys_is_in_memory`).
4. A table is never newer than its checkpoint
   (`test_a_table_follows_a_checkpoint_that_was_rolled_back`).
5. A reader gets one whole version, also while the next one is written
   (`test_a_reader_sees_a_whole_version_while_runs_are_merged`).
6. A file with another byte than was written is damage that is named
   (`test_a_damaged_file_of_a_table_is_named`); files of earlier releases have no checksums.

Cost: a byte is written once in a run. A merge of runs at least doubles each of them but the newest,
so it takes part in 1 + log2(bytes of runs / bytes of its run) of them at most, and few in practice.
A merge with parts writes three bytes for each of the runs (`test_bounded_bytes_are_written_again`).

Limits: the driver merges, one range after the other. Files stay until the first merge that comes
`RUNS` / 4 versions later; a reader that takes longer gets a StorageError and reads again. In object
stores, the files that are open are in memory: one for each run.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from icestream.core.errors import DamageError, DefinitionError, StorageError
from icestream.core.times import Micros
from icestream.operators.dataflow.results import CHANGE
from icestream.operators.dataflow.sorted_changes import order_of
from icestream.runtime.tables.table_manifest import (
    MANIFEST,
    Manifest,
    TableRun,
    manifest_name,
    runs_of,
)
from icestream.state.files import Files, write_file
from icestream.state.keys import KeyCodec

#: folder of the tables in a checkpoint
NOW = "now"
#: runs that there are before some are merged
RUNS = 16
#: bytes of rows that are in memory at a time, and of each run that is being written
PART_BYTES = 32 << 20
#: runs that are written at a time
_AT_ONCE = 2
_ROWS_AT_ONCE = 16_384
_HIGH, _LOW, _VERSION = "_high", "_low", "_version"
_END = 1 << 64
#: column with the seconds since the update that a row answers
AGE = "age"
_HEAD = (
    pa.field(_HIGH, pa.uint64(), nullable=False),
    pa.field(_LOW, pa.uint64(), nullable=False),
    pa.field(_VERSION, pa.int64(), nullable=False),
    pa.field(CHANGE, pa.int32(), nullable=False),
)


@dataclass(frozen=True)
class CurrentTable:
    """A table of one view of a query, in a folder of its checkpoint."""

    files: Files
    folder: str
    part_bytes: int = PART_BYTES
    runs: int = RUNS

    @classmethod
    def of(cls, files: Files, root: str, view: int = 0) -> CurrentTable:
        """Return the table of a view in the checkpoint at `root`."""
        return cls(files, f"{root}/{NOW}/{view}")

    @classmethod
    def all_in(cls, files: Files, root: str) -> list[CurrentTable]:
        """Return the tables of all views in the checkpoint at `root`."""
        return [cls.of(files, root, int(view)) for view in files.list(f"{root}/{NOW}")]

    def manifest(self, version: int = 1 << 40) -> Manifest | None:
        """Return the last manifest up to a version; None if there is none yet."""
        while True:
            limit = manifest_name(version)
            names = [each for each in self.files.list(self.folder) if MANIFEST < each <= limit]
            if not names:
                return None
            path = f"{self.folder}/{max(names)}"
            try:
                return Manifest.from_bytes(path, self.files.read(path))
            except FileNotFoundError:
                continue

    def roll_back(self, version: int) -> None:
        """Return to an older version, to which its checkpoint was rolled back.

        Raises:
            StorageError: if the files of that version are gone.
        """
        newest = self.manifest()
        if newest is None or newest.version <= version:
            return
        older, there = self.manifest(version), {*self.files.list(self.folder)}
        if older is None or not older.names <= there:
            msg = (
                f"the table {self.folder} has version {newest.version}, but the checkpoint was "
                f"rolled back to version {version}, whose rows were merged away: start the query "
                "with a new checkpoint"
            )
            raise StorageError(msg)
        gone = [each for each in there if each.startswith(MANIFEST) and each > older.name]
        self.files.unlink(*(f"{self.folder}/{name}" for name in gone))

    def apply(
        self,
        version: int,
        rows: Iterable[pa.Table],
        schema: pa.Schema,
        key: Sequence[str],
        updated: str | None = None,
    ) -> None:
        """Replace the rows of all keys that a version changed, unless it was applied before.

        `schema` are the columns of the rows, with or without the change. Without it, a version may
        have several rows of a key, of which the last counts. `updated` is the column with the time
        of the update that a row answers, if there is one.
        """
        last = self.manifest()
        if last is not None and version <= last.version:
            return
        payload = pa.schema([each for each in schema if each.name != CHANGE])
        taken = sorted({_HIGH, _LOW, _VERSION} & {*payload.names})
        if taken:
            msg = f"the table of mode 'now' has columns of its own called {taken}: rename yours"
            raise DefinitionError(msg)
        before = last or Manifest(-1, payload, tuple(key), updated=updated)
        # a query that has changed brings rows with other columns
        before = replace(before, schema=payload)
        written = self._written(version, rows, before)
        if not written and last is not None:
            return
        added = replace(before, version=version, runs=(*before.runs, *written))
        after = self._merged(added)
        if self.files.put(f"{self.folder}/{after.name}", after.to_bytes()) and after is not added:
            self._sweep(max(2, self.runs // 4))

    def keep(self, version: int, chosen: Callable[[pa.Table], pa.Array]) -> int:
        """Keep only rows that are chosen, and no files of earlier versions; return how many left.

        `version` is one that changed nothing.
        """
        last = self.manifest()
        if last is None:
            return 0
        parts: list[TableRun] = []
        gone = 0
        opened = _OpenFiles(self)
        for first, end in self.ranges(last, opened):
            rows = self._live(last, first, end, opened)
            left = rows.filter(chosen(rows))
            gone += rows.num_rows - left.num_rows
            if left.num_rows or not parts:
                parts.append(self._write(left, first if parts else 0))
        after = replace(last, version=version, runs=(), parts=tuple(parts))
        self.files.put(f"{self.folder}/{after.name}", after.to_bytes())
        self._sweep(1)
        self.files.sync_folder(self.folder)
        return gone

    def ranges(self, manifest: Manifest, opened: _OpenFiles | None = None) -> list[tuple[int, int]]:
        """Return ranges of keys whose rows fit into memory."""
        files = opened or _OpenFiles(self)
        starts = [each.first for each in manifest.parts] or [0]
        share = sum(each.bytes or files.size(each.name) for each in manifest.runs) // len(starts)
        sizes = [each.bytes or files.size(each.name) for each in manifest.parts] or [0]
        found = []
        for first, end, size in zip(starts, [*starts[1:], _END], sizes, strict=True):
            pieces = 1 + (size + share) // self.part_bytes
            cuts = [first + (end - first) * number // pieces for number in range(pieces + 1)]
            found += list(pairwise(cuts))
        return found

    def rows(
        self,
        manifest: Manifest,
        now: Micros,
        ranges: Sequence[tuple[int, int]],
        opened: _OpenFiles | None = None,
    ) -> Iterator[pa.Table]:
        """Yield the rows of each range of keys, with their age `now` if they have one."""
        opened = opened or _OpenFiles(self)
        for first, end in ranges:
            rows = self._live(manifest, first, end, opened).select(manifest.schema.names)
            if manifest.updated is not None:
                updated = rows.column(manifest.updated).cast(pa.timestamp("us")).cast(pa.int64())
                rows = rows.append_column(AGE, pc.divide(pc.subtract(now, updated), 1e6))
            yield rows

    def read(self, now: Micros) -> Iterator[pa.Table]:
        """Yield all rows of the last version, a range of keys at a time."""
        manifest = self.manifest()
        if manifest is not None:
            opened = _OpenFiles(self)
            yield from self.rows(manifest, now, self.ranges(manifest, opened), opened)

    def check(self, name: str) -> None:
        """Check a file of the table; DamageError if it is missing or damaged."""
        try:
            self._open(name)
        except FileNotFoundError:
            path = f"{self.folder}/{name}"
            raise DamageError(path, "a file of the table is missing") from None

    # -- writing ---------------------------------------------------------------------------

    def _written(
        self, version: int, rows: Iterable[pa.Table], manifest: Manifest
    ) -> list[TableRun]:
        """Write what a version changed in sorted runs, of as many rows as fit into memory."""
        written: list[Future[TableRun]] = []

        def write(held: Sequence[pa.Table]) -> TableRun:
            return self._write(self._run(version, held, manifest))

        # the cores of the driver are idle, and files wait for the disk
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for held in self._portions(rows):
                if len(written) >= _AT_ONCE:
                    written[-_AT_ONCE].result()
                written.append(pool.submit(write, held))
        return [each.result() for each in written]

    def _portions(self, rows: Iterable[pa.Table]) -> Iterator[list[pa.Table]]:
        """Yield rows that fit into memory together."""
        held: list[pa.Table] = []
        for table in rows:
            held.append(table)
            if sum(each.nbytes for each in held) > self.part_bytes:
                yield held
                held = []
        if sum(each.num_rows for each in held):
            yield held

    def _run(self, version: int, tables: Sequence[pa.Table], manifest: Manifest) -> pa.Table:
        together = pa.concat_tables(tables).combine_chunks()
        count = together.num_rows
        payload = together.select(manifest.schema.names)
        keys = payload.select([*manifest.key])
        batches = keys.to_batches()
        batch = batches[0] if batches else pa.RecordBatch.from_pylist([], schema=keys.schema)
        high, low = KeyCodec(keys.schema).identify(batch)
        order = order_of(high)
        if (np.diff(low[order].view(np.int64))[np.diff(high[order]) == 0] != 0).any():
            order = np.lexsort((low, high))
        single = CHANGE not in together.schema.names
        if single:
            high_, low_ = high[order], low[order]
            last = np.append((np.diff(high_) != 0) | (np.diff(low_) != 0), count > 0)
            order = order[last[: len(order)]]
        changes = np.ones(count, dtype=np.int32) if single else together.column(CHANGE)
        head = [pa.array(high), pa.array(low), pa.array(np.full(count, version)), changes]
        columns = [*head, *payload.columns]
        whole = pa.Table.from_arrays(columns, schema=pa.schema([*_HEAD, *payload.schema]))
        return whole.take(pa.array(order))

    def _write(self, rows: pa.Table, first: int = 0) -> TableRun:
        """Write a file with the rows from a key on, durably."""
        out = pa.BufferOutputStream()
        # a dictionary for each few rows costs more time than it saves space
        options: dict[str, Any] = {"use_dictionary": False, "write_statistics": [_HIGH]}
        pq.write_table(rows, out, row_group_size=_ROWS_AT_ONCE, **options)
        data = memoryview(out.getvalue())
        name = f"part-{uuid.uuid4()}.{xxhash.xxh3_64_hexdigest(data)}.parquet"
        write_file(self.files, f"{self.folder}/{name}", data)
        self.files.sync_folder(self.folder)
        return TableRun(first, name, rows.nbytes)

    def _sweep(self, kept: int) -> None:
        """Remove all files but those that the newest manifests name, as readers use them."""
        there = self.files.list(self.folder)
        named: set[str] = set()
        for manifest in sorted(each for each in there if each.startswith(MANIFEST))[-kept:]:
            path = f"{self.folder}/{manifest}"
            named |= {manifest, *Manifest.from_bytes(path, self.files.read(path)).names}
        self.files.unlink(*(f"{self.folder}/{name}" for name in there if name not in named))

    def _merged(self, manifest: Manifest) -> Manifest:
        """Merge runs if there are too many: all with the parts, or the newest with each other."""
        runs = runs_of(manifest.runs)
        if len(runs) <= self.runs:
            return manifest
        sizes = [sum(file.bytes for file in run) for run in runs]
        if 2 * sum(sizes) >= sum(part.bytes for part in manifest.parts):
            return replace(manifest, runs=(), parts=self._rewritten(manifest))
        count = _similar(sizes)
        if count == 1:
            return manifest
        newest = tuple(file for run in runs[-count:] for file in run)
        merged = self._rewritten(replace(manifest, runs=newest, parts=()), deleted=True)
        return replace(manifest, runs=(*manifest.runs[: -len(newest)], *merged))

    def _rewritten(self, manifest: Manifest, *, deleted: bool = False) -> tuple[TableRun, ...]:
        """Write the newest rows of each key; ranges that no run touches stay as they are.

        What says that a key is deleted is needed unless all runs and parts are merged.
        """
        written: list[TableRun] = []
        known, opened = {part.first: part for part in manifest.parts}, _OpenFiles(self)
        for first, end in self.ranges(manifest, opened):
            fresh = opened.found(manifest.runs, first, end)
            whole = first in known and end in {*known, _END}
            if whole and not any(map(len, fresh)):
                written.append(known[first])
                continue
            stored = opened.found(manifest.parts, first, end)
            rows = _newest(manifest.schema, [*stored, *fresh])
            rows = rows if deleted else _without_deleted(rows)
            if rows.num_rows or not written:
                written.append(self._write(rows, first if written else 0))
        return tuple(written)

    # -- reading ---------------------------------------------------------------------------

    def _live(self, manifest: Manifest, first: int, end: int, opened: _OpenFiles) -> pa.Table:
        """Return the newest rows of each key of a range, without deleted keys."""
        found = opened.found((*manifest.parts, *manifest.runs), first, end)
        return _without_deleted(_newest(manifest.schema, found))

    def _open(self, name: str) -> pq.ParquetFile:
        path = f"{self.folder}/{name}"
        with closing(self.files.open(path)) as file:
            mapped = file.mapped(0)
        data = self.files.read(path) if mapped is None else mapped
        checksum = name.split(".")[1:-1]
        if checksum and checksum != [xxhash.xxh3_64_hexdigest(data)]:
            raise DamageError(path, "its checksum does not match its content")
        try:
            return pq.ParquetFile(pa.BufferReader(data))
        except pa.ArrowException as error:
            raise DamageError(path, f"it is no file of Parquet ({error})") from error


def _similar(sizes: Sequence[int]) -> int:
    """Return how many of the newest runs to merge: no older one is larger than all newer ones."""
    count, total = 1, sizes[-1]
    while count < len(sizes) and sizes[-1 - count] <= total:
        total += sizes[-1 - count]
        count += 1
    return count


def _newest(schema: pa.Schema, found: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of the newest version of each key, in the order of keys."""
    whole = pa.schema([*_HEAD, *schema])
    known = [each.select([n for n in whole.names if n in each.column_names]) for each in found]
    rows = pa.concat_tables([whole.empty_table(), *known], promote_options="default")
    high, low, version = (rows.column(at).to_numpy() for at in range(3))
    order = np.lexsort((version, low, high))
    high, low, version = high[order], low[order], version[order]
    fresh = np.ones(len(order), dtype=np.bool_)
    fresh[1:] = (np.diff(high) != 0) | (np.diff(low) != 0)
    last = np.append(np.flatnonzero(fresh)[1:], len(order)) - 1
    newest = version == version[last][np.cumsum(fresh) - 1] if len(order) else fresh
    return rows.take(pa.array(order[newest]))


def _without_deleted(rows: pa.Table) -> pa.Table:
    stays = rows.column(CHANGE).to_numpy() > 0
    return rows if stays.all() else rows.filter(pa.array(stays))


class _OpenFiles:
    """Files of a table from which ranges of keys are read, in their order.

    A file is opened, and its checksum compared, once; it is closed behind its last rows. The group
    of rows that a range ends in is kept for the next one, which need not read it again.
    """

    def __init__(self, table: CurrentTable) -> None:
        self._table = table
        self._files: dict[str, pq.ParquetFile] = {}
        #: the number of the last group of rows that was read of each file, and the rows
        self._last: dict[str, tuple[int, pa.Table]] = {}

    def found(self, files: Sequence[TableRun], first: int, end: int) -> list[pa.Table]:
        """Return the rows in a range of keys of the files of runs, or of parts."""
        # behind the last file of a run comes one that begins at 0
        ends = [*(each.first or _END for each in files[1:]), _END]
        return [
            self._rows(file.name, first, end)
            for file, stop in zip(files, ends, strict=False)
            if file.first < end and first < stop
        ]

    def _rows(self, name: str, first: int, end: int) -> pa.Table:
        """Return the rows of a file in a range of keys."""
        file = self._file(name)
        parts = [file.schema_arrow.empty_table()]
        kept, last = self._last.pop(name, (-1, parts[0]))
        ends = False
        for number in range(file.num_row_groups):
            bounds = file.metadata.row_group(number).column(0).statistics
            ends = bounds is not None and bounds.max < end
            if bounds is None or (bounds.min < end and first <= bounds.max):
                parts.append(last if number == kept else file.read_row_group(number))
                if not ends:
                    self._last[name] = number, parts[-1]
        if ends:
            del self._files[name]
        rows = pa.concat_tables(parts)
        high: npt.NDArray[np.uint64] = rows.column(0).to_numpy()
        inside = (high >= np.uint64(first)) & (high <= np.uint64(end - 1))
        return rows if inside.all() else rows.filter(pa.array(inside))

    def size(self, name: str) -> int:
        """Return the bytes of the rows of a file."""
        metadata = self._file(name).metadata
        return sum(metadata.row_group(n).total_byte_size for n in range(metadata.num_row_groups))

    def _file(self, name: str) -> pq.ParquetFile:
        if name not in self._files:
            self._files[name] = self._table._open(name)
        return self._files[name]
