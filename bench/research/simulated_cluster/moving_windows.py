"""Window aggregates over key groups on several nodes, which move in any of four ways.

Idea: the state machine (`Migrations`) decides, this module carries its instructions out on real
state. The end of a batch is the boundary: no row is in transit, so a modification reaches all nodes
at once. Folders and an empty arena, which need no state, are created on the target before, while
the source still accepts rows: that is not part of the pause, and reported separately.

    instant      the target opens the group empty; the source keeps its part, without rows, until
                 its windows have ended; both emit partial results
    smooth       the same, but windows that have rows stay with the source, which receives their
    rows
    disruptive   every byte of the group is copied from node to node
    handover     the log stays; the arena is renamed, or rebuilt from the log

Invariants:
1. Rows are those of an undisturbed run, consolidated where groups moved instantly
   (`test_oracle_rows_are_those_of_an_undisturbed_run`).
2. A node drops a group when it holds no window of it (`test_a_source_is_empty_in_the_end`).

Cost: a batch folds each row once, or once per node during smooth moves; a key group
without rows costs nothing until a window ends.

Limits: rows come in the order of time up to the watermark; none is late. If groups may move
instantly, windows must tumble and the consumer of the rows must consolidate them.

References: Madsen, Zhou, Su (2016), sections 4.5 and 5.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bench.research.migration import (
    Boundary,
    Copy,
    Done,
    HandOver,
    Instruction,
    Migrations,
    Move,
    SwitchRoutes,
    Way,
)
from bench.research.routes import Routes
from bench.research.simulated_cluster.group_state import FoldedInputs, GroupState
from bench.research.simulated_cluster.window_rows import in_windows, of_windows
from icestream.core.errors import DefinitionError
from icestream.core.times import MINUS_INFINITY, Micros
from icestream.kernels.fold import routes_of
from icestream.operators.folding.columns import InputColumn
from icestream.operators.folding.fold import EntryRun, EntryTable
from icestream.operators.protocol import Emitted
from icestream.plan.grid.lower import window_spec
from icestream.plan.nodes.queries import TIME, Plan
from icestream.plan.windows.grid import Windows
from icestream.state.files import Files
from icestream.state.keys import KeyCodec

#: a user function that maps rows to as many rows or fewer
Mapped = Callable[[pa.RecordBatch], pa.RecordBatch]

#: entries folded at a time
_ENTRIES = 1 << 16


@dataclass(frozen=True, slots=True)
class Moved:
    """Measurements of a move of a key group."""

    group: int
    way: Way
    #: wall-clock seconds before the modification, while the target is prepared and rows are
    #: accepted
    before: float
    #: seconds in which no node would have accepted rows of the group: wall clock, and processor
    #: time
    pause: float
    processor: float
    #: bytes that were copied
    bytes: int


class MovingWindows:
    """One component: window aggregates of a plan on several nodes."""

    def __init__(
        self,
        plan: Plan,
        places: Sequence[int],
        folder: str,
        files: Files,
        *,
        quota: int = 256 << 20,
        consolidated: bool = False,
        one_disk: bool = True,
        mapped: Mapped | None = None,
    ) -> None:
        """Start empty.

        Args:
            plan: windows on panes; its key groups are what moves.
            places: the node of each key group.
            folder: parent of the nodes' folders.
            files: how logs are written.
            quota: bytes that a key group may hold.
            consolidated: whether the consumer of the rows merges partial results.
            one_disk: whether arenas can be renamed from node to node.
            mapped: function that nodes apply to rows first, one key group at a time.
        """
        self._spec = window_spec(plan)
        self._windows = tuple(each for each in self._spec.windows if isinstance(each, Windows))
        if consolidated and not (len(self._windows) == 1 and self._windows[0].tumbles):
            msg = "partial results can be consolidated only for panes: one kind of tumbling window"
            raise DefinitionError(msg)
        if len(places) != plan.key_groups:
            msg = f"{plan.key_groups} key groups need as many places; got {len(places)}"
            raise DefinitionError(msg)
        self.plan = plan
        self.watermark: Micros = MINUS_INFINITY
        #: seconds of processor time by node and by key group in the last batch
        self.busy: dict[int, float] = {}
        self.load = np.zeros(plan.key_groups)
        self._consolidated = consolidated
        self._mapped = mapped
        #: whether arenas can be renamed from node to node
        self.one_disk = one_disk
        self._folder = folder
        self._files = files
        self._quota = quota
        self._codec = KeyCodec(plan.group_keys)
        self._tables: dict[bool, EntryTable] = {}
        self._held: dict[tuple[int, int], GroupState] = {}
        #: folders prepared for key groups that move with their state
        self._rooms: dict[int, GroupState] = {}
        self._opened = 0
        self._longest = max(each.range for each in self._windows)
        self._migrations = Migrations(Routes.of(places), self._longest)
        self._reached: Micros = MINUS_INFINITY

    @property
    def places(self) -> tuple[int, ...]:
        """Return the node of each key group for rows to come."""
        return tuple(self._migrations.routes.newest(group) for group in range(self.plan.key_groups))

    @property
    def moving(self) -> int:
        """Return the number of moves in progress."""
        return len(self._migrations.moving)

    def held(self, group: int, node: int) -> GroupState | None:
        """Return the state of a key group on a node, if any."""
        return self._held.get((group, node))

    # -- rows ------------------------------------------------------------------------------

    def feed(
        self, rows: pa.RecordBatch | None, watermark: Micros, *, partial: bool = False
    ) -> list[Emitted]:
        """Process a batch and return the rows of windows that close.

        Args:
            rows: columns `time` (microseconds), `k0` and so on, and inputs; or partial results.
            watermark: no row before it will come.
            partial: whether rows are partial results already.
        """
        self.busy = {}
        self.load[:] = 0.0
        by_place = self._by_place(rows) if rows is not None and rows.num_rows else {}
        for place in by_place:
            self._hold(place)
        found: list[Emitted] = []
        ending = any(_ends(each, self.watermark, watermark) for each in self._windows)
        for place in sorted(self._held if ending else by_place):
            began = time.process_time()
            inputs = (
                FoldedInputs(self._folded(by_place[place], partial)) if place in by_place else None
            )
            emitted = self._held[place].run(inputs or FoldedInputs(), watermark)
            took = time.process_time() - began
            group, node = place
            self.load[group] += took
            self.busy[node] = self.busy.get(node, 0.0) + took
            found += self._owned(place, emitted)
        self.watermark = watermark
        for node in {node for _, node in self._held}:
            self._carry_out(self._migrations.on_completed(node, watermark), [])
        return found

    def _by_place(self, rows: pa.RecordBatch) -> dict[tuple[int, int], pa.RecordBatch]:
        """Return the rows of each key group for each node."""
        id_high, _ = self._codec.identify(self._keys(rows))
        groups, many = np.empty(len(id_high), dtype=np.int64), self.plan.key_groups
        routes_of(id_high, many, np.arange(many), groups, np.zeros(many, dtype=np.int64))
        order = np.argsort(groups, kind="stable")
        ordered = rows.take(pa.array(order))
        times = ordered.column(TIME).to_numpy()
        self._reached = max(self._reached, int(times.max()))
        bounds = np.searchsorted(groups[order], np.arange(many + 1))
        found = {}
        for group in np.unique(groups).tolist():
            first, last = int(bounds[group]), int(bounds[group + 1])
            mine, when = ordered.slice(first, last - first), times[first:last]
            entries = self._migrations.routes.entries[group]
            wanted: dict[int, npt.NDArray[np.bool_]] = {}
            for number, entry in enumerate(entries):
                until = entries[number + 1].first if number + 1 < len(entries) else None
                asked = in_windows(self._windows, when, entry.first, until)
                wanted[entry.node] = wanted.get(entry.node, False) | asked
            for node, asked in wanted.items():
                if asked.all():
                    found[group, node] = mine
                elif asked.any():
                    found[group, node] = mine.filter(pa.array(asked))
        return found

    def _keys(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        columns = [rows.column(f"k{place}") for place in range(len(self.plan.keys))]
        return pa.RecordBatch.from_arrays(columns, schema=self.plan.group_keys)

    def _folded(self, rows: pa.RecordBatch, partial: bool) -> list[EntryRun]:
        if self._mapped is not None and not partial:
            rows = self._mapped(rows)
        if partial not in self._tables:
            self._tables[partial] = EntryTable(
                self._spec.layout, self._codec, _ENTRIES, partial=partial
            )
        table = self._tables[partial]
        panes = self._spec.grid.panes_of(rows.column(TIME).to_numpy())
        columns = {name: InputColumn(rows.column(name)) for name in rows.schema.names}
        return [*table.fold([self._keys(rows)], panes, columns), table.take()]

    def _owned(self, place: tuple[int, int], emitted: list[Emitted]) -> list[Emitted]:
        """Return the rows of windows that a node owns; all partial rows, if consolidated."""
        group, node = place
        routes = self._migrations.routes
        if self._consolidated or len(routes.entries[group]) == 1:
            return emitted
        return of_windows(emitted, lambda start: routes.node(group, start) == node)

    # -- moves -----------------------------------------------------------------------------

    def move(self, moves: Iterable[Move]) -> list[Moved]:
        """Move key groups at the end of a batch; those that cannot move yet stay."""
        wanted = list({each.group: each for each in moves}.values())
        if not self._consolidated and any(each.way is Way.INSTANT for each in wanted):
            msg = (
                "key groups can move instantly only if their partial results are consolidated; "
                "move them smoothly, or hand them over"
            )
            raise DefinitionError(msg)
        moved: list[Moved] = []
        at = Boundary(self.watermark, self._reached)
        going = [each for each in wanted if self._migrations.refused(each, at) is None]
        before = {each.group: self._make_room(each) for each in going}
        began = time.perf_counter(), time.process_time()
        self._carry_out(self._migrations.modify(going, at), moved)
        # nothing is in transit between two batches: the modification has reached every node
        number = self._migrations.routes.version - 1
        pause = (time.perf_counter() - began[0]) / max(1, len(going))
        processor = (time.process_time() - began[1]) / max(1, len(going))
        moved += [
            Moved(each.group, each.way, 0.0, pause, processor, 0)
            for each in going
            if each.way in (Way.INSTANT, Way.SMOOTH)
        ]
        for node in {each.source for each in self._migrations.moving}:
            self._carry_out(self._migrations.on_modified(node, number), moved)
        return [replace(each, before=before[each.group]) for each in moved]

    def _make_room(self, each: Move) -> float:
        """Prepare the target node for a key group; return the seconds it takes."""
        began = time.perf_counter()
        place = (each.group, each.target)
        if each.way in (Way.INSTANT, Way.SMOOTH):
            self._hold(place).open()
        else:
            source = self._hold((each.group, self._migrations.routes.newest(each.group)))
            with_log = each.way is Way.DISRUPTIVE
            self._rooms[each.group] = source.room_in(self._fresh(*place), with_log=with_log)
        return time.perf_counter() - began

    def _carry_out(self, instructions: Iterable[Instruction], moved: list[Moved]) -> None:
        for each in instructions:
            if isinstance(each, Copy):
                self._carry(each, moved)
                self._carry_out(self._migrations.on_copied(each.group), moved)
            elif isinstance(each, HandOver):
                self._carry(each, moved)
            elif isinstance(each, Done) and each.way in (Way.INSTANT, Way.SMOOTH):
                self._drained(each.group, each.source)
            else:
                # nothing to do between batches: no rows are put aside, resumed or rerouted
                assert not isinstance(each, SwitchRoutes) or each.routes is self._migrations.routes

    def _drained(self, group: int, node: int) -> None:
        """Drop what a node holds of a group, unless the group has returned meanwhile."""
        owners = self._migrations.routes.owners(group, self.watermark - self._longest + 1)
        leaving = any(
            (each.group, each.source) == (group, node) for each in self._migrations.moving
        )
        if node not in owners and not leaving and (group, node) in self._held:
            self._held.pop((group, node)).drop()

    def _carry(self, each: Copy | HandOver, moved: list[Moved]) -> None:
        """Move a group with its state from one node to another."""
        source, target = self._held.pop((each.group, each.source)), self._rooms.pop(each.group)
        began = time.perf_counter(), time.process_time()
        if isinstance(each, Copy):
            source.copy_to(target)
        else:
            source.hand_over_to(target, one_disk=self.one_disk)
        pause, processor = time.perf_counter() - began[0], time.process_time() - began[1]
        self._held[each.group, each.target] = target
        if isinstance(each, Copy):
            moved.append(Moved(each.group, Way.DISRUPTIVE, 0.0, pause, processor, target.bytes))
            source.drop()
        else:
            moved.append(Moved(each.group, Way.HANDOVER, 0.0, pause, processor, 0))
            source.leave()

    def _hold(self, place: tuple[int, int]) -> GroupState:
        if place not in self._held:
            self._held[place] = GroupState(
                self.plan, place[0], self._files, self._fresh(*place), self._quota
            )
        return self._held[place]

    def _fresh(self, group: int, node: int) -> str:
        """Return a folder of a node that no group had before."""
        self._opened += 1
        return os.path.join(self._folder, f"node-{node}", f"group-{group}-{self._opened}")

    def close(self) -> None:
        """Remove everything."""
        for state in self._held.values():
            state.drop()
        self._held.clear()


def _ends(windows: Windows, before: Micros, watermark: Micros) -> bool:
    """Return whether a window ends after one watermark and by another."""
    first = windows.offset + windows.range
    return (watermark - first) // windows.slide > (before - first) // windows.slide
