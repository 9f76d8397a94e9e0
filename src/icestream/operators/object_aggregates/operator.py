"""Object aggregates of one shard: states on the log in a tree over panes, memory for a portion.

Idea: events of a batch become states, one per pane and group, written to the log once. When the
watermark closes windows, the nodes of the tree that they need and that do not exist yet are
combined from the level below, once, and written too; a window is combined from few nodes. An event
behind the watermark adds its slice to the existing nodes above it.

Invariants:
1. A window is emitted once, when the watermark reaches its end, with exactly the groups and events
   in it (`test_oracle_windows_equal_the_obvious_computation`).
2. An event older than the watermark still counts in every window that is open
   (`test_an_event_behind_the_watermark_counts_in_windows_still_open`).
3. Arena and work buffers stay inside the quota (`test_bounded_state_of_ten_times_the_budget`).
4. The directory follows from the log: a restore leads to the same slices
   (`test_crash_restores_from_snapshots` of the conformance suite).
5. A slide reads O(log(panes of a window)) nodes (`test_bounded_a_slide_reads_few_nodes`).

Cost: a state is written once per level, at most `log4(range / pane)` times and 7 in all; a window
reads about 4 nodes of each level. The cost of combining them depends on the functions.

Limits: the state of one group in one window must fit into a 16th of the quota, an 8th if it is of
large values; otherwise the error states the bytes it needs. The directory, 48 bytes for each slice,
stays in memory. Every batch adds a slice to each pane it has events of: with a small quota, panes
of very many small batches are slow to read, because each range of `id_high` reads all of them.

References: panes (Li et al., No Pane, No Gain); trees over panes (Arasu, Widom, Resource Sharing in
Continuous Sliding-Window Aggregates).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints, slice_bounds
from icestream.core.times import MINUS_INFINITY, Micros
from icestream.operators.folding.columns import window_column
from icestream.operators.logged_operator import LoggedOperator, once
from icestream.operators.object_aggregates.assembly import WORK, Assembly
from icestream.operators.object_aggregates.directory import SLICE, NodeDirectory, Slices
from icestream.operators.object_aggregates.ranges import EventPortions
from icestream.operators.object_aggregates.states import TIME, ObjectSpec, States
from icestream.operators.object_aggregates.tree import (
    FAN,
    LEVELS,
    first_pane,
    highest_level,
    nodes_of,
)
from icestream.operators.protocol import PastVersion, Shard, StateInputs
from icestream.plan.windows.grid import Grid, WindowStep
from icestream.state.identities import keep_ids, kept_ids
from icestream.state.log.reader import SegmentReader
from icestream.state.versions.commits import BASE

#: kinds of records
STATES = 0
INDEX = 1
SNAPSHOT = 2

#: maximum bytes of states in one slice record
SLICE_BYTES = 65536
#: maximum number of rows of one batch of results
RESULT_ROWS = 4096


class ObjectOperator(LoggedOperator):
    """Object aggregates of one shard."""

    lifetimes: ClassVar[tuple[str, ...]] = (*(f"level{k}" for k in range(LEVELS + 1)), BASE)
    _position_kind = SNAPSHOT

    def __init__(self, spec: ObjectSpec, shard: Shard, results: pa.Schema) -> None:
        """Attach to the shard's arena; `results` is the schema of the rows to emit."""
        super().__init__(shard)
        self._spec = spec
        self._results = results
        self._grid = Grid.of([spec.windows])
        self._course = spec.windows.on(self._grid)
        pane = self._grid.pane
        self._highest = highest_level(spec.windows.range // pane, spec.windows.slide // pane)
        self._states = States(spec)
        self._header.setdefault("position", {"start": MINUS_INFINITY, "done": MINUS_INFINITY})
        self._header.setdefault("groups", 0)
        self._directory = NodeDirectory(shard.arena)
        self._portion = max(1, shard.account.budget.total // (2 * WORK))
        self._slice_bytes = min(SLICE_BYTES, self._portion)
        self._assembly = Assembly(shard, self._states, self._portion, self._largest_window)
        self._assembly.keeps = kept_ids(self._header)
        #: the maximum number of nodes that one window was composed of
        self._nodes = 0

    # -- a batch ---------------------------------------------------------------------------

    def on_batch(self, inputs: StateInputs) -> None:
        """Write the states of a batch's events to the log, one portion after the other.

        Events of hot groups arrive as states already.
        """
        found: list[tuple[int, ...]] = []
        for batches in EventPortions(inputs.tuples, self._panes_of, self._portion // 2):
            pending: list[pa.RecordBatch] = []
            size = 0
            for batch in batches:
                for part in self._states.parts(batch, self._portion):
                    if pending and size + part.nbytes > self._portion:
                        found += self._lift(pending)
                        pending, size = [], 0
                    pending.append(part)
                    size += part.nbytes
            if pending:
                found += self._lift(pending)
        for states in inputs.states():
            panes = np.asarray(states.column(0).to_numpy())
            rows = pa.RecordBatch.from_arrays(states.columns[1:], schema=self._states.schema)
            found += self._write(0, panes, rows)
        slices = np.array(found, dtype=SLICE)
        self._take_in(0, np.concatenate([slices, *self._above(slices)]))

    def _lift(self, batches: list[pa.RecordBatch]) -> Iterator[tuple[int, ...]]:
        tuples = pa.concat_batches(batches)
        yield from self._write(0, *self._states.lift(tuples, self._panes_of(tuples)))

    def _panes_of(self, tuples: pa.RecordBatch) -> Ints:
        return self._grid.panes_of(np.asarray(tuples.column(TIME)))

    def _write(self, level: int, places: Ints, rows: pa.RecordBatch) -> Iterator[tuple[int, ...]]:
        """Append the states of nodes to the open segment of a level; yield their slices."""
        writer = self._shard.segment(self.lifetimes[level])
        for first, last in pairwise(slice_bounds(places).tolist()):
            place = int(places[first])
            expiry = self._expiry(level, place)
            for part in self._states.parts(rows.slice(first, last - first), self._slice_bytes):
                payload = self._states.write(part)
                marker = writer.append(
                    payload,
                    operator=level,
                    synopsis=STATES,
                    group=place,
                    rows=part.num_rows,
                    expiry=expiry,
                )
                yield (level, place, marker, payload.size, *self._states.ends(part))

    def _above(self, slices: Slices) -> Iterator[Slices]:
        """Yield new slices of panes as slices of the existing nodes above them."""
        for level in range(1, self._highest + 1):
            places = slices["place"] // FAN**level
            chosen = np.isin(places, self._directory.nodes(level))
            raised = slices[chosen]
            raised["level"], raised["place"] = level, places[chosen]
            yield raised

    def _take_in(self, level: int, slices: Slices) -> None:
        """Finish the segment of a level and enter its slices into the directory."""
        if len(slices) == 0:
            return
        expiry = self._expiry(level, int(slices["place"][slices["level"] == level].max()))
        self._shard.segment(self.lifetimes[level]).append(
            slices.tobytes(), synopsis=INDEX, rows=len(slices), expiry=expiry
        )
        info = self._shard.seal(self.lifetimes[level])
        self._schedule.log(0 if info is None else info.bytes)
        self._directory.append(slices)

    def _expiry(self, level: int, place: int) -> Micros:
        """Return when the last window that needs a node ends."""
        return self._grid.instant(self._course.last_end(first_pane(level, place)))

    # -- a watermark -----------------------------------------------------------------------

    def on_watermark(self, watermark: Micros) -> Iterator[pa.RecordBatch]:
        """Close the windows that end at or before the watermark and yield their rows."""
        steps = list(self._steps(watermark))
        self._combine_nodes(steps)
        yield from self._states.take_bad()
        yield from self._emit(steps)
        yield from self._states.take_bad()
        self._settle(watermark)
        # a snapshot lists slices and holds no states: it is too cheap to be postponed
        if self._schedule.version_ends(size=0):
            self._save()
        self._shard.seal(BASE)

    def _steps(self, watermark: Micros) -> Iterator[WindowStep]:
        """Yield the windows to emit, without those that have no events."""
        panes = self._directory.nodes(0)
        start, done = (self._header["position"][name] for name in ("start", "done"))
        while (at := bisect_left(panes, start)) < len(panes):
            step = self._course.next(start, done, panes[at])
            if self._grid.instant(step.end) > watermark:
                return
            yield step
            start, done = step.leave, step.end

    def _largest_window(self) -> int:
        """Return the bytes of the panes of the largest window that there are slices of.

        Where states do not grow, three of the largest are in memory together.
        """
        if not self._states.accumulates:
            return 3 * int(self._directory.all["bytes"].max(initial=0))
        return self._directory.largest(self._spec.windows.range // self._grid.pane)

    def _settle(self, watermark: Micros) -> None:
        """Record the position of the windows and drop slices of panes that are in none."""
        if watermark == MINUS_INFINITY:
            return
        position = self._header["position"]
        start = max(position["start"], self._course.first_open(watermark))
        done = max(position["done"], self._grid.passed(watermark))
        position.update(start=start, done=done)
        slices = self._directory.all
        self._directory.keep(slices["place"] * FAN ** slices["level"] >= start)

    def _combine_nodes(self, steps: Iterable[WindowStep]) -> None:
        """Create the nodes that windows need and that do not exist yet, level by level."""
        for level, places in enumerate(self._missing(steps)):
            if places:
                targets = ((place, self._below(level, place)) for place in sorted(places))
                made = [
                    slot
                    for found, rows in self._assembly.combined(targets)
                    for slot in self._write(level, found, rows)
                ]
                self._take_in(level, np.array(made, dtype=SLICE))

    def _missing(self, steps: Iterable[WindowStep]) -> list[set[int]]:
        """Return, for each level, the places of nodes to create."""
        panes = self._directory.nodes(0)
        there = [set(self._directory.nodes(level)) for level in range(self._highest + 1)]
        missing: list[set[int]] = [set() for _ in there]
        stack = [node for each in steps for node in nodes_of(each.start, each.end, self._highest)]
        while stack:
            level, place = stack.pop()
            if level == 0 or place in there[level]:
                continue
            there[level].add(place)
            at = bisect_left(panes, first_pane(level, place))
            if at < len(panes) and panes[at] < first_pane(level, place + 1):
                missing[level].add(place)
                stack += [(level - 1, FAN * place + child) for child in range(FAN)]
        return missing

    def _below(self, level: int, place: int) -> Slices:
        """Return the slices of the nodes that a node is composed of."""
        first = FAN * place
        return np.concatenate(
            [self._directory.node(level - 1, child) for child in range(first, first + FAN)]
        )

    def _emit(self, steps: Sequence[WindowStep]) -> Iterator[pa.RecordBatch]:
        starts, ends = (
            np.array([self._grid.instant(getattr(step, name)) for step in steps], dtype=np.int64)
            for name in ("start", "end")
        )
        groups = 0
        for found, rows in self._assembly.combined(self._windows(steps)):
            groups += int((found == len(steps) - 1).sum())
            for at in range(0, rows.num_rows, RESULT_ROWS):
                part, chosen = rows.slice(at, RESULT_ROWS), found[at : at + RESULT_ROWS]
                yield self._lowered(starts[chosen], ends[chosen], part)
        if steps:
            self._header["groups"] = groups

    def _windows(self, steps: Sequence[WindowStep]) -> Iterator[tuple[int, Slices]]:
        for number, step in enumerate(steps):
            nodes = [
                self._directory.node(level, place)
                for level, place in nodes_of(step.start, step.end, self._highest)
            ]
            self._nodes = max(self._nodes, len(nodes))
            yield number, np.concatenate(nodes)

    def _lowered(self, starts: Ints, ends: Ints, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Convert the states of windows to result rows."""
        window = window_column(self._results.field(0).type, starts, ends)
        answers = self._states.lower(rows)
        shown = len(self._results) - 1 - len(answers)
        columns = [window, *self._states.keys(rows)[:shown], *answers]
        return pa.RecordBatch.from_arrays(columns, schema=self._results)

    # -- stored panes ------------------------------------------------------------

    def panes(self) -> Iterator[tuple[Ints, pa.RecordBatch]]:
        """Yield number and states of the panes that some window still needs, by pane and group."""
        places = self._directory.nodes(0)
        yield from self._assembly.combined((at, self._directory.node(0, at)) for at in places)

    def replace(self, panes: Ints, rows: pa.RecordBatch) -> None:
        """Replace all states of panes with these, sorted by pane and group."""
        self._directory.keep(np.zeros(len(self._directory.all), dtype=np.bool_))
        if rows.num_rows:
            self._take_in(0, np.array(list(self._write(0, panes, rows)), dtype=SLICE))
        self._save()
        self._shard.seal(BASE)

    # -- snapshot and restore --------------------------------------------------------------

    def _save(self) -> None:
        """Write the directory; the position of the windows follows from the watermark."""
        self._shard.segment(BASE).append(
            self._directory.all.tobytes(), synopsis=SNAPSHOT, rows=len(self._directory.all)
        )
        self._schedule.take()

    def _load(self, past: PastVersion, snapshots: Sequence[SegmentReader]) -> None:
        listed = [slices for each in snapshots for slices in _listed(each, SNAPSHOT)]
        slices = np.concatenate(listed)
        if past.parents:
            # nodes are combined again: not all parents have the same ones
            slices = once([each[each["level"] == 0] for each in listed], SLICE)
        self._directory.append(slices)
        self._settle_past(past)

    def _replay(self, past: PastVersion) -> None:
        for lifetime, info in sorted(past.segments, key=lambda each: each[1].ordinal):
            if lifetime != BASE:
                with closing(self._shard.reader(info)) as reader:
                    for slices in _listed(reader, INDEX):
                        self._directory.append(slices)
            self._schedule.log(info.bytes)
        self._schedule.version_ends(size=0)
        self._settle_past(past)

    def _settle_past(self, past: PastVersion) -> None:
        """Skip the groups of other shards in slices, and settle at a past watermark."""
        keep_ids(self._header, past.keeps)
        self._assembly.keeps = past.keeps
        self._settle(past.watermark)

    @property
    def statistics(self) -> dict[str, Any]:
        return {
            "groups": int(self._header["groups"]),
            "partitions": self._assembly.ranges,
            "slices": len(self._directory),
            "nodes": self._nodes,
        }


def _listed(reader: SegmentReader, kind: int) -> Iterator[Slices]:
    """Yield the slices that records of a segment list."""
    listed = reader.directory[reader.directory["synopsis"] == kind]
    for record in reader.read_many(listed["marker"]):
        yield np.frombuffer(record.payload, dtype=SLICE)
