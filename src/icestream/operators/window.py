"""Window aggregates over panes: the state is on the log, memory holds one running row per group.

Idea: a batch's entries are written to the log as slices, once, whatever the number of views. Each
kind of window has running rows of its own (`rolling`) and reads the slices as panes enter and leave
it. With the store `tuples` slices are not kept until they leave: what leaves is folded anew from
the raw events, which the log holds once for all groupings and all windows.

Invariants:
1. A view emits what Spark's `groupBy(window, keys).agg(...)` gives in append mode
   (`test_oracle_windows_equal_the_obvious_computation`), alone or beside other views
   (`test_oracle_views_that_share_windows_equal_views_alone`).
2. Both stores emit the same rows (`test_oracle_both_stores_emit_the_same_rows`).
3. Arena and work buffers stay inside the quota (`test_bounded_state_of_ten_times_the_budget`).
4. Restoring a snapshot and replaying the versions after it leads to the same rows; fronts are made
   anew, so float sums agree to 106 bits and, rounded, nearly always to the last bit
   (`test_crash_restored_state_emits_the_same_rows`).

Cost: each entry is written once and read at most three times by each kind of window.

References: two-level and one-window aggregation, blocks that return for expiry, one repository for
overlapping windows (Mendes et al., 2013, sections 2 to 4).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from icestream.core.times import INFINITY, MINUS_INFINITY, Micros
from icestream.kernels.words import Table
from icestream.operators.emission import Emission, WindowView
from icestream.operators.fields import Layout
from icestream.operators.groups import Groups
from icestream.operators.panes import Course, Cumulative, Grid, Windows
from icestream.operators.partitions import Partitions
from icestream.operators.protocol import Emitted, Inputs, PastVersion, Shard
from icestream.operators.rolling import Rolling
from icestream.operators.slice_log import SLICE_BYTES, SliceLog, described
from icestream.operators.slices import SLICE, Directory, Slices
from icestream.state.budget import Refused
from icestream.state.keys import KeyCodec
from icestream.state.log.ipc import read_table, write_table
from icestream.state.log.reader import SegmentReader
from icestream.state.versions import BASE

#: lifetime classes: slices, and what left in a version; keys and snapshots are of the class `BASE`
PANES = "panes"
CHANGES = "changes"

#: kinds of records of the class `BASE`
NEW_KEYS = 1
GROUP_ROWS = 2
GROUP_KEYS = 3
SLICES = 4
POSITION = 5

#: a snapshot is due after this many versions, if it costs less than what was logged meanwhile
SNAPSHOT_AFTER = 16
#: and after this many in any case
SNAPSHOT_AT_LATEST = 128


@dataclass(frozen=True)
class WindowSpec:
    """What the window aggregates of a plan compute, with the types of their inputs."""

    views: tuple[WindowView, ...]
    keys: pa.Schema
    inputs: pa.Schema

    @property
    def types(self) -> dict[str, pa.DataType]:
        """Return the type of each input column."""
        return {field.name: field.type for field in self.inputs}

    @cached_property
    def layout(self) -> Layout:
        """Return the fields all aggregates need together."""
        return Layout.of(
            field
            for view in self.views
            for aggregate in view.aggregates
            for field in aggregate.fields(self.types)
        )

    @cached_property
    def grid(self) -> Grid:
        """Return the panes that all windows are made of."""
        return Grid.of(view.windows for view in self.views)

    @cached_property
    def families(self) -> tuple[tuple[WindowView, ...], ...]:
        """Return the views that share running rows: those of equal windows and mode."""
        families: dict[tuple[Windows | Cumulative, bool], list[WindowView]] = {}
        for view in self.views:
            families.setdefault((view.windows, view.updates), []).append(view)
        return tuple(tuple(views) for views in families.values())

    @cached_property
    def courses(self) -> tuple[Course, ...]:
        """Return the order of each family's windows."""
        return tuple(views[0].windows.on(self.grid) for views in self.families)

    def leaves(self, before: Micros, watermark: Micros) -> list[tuple[Micros, Micros]]:
        """Return, for each family, the span of time that leaves its windows with a watermark."""
        return [
            (
                MINUS_INFINITY
                if before == MINUS_INFINITY
                else self.grid.instant(course.first_open(before)),
                self.grid.instant(course.first_open(watermark)),
            )
            for course in self.courses
        ]


class WindowOperator:
    """Window aggregates of one shard."""

    lifetimes: ClassVar[tuple[str, ...]] = (PANES, CHANGES, BASE)

    def __init__(self, spec: WindowSpec, shard: Shard, store: str = PANES) -> None:
        """Attach to the shard's arena; `store` is `panes` or `tuples`."""
        self._spec = spec
        self._shard = shard
        self._refolds = store != PANES
        self._header = shard.arena.header
        self._header.setdefault("since", {"versions": 0, "bytes": 0, "base": 0})
        quota = shard.account.budget.total
        #: bytes of entries sorted at once, and of result fields kept before they are handed on
        self._chunk_bytes = max(SLICE_BYTES, quota // 32)
        shard.account.resize(4 * self._chunk_bytes)
        self._directory = Directory(shard.arena)
        self._slices = SliceLog(shard, spec.layout, self._chunk_bytes)
        self._families = [self._rolling(number) for number in range(len(spec.families))]
        self._new = np.empty(0, dtype=SLICE)
        self._leaving: list[Slices] = []
        self._inputs: Inputs | None = None
        self._replaying = False

    def _rolling(self, number: int) -> Rolling:
        arena, layout = self._shard.arena, self._spec.layout
        scope = "" if number == 0 else f"{number}-"
        groups = Groups(layout, KeyCodec(self._spec.keys), arena, scope)
        budget = self._shard.account.budget
        positions = self._header.setdefault("positions", {})
        return Rolling(
            self._spec.courses[number],
            layout,
            groups,
            Partitions(
                arena, groups, layout.front_words, budget, scope, lambda: self._relieve(number)
            ),
            self._directory,
            self._slices,
            positions.setdefault(str(number), {}),
            budget,
            updates=self._spec.families[number][0].updates,
        )

    # -- a version -------------------------------------------------------------------------

    def on_batch(self, inputs: Inputs) -> None:
        """Take note of a batch; it is read when its watermark is known."""
        self._inputs = inputs

    def on_watermark(self, watermark: Micros) -> Iterator[Emitted]:
        """Write the batch to the log, close the windows that end by the watermark, yield rows."""
        if self._inputs is not None and not self._replaying:
            self._write(self._inputs, watermark)
        snapshot = not self._replaying and self._snapshot_due()
        for number, family in enumerate(self._families):
            for partition in family.partitions.visit():
                self._open_groups(number, partition)
                family.join(partition, self._new)
                output = Emission(
                    self._spec.families[number],
                    self._spec.layout,
                    self._spec.types,
                    self._spec.grid,
                    self._chunk_bytes,
                )
                leaving = self._leaving[number] if self._refolds else None
                yield from family.advance(partition, watermark, leaving, output)
                if snapshot:
                    self._save_groups(number, partition)
        for family in self._families:
            family.settle(watermark)
        self._directory.drop_before(min(each.position["start"] for each in self._families))
        self._inputs = None
        self._new = np.empty(0, dtype=SLICE)
        if snapshot:
            self._save_directory()
        self._shard.seal(BASE)

    def _write(self, inputs: Inputs, watermark: Micros) -> None:
        courses = self._spec.courses
        self._new = self._slices.write(
            inputs.entries(),
            PANES,
            _Entering(courses, watermark) if self._refolds else _Kept(courses),
        )
        self._with_room(lambda: self._shard.seal(PANES))
        if self._refolds:
            self._leaving = [
                self._slices.write(inputs.leaving(number), CHANGES, watermark, number)
                for number in range(len(courses))
            ]
            self._with_room(lambda: self._shard.seal(CHANGES))
        self._take_in(self._new)

    def _take_in(self, slices: Slices) -> None:
        changes = [slices, *self._leaving]
        self._header["since"]["bytes"] += sum(self._slices.bytes_of(each) for each in changes)
        self._with_room(lambda: self._directory.append(slices))

    def _open_groups(self, number: int, partition: Any) -> None:
        """Open the groups of the batch that belong to a partition, logging those that are new."""
        family = self._families[number]
        if self._inputs is not None:
            for keys in self._inputs.groups():
                fresh = family.admit(partition, keys, lambda: self._relieve(number))
                if fresh is not None and not self._replaying:
                    self._shard.segment(BASE).append(
                        write_table(fresh), operator=number, synopsis=NEW_KEYS, rows=fresh.num_rows
                    )
        if self._replaying:
            family.touch(self._new, partition)

    def _relieve(self, number: int) -> bool:
        """Let the groups of other families leave memory; False if there are none."""
        others = [each for place, each in enumerate(self._families) if place != number]
        return sum(each.partitions.evict() for each in others) > 0

    def _with_room(self, action: Callable[[], object]) -> None:
        """Do what needs memory for the directories; groups leave if there is not enough."""
        try:
            action()
        except Refused:
            if sum(family.partitions.evict() for family in self._families) == 0:
                raise
            action()

    # -- snapshot and restore --------------------------------------------------------------

    def _snapshot_due(self) -> bool:
        since = self._header["since"]
        since["versions"] += 1
        if since["versions"] < SNAPSHOT_AFTER:
            return False
        partitions = max(len(family.partitions) for family in self._families)
        size = self._shard.arena.bytes * partitions
        return bool(since["bytes"] >= size or since["versions"] >= SNAPSHOT_AT_LATEST)

    def _save_groups(self, number: int, partition: Any) -> None:
        writer = self._shard.segment(BASE)
        groups = self._families[number].groups
        for rows, keys in groups.image(partition.low, partition.high):
            writer.append(rows, operator=number, synopsis=GROUP_ROWS, rows=len(rows))
            writer.append(write_table(keys), operator=number, synopsis=GROUP_KEYS, rows=len(rows))

    def _save_directory(self) -> None:
        writer = self._shard.segment(BASE)
        slices = self._directory.all
        for at in range(0, len(slices), 1024):
            part = slices[at : at + 1024]
            writer.append(part.tobytes(), synopsis=SLICES, rows=len(part))
        writer.append(json.dumps(self._header["positions"]).encode(), synopsis=POSITION)
        since = self._header["since"]
        since.update(versions=0, bytes=0, base=since["base"] + 1)

    @property
    def took_snapshot(self) -> bool:
        """Tell whether the version just written stands without those before it."""
        since = self._header["since"]
        return bool(since["versions"] == 0 and since["base"] > 0)

    @property
    def released(self) -> tuple[int, ...]:
        """Return nothing: segments go when they expire."""
        return ()

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
                        for number, position in json.loads(bytes(record.payload)).items():
                            self._families[int(number)].position.update(position)
                for number, family in enumerate(self._families):
                    family.partitions.import_image(_group_records(reader, number))
            self._header["since"].update(versions=0, bytes=0)
            return True
        return False

    def _replay(self, past: PastVersion) -> None:
        self._new = self._described(past, PANES, 0)
        self._leaving = [
            self._described(past, CHANGES, number) for number in range(len(self._families))
        ]
        self._take_in(self._new)
        self._inputs = _Replayed(self._shard, past)
        for _ in self.on_watermark(past.watermark):
            pass

    def _described(self, past: PastVersion, lifetime: str, number: int) -> Slices:
        found: list[tuple[int, ...]] = []
        for each, info in past.segments:
            if each == lifetime:
                with closing(self._shard.reader(info)) as reader:
                    found += [
                        described(record) for record in reader.scan() if record.operator == number
                    ]
        return np.array(found, dtype=SLICE)

    @property
    def statistics(self) -> dict[str, Any]:
        """Return what the progress report tells of this shard."""
        families = [family.statistics for family in self._families]
        return {
            "groups": sum(each["groups"] for each in families),
            "partitions": sum(each["partitions"] for each in families),
            "slices": int(self._header["slices"]),
        }


@dataclass(frozen=True)
class _Kept:
    """Slices that stay until their pane has left every window."""

    courses: tuple[Course, ...]

    def __call__(self, pane: int) -> Micros:
        return max(each.grid.instant(each.last_end(pane)) for each in self.courses)


@dataclass(frozen=True)
class _Entering:
    """Slices that stay until their pane has entered every window, and their version is past."""

    courses: tuple[Course, ...]
    watermark: Micros

    def __call__(self, pane: int) -> Micros:
        entered = max(each.grid.instant(each.first_end(pane)) for each in self.courses)
        return min(max(entered, self.watermark + 1), INFINITY)


@dataclass(frozen=True)
class _Replayed:
    """Keys that a past version logged, read as they are asked for; its entries are on the log."""

    shard: Shard
    past: PastVersion

    def entries(self) -> Iterator[Table]:
        yield from ()

    def leaving(self, family: int) -> Iterator[Table]:
        yield from ()

    def tuples(self) -> Iterator[pa.RecordBatch]:
        yield from ()

    def groups(self) -> Iterator[pa.Table]:
        for lifetime, info in self.past.segments:
            if lifetime == BASE:
                with closing(self.shard.reader(info)) as reader:
                    for record in reader.scan():
                        if record.synopsis == NEW_KEYS:
                            yield read_table(record.payload)


def _group_records(reader: SegmentReader, number: int) -> Iterator[tuple[memoryview, memoryview]]:
    """Yield rows and keys of a snapshot's groups of one family, chunk by chunk."""
    rows = memoryview(b"")
    for record in reader.scan():
        if record.operator != number:
            continue
        if record.synopsis == GROUP_ROWS:
            rows = record.payload
        elif record.synopsis == GROUP_KEYS:
            yield rows, record.payload
