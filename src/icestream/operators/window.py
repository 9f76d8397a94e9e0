"""Window aggregates over panes: the state is on the log, memory holds one running row per group.

Idea: a batch's entries are written to the log as slices, once, sorted by (pane, hi, lo). When the
watermark closes a window its newest panes are read and added to the running rows, the rows are
emitted, and its oldest panes are read again and taken out. Where running rows exceed the
quota they are split in partitions of hi, and a version passes over the partitions one by one.

Invariants:
1. A window [s, e) is emitted once, when the watermark reaches e, with exactly the groups and events
   in it: what Spark's `groupBy(window, keys).agg(...)` gives in append mode
   (`test_oracle_windows_equal_the_obvious_computation`).
2. An event older than the watermark still counts in every window that is open
   (`test_an_event_behind_the_watermark_counts_in_windows_still_open`).
3. Arena and work buffers stay inside the quota (`test_bounded_state_of_ten_times_the_budget`).
4. Restoring a snapshot and replaying the versions after it leads to the same rows; fronts are made
   anew, so float sums agree to 106 bits and, rounded, nearly always to the last bit
   (`test_crash_restored_state_emits_the_same_rows`).

Cost: each entry is written once and read at most three times (added, taken out, and once per
window length for fields without an inverse), whatever range/slide is; O(groups) per slide.

Limits: an event behind the watermark and before the last flip makes fields without an inverse fold
their window again, once in that version.

References: panes (Li et al., No Pane, No Gain); two-level aggregation and blocks that return for
expiry (Mendes et al., 2013, sections 2.2 and 3); two-stacks aggregation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icestream.core.times import MINUS_INFINITY, Micros
from icestream.kernels.words import Table
from icestream.operators.aggregates import Aggregate
from icestream.operators.fields import Layout
from icestream.operators.fold import HI, LAST, LO
from icestream.operators.groups import Groups
from icestream.operators.panes import Windows
from icestream.operators.partitions import Partition, Partitions
from icestream.operators.protocol import Inputs, PastVersion, Shard
from icestream.operators.runs import slice_bounds, sorted_run
from icestream.operators.slices import SLICE, Directory, Slices
from icestream.state.budget import Refused, shortage
from icestream.state.keys import KeyCodec
from icestream.state.log.format import Record
from icestream.state.log.ipc import read_table, write_table
from icestream.state.log.reader import SegmentReader
from icestream.state.versions import BASE

Ints = npt.NDArray[np.int64]

#: lifetime class of slices; keys and snapshots are of the class `BASE`
PANES = "panes"

#: kinds of records
ENTRIES = 0
NEW_KEYS = 1
GROUP_ROWS = 2
GROUP_KEYS = 3
SLICES = 4
POSITION = 5

#: bytes of entries in one slice record
SLICE_BYTES = 65536
#: a snapshot is due after this many versions, if it costs less than what was logged meanwhile
SNAPSHOT_AFTER = 16
#: and after this many in any case
SNAPSHOT_AT_LATEST = 128


@dataclass(frozen=True)
class WindowSpec:
    """What a window aggregate computes, with the types of its inputs."""

    windows: Windows
    aggregates: tuple[Aggregate, ...]
    keys: pa.Schema
    inputs: pa.Schema

    @property
    def types(self) -> dict[str, pa.DataType]:
        """Return the type of each input column."""
        return {field.name: field.type for field in self.inputs}

    @property
    def layout(self) -> Layout:
        """Return the fields all aggregates need together."""
        return Layout.of(
            field for aggregate in self.aggregates for field in aggregate.fields(self.types)
        )


@dataclass(frozen=True, slots=True)
class Step:
    """One window: panes before `end` enter, it is emitted, then panes before `leave` go."""

    start: int
    end: int
    leave: int


class WindowOperator:
    """Window aggregates of one shard."""

    def __init__(self, spec: WindowSpec, shard: Shard, results: pa.Schema) -> None:
        """Attach to the shard's arena; `results` is the schema of the rows to emit."""
        self._spec = spec
        self._shard = shard
        self._results = results
        self._layout = spec.layout
        self._header = shard.arena.header
        self._header.setdefault("position", {"start": MINUS_INFINITY, "added": MINUS_INFINITY})
        self._header.setdefault("since", {"versions": 0, "bytes": 0, "base": 0})
        quota = shard.account.budget.total
        #: bytes of entries sorted at once, and of result fields kept before they are handed on
        self._chunk_bytes = max(SLICE_BYTES, quota // 32)
        shard.account.resize(4 * self._chunk_bytes)
        self._directory = Directory(shard.arena)
        self._groups = Groups(self._layout, KeyCodec(spec.keys), shard.arena)
        self._partitions = Partitions(
            shard.arena, self._groups, self._layout.front_words, shard.account.budget
        )
        self._new = np.empty(0, dtype=SLICE)
        self._inputs: Inputs | None = None
        #: panes before this one are in the running rows once the current pass is through
        self._reached = MINUS_INFINITY
        self._replaying = False

    # -- a batch ---------------------------------------------------------------------------

    def on_batch(self, inputs: Inputs) -> None:
        """Write the entries of a batch to the log; their groups are opened with the watermark."""
        self._inputs = inputs
        slices: list[Slices] = []
        pending: list[Table] = []
        size = 0
        for table in inputs.entries():
            pending.append(table)
            size += table.nbytes
            if size >= self._chunk_bytes:
                slices.append(self._write_run(np.concatenate(pending)))
                pending, size = [], 0
        if pending:
            slices.append(self._write_run(np.concatenate(pending)))
        self._with_room(lambda: self._shard.seal(PANES))
        self._new = np.concatenate(slices) if slices else np.empty(0, dtype=SLICE)
        self._take_in(self._new)

    def _write_run(self, table: Table) -> Slices:
        panes, entries = sorted_run(
            np.ascontiguousarray(table[:, 0]), np.ascontiguousarray(table[:, 1:]), self._layout
        )
        windows = self._spec.windows
        writer = self._shard.segment(PANES)
        limit = max(1, SLICE_BYTES // (8 * self._layout.entry_width))
        found = []
        bounds = slice_bounds(panes).tolist()
        for first, last in pairwise(bounds):
            pane = int(panes[first])
            expiry = windows.instant(windows.last_end(pane))
            for at in range(first, last, limit):
                part = entries[at : min(at + limit, last)]
                marker = writer.append(
                    part, synopsis=ENTRIES, group=pane, rows=len(part), expiry=expiry
                )
                ends = part[[0, -1], 0].view(np.uint64).tolist()
                found.append((pane, marker, len(part), *ends))
        return np.array(found, dtype=SLICE)

    def _take_in(self, slices: Slices) -> None:
        self._header["since"]["bytes"] += int(slices["rows"].sum()) * 8 * self._layout.entry_width
        self._with_room(lambda: self._directory.append(slices))

    def _with_room(self, action: Callable[[], object]) -> None:
        """Do what needs memory for the directories; groups leave if there is not enough."""
        try:
            action()
        except Refused:
            if not self._partitions.evict():
                raise
            action()

    # -- a watermark -----------------------------------------------------------------------

    def on_watermark(self, watermark: Micros) -> Iterator[pa.RecordBatch]:
        """Close the windows that end at or before the watermark and yield their rows."""
        snapshot = not self._replaying and self._snapshot_due()
        position = self._header["position"]
        for partition in self._partitions.visit():
            self._open_groups(partition)
            self._join_running(partition, position)
            yield from self._advance(partition, position, watermark)
            if snapshot:
                self._save_groups(partition)
        self._inputs = None
        self._new = np.empty(0, dtype=SLICE)
        self._settle(watermark)
        if snapshot:
            self._save_directory()
        self._shard.seal(BASE)

    def _steps(self, position: dict[str, int], watermark: Micros) -> Iterator[Step]:
        """Yield the windows to emit, those that no event is in left out."""
        windows = self._spec.windows
        start = position["start"]
        self._reached = position["added"]
        while (first := self._directory.first_from(start)) is not None:
            start = max(start, windows.first_start(first))
            end = start + windows.range_panes
            if windows.instant(end) > watermark:
                return
            self._reached = max(self._reached, end)
            yield Step(start, end, start + windows.slide_panes)
            start += windows.slide_panes

    def _settle(self, watermark: Micros) -> None:
        """Note where the windows stand once every partition has passed."""
        if watermark == MINUS_INFINITY:
            return
        position = self._header["position"]
        start = max(position["start"], self._spec.windows.first_open(watermark))
        position.update(start=start, added=max(self._reached, start))
        self._directory.drop_before(start)

    def _open_groups(self, partition: Partition) -> None:
        """Open the groups of the batch that belong to a partition, logging those that are new."""
        if self._inputs is not None:
            for keys in self._inputs.groups():
                self._admit(partition, keys)
        if self._replaying:
            for pane, entries in self._read(self._new, partition):
                self._groups.touch(entries, pane)

    def _admit(self, partition: Partition, keys: pa.Table) -> None:
        while True:
            inside = _inside(keys, partition)
            if inside.num_rows == 0:
                return
            hi, lo, last = (inside.column(name).to_numpy() for name in (HI, LO, LAST))
            try:
                fresh = self._groups.admit(hi, lo, last, inside)
            except Refused as refused:
                if not self._partitions.split(partition):
                    raise shortage(self._shard.account.budget, refused) from refused
                continue
            if len(fresh) and not self._replaying:
                self._shard.segment(BASE).append(
                    write_table(inside.take(pa.array(fresh))), synopsis=NEW_KEYS, rows=len(fresh)
                )
            return

    def _join_running(self, partition: Partition, position: dict[str, int]) -> None:
        """Add new slices of panes the running rows already hold."""
        behind = self._new[self._new["pane"] < position["added"]]
        for _, entries in self._read(behind, partition):
            self._groups.add(entries)
        late = len(behind) > 0 and int(behind["pane"].min()) < partition.flipped
        if self._layout.front_words and (late or partition.stale):
            self._flip(partition, position["start"], position["added"])

    def _advance(
        self, partition: Partition, position: dict[str, int], watermark: Micros
    ) -> Iterator[pa.RecordBatch]:
        """Emit the windows that close, adding and expiring panes as they come and go."""
        output = _Output(self._spec, self._layout, self._results, self._chunk_bytes)
        dead: list[Ints] = []
        entering = self._from(max(position["added"], position["start"]), partition)
        leaving = self._from(position["start"], partition)
        for step in self._steps(position, watermark):
            for _, entries in entering.before(step.end):
                self._groups.add(entries)
            first = 0
            while True:
                first = output.collect(self._groups, first, step.start)
                if not output.full:
                    break
                yield output.take(self._groups)
            dead.extend(self._leave(partition, step, leaving))
            if dead and output.rows == 0:
                self._groups.release(np.concatenate(dead))
                dead = []
        if output.rows:
            yield output.take(self._groups)
        if dead:
            self._groups.release(np.concatenate(dead))

    def _leave(self, partition: Partition, step: Step, leaving: _Ahead) -> Iterator[Ints]:
        """Take the oldest panes of a window out; yield groups that have nothing left."""
        width = self._layout.front_words
        empties = step.leave >= step.end
        if width and empties:
            self._groups.start_flip()
            partition.fronts.clear()
            partition.flipped = step.end
        elif width and step.leave > partition.flipped:
            self._flip(partition, step.start, step.end)
        for pane, entries in leaving.before(step.leave):
            if width and not empties:
                fronts = partition.fronts.pop(len(entries))
            else:
                fronts = np.tile(
                    self._layout.group_identity[self._layout.fronts_at :], (len(entries), 1)
                )
            yield self._groups.expire(entries, pane, fronts)

    def _flip(self, partition: Partition, start: int, added: int) -> None:
        """Turn everything in the running rows into fronts."""
        self._groups.start_flip()
        partition.fronts.clear()
        for _, entries in self._read(self._directory.between(start, added)[::-1], partition):
            partition.fronts.push(self._groups.push_front(entries))
        partition.flipped = added
        partition.stale = False

    def _read(self, slices: Slices, partition: Partition) -> Iterator[tuple[int, Table]]:
        """Yield (pane, entries inside the partition) of slices, in their order, read ahead."""
        low, high = np.uint64(partition.low), np.uint64(partition.high - 1)
        wanted = slices[(slices["first_hi"] <= high) & (slices["last_hi"] >= low)]
        width = self._layout.entry_width
        for part in _portions(wanted, self._chunk_bytes // (8 * width)):
            records = {r.marker: r.payload for r in self._shard.log.read_many(part["marker"])}
            for pane, marker in zip(part["pane"].tolist(), part["marker"].tolist(), strict=True):
                table = np.frombuffer(records[marker], dtype=np.int64).reshape(-1, width)
                if partition.whole:
                    yield pane, table
                    continue
                hi = np.ascontiguousarray(table[:, 0]).view(np.uint64)
                first = int(np.searchsorted(hi, low, side="left"))
                last = int(np.searchsorted(hi, high, side="right"))
                if first < last:
                    yield pane, table[first:last]

    def _from(self, pane: int, partition: Partition) -> _Ahead:
        """Return the slices from a pane on, in order."""
        slices = self._directory.between(pane, np.iinfo(np.int64).max)
        return _Ahead(self._read(slices, partition))

    # -- snapshot and restore --------------------------------------------------------------

    def _snapshot_due(self) -> bool:
        since = self._header["since"]
        since["versions"] += 1
        if since["versions"] < SNAPSHOT_AFTER:
            return False
        size = self._shard.arena.bytes * len(self._partitions)
        return bool(since["bytes"] >= size or since["versions"] >= SNAPSHOT_AT_LATEST)

    def _save_groups(self, partition: Partition) -> None:
        writer = self._shard.segment(BASE)
        for rows, keys in self._groups.image(partition.low, partition.high):
            writer.append(rows, synopsis=GROUP_ROWS, rows=len(rows))
            writer.append(write_table(keys), synopsis=GROUP_KEYS, rows=len(rows))

    def _save_directory(self) -> None:
        writer = self._shard.segment(BASE)
        slices = self._directory.all
        for at in range(0, len(slices), 1024):
            part = slices[at : at + 1024]
            writer.append(part.tobytes(), synopsis=SLICES, rows=len(part))
        writer.append(json.dumps(self._header["position"]).encode(), synopsis=POSITION)
        since = self._header["since"]
        since.update(versions=0, bytes=0, base=since["base"] + 1)

    @property
    def took_snapshot(self) -> bool:
        """Tell whether the version just written stands without those before it."""
        since = self._header["since"]
        return bool(since["versions"] == 0 and since["base"] > 0)

    def restore(self, history: Sequence[PastVersion]) -> None:
        """Load the snapshot that begins `history`, if it does, and replay the versions after it."""
        self._replaying = True
        for past in history:
            self._header["since"]["versions"] += 1
            if not self._load(past):
                self._replay(past)
        self._replaying = False

    def _load(self, past: PastVersion) -> bool:
        for lifetime, info in past.segments:
            if lifetime != BASE:
                continue
            with closing(self._shard.reader(info)) as reader:
                if not (reader.directory["synopsis"] == POSITION).any():
                    continue
                for record in reader.scan():
                    if record.synopsis == SLICES:
                        self._directory.append(np.frombuffer(record.payload, dtype=SLICE))
                    elif record.synopsis == POSITION:
                        self._header["position"].update(json.loads(bytes(record.payload)))
                self._partitions.import_image(_group_records(reader))
            self._header["since"].update(versions=0, bytes=0)
            return True
        return False

    def _replay(self, past: PastVersion) -> None:
        found: list[tuple[int, ...]] = []
        for lifetime, info in past.segments:
            if lifetime == PANES:
                with closing(self._shard.reader(info)) as reader:
                    found += [self._described(record) for record in reader.scan()]
        self._new = np.array(found, dtype=SLICE)
        self._take_in(self._new)
        self._inputs = _Replayed(self._shard, past)
        for _ in self.on_watermark(past.watermark):
            pass

    def _described(self, record: Record) -> tuple[int, ...]:
        """Return what the directory keeps of a slice."""
        rows = np.frombuffer(record.payload, dtype=np.uint64).reshape(record.rows, -1)
        return record.group, record.marker, record.rows, int(rows[0, 0]), int(rows[-1, 0])

    @property
    def statistics(self) -> dict[str, Any]:
        """Return what the progress report tells of this shard."""
        return {
            "groups": self._partitions.groups,
            "partitions": len(self._partitions),
            "slices": int(self._header["slices"]),
        }


class _Ahead:
    """Slices in the order of panes, read a portion ahead of their use."""

    def __init__(self, slices: Iterator[tuple[int, Table]]) -> None:
        self._slices = slices
        self._next: tuple[int, Table] | None = None

    def before(self, pane: int) -> Iterator[tuple[int, Table]]:
        """Yield the slices that are left of panes before `pane`."""
        while True:
            if self._next is None:
                self._next = next(self._slices, None)
            if self._next is None or self._next[0] >= pane:
                return
            current, self._next = self._next, None
            yield current


class _Output:
    """Result fields collected until they fill a batch."""

    def __init__(self, spec: WindowSpec, layout: Layout, results: pa.Schema, size: int) -> None:
        rows = max(1, size // (8 * (layout.field_words + 2)))
        self._spec = spec
        self._layout = layout
        self._results = results
        self._fields = np.empty((rows, layout.field_words), dtype=np.int64)
        self._slots = np.empty(rows, dtype=np.int64)
        self._starts = np.empty(rows, dtype=np.int64)
        self.rows = 0
        self.full = False

    def collect(self, groups: Groups, first: int, start: int) -> int:
        """Collect the groups of a window from row `first` on; return where it stopped."""
        before = self.rows
        reached, self.rows = groups.emit(first, self._fields, self._slots, before)
        self._starts[before : self.rows] = start
        self.full = reached < len(groups.rows)
        return reached

    def take(self, groups: Groups) -> pa.RecordBatch:
        """Turn what was collected into result rows."""
        windows, count = self._spec.windows, self.rows
        starts = self._starts[:count] * windows.pane + windows.offset
        kind = self._results.field("window").type
        window = pa.StructArray.from_arrays(
            [pa.array(at).cast(kind[0].type) for at in (starts, starts + windows.range)],
            fields=list(kind),
        )
        fields = self._fields[:count]
        answers = [
            aggregate.lower(fields, self._layout, self._spec.types)
            for aggregate in self._spec.aggregates
        ]
        keys = groups.keys(self._slots[:count]).columns
        self.rows = 0
        return pa.RecordBatch.from_arrays([window, *keys, *answers], schema=self._results)


@dataclass(frozen=True)
class _Replayed:
    """Keys that a past version logged, read as they are asked for; its entries are on the log."""

    shard: Shard
    past: PastVersion

    def entries(self) -> Iterator[Table]:
        yield from ()

    def groups(self) -> Iterator[pa.Table]:
        for lifetime, info in self.past.segments:
            if lifetime == BASE:
                with closing(self.shard.reader(info)) as reader:
                    for record in reader.scan():
                        if record.synopsis == NEW_KEYS:
                            yield read_table(record.payload)


def _portions(slices: Slices, rows: int) -> Iterator[Slices]:
    """Cut slices into portions of about so many rows, at least one slice each."""
    if len(slices) == 0:
        return
    portion = (np.cumsum(slices["rows"]) - slices["rows"]) // max(1, rows)
    bounds = slice_bounds(portion).tolist()
    for first, last in pairwise(bounds):
        yield slices[first:last]


def _group_records(reader: SegmentReader) -> Iterator[tuple[memoryview, memoryview]]:
    """Yield rows and keys of a snapshot's groups, chunk by chunk."""
    rows = memoryview(b"")
    for record in reader.scan():
        if record.synopsis == GROUP_ROWS:
            rows = record.payload
        elif record.synopsis == GROUP_KEYS:
            yield rows, record.payload


def _inside(keys: pa.Table, partition: Partition) -> pa.Table:
    if partition.whole:
        return keys
    hi = keys.column(HI).to_numpy()
    inside = (hi >= np.uint64(partition.low)) & (hi <= np.uint64(partition.high - 1))
    return keys.filter(pa.array(inside))
