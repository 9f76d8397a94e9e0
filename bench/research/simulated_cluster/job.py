"""Windows as one component or as two: computing panes, and consolidating them into windows.

Idea: the same windows in two shapes. *Combined*, rows go straight into the windows of their key
group. *Split*, a component of its own computes a partial result per key and pane, which is sent to
the windows when the pane ends; its key groups can then move without their state. Windows accept
rows and partial results alike, so a split only puts the computing of panes in front of windows that
stay where they are. Combining removes it again: the open panes are sent at once and windows move to
where their rows arrive (disruptive, handover), or new windows fill next to the old ones (smooth).

Invariants:
1. Rows are the same in both shapes, and stay the same when the shape changes
   (`test_oracle_both_shapes_emit_the_same_rows`, `test_oracle_split_and_combine_change_no_row`).
2. Only smooth combining takes longer than a batch: as long as the longest window
   (`test_smooth_combining_takes_the_longest_window`).

Cost: split, each (key, pane) is serialised, sent and folded once more.

References: Madsen, Zhou, Su (2016), sections 5.1 and 7 (the *simple job*).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bench.research.migration import Move, Way
from bench.research.routes import ALWAYS
from bench.research.simulated_cluster.moving_windows import Mapped, Moved, MovingWindows
from bench.research.simulated_cluster.window_rows import in_windows, of_windows
from bench.research.split_combine import ComponentShape
from icestream.core.times import INFINITY, Micros
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.folding.fields import Field
from icestream.operators.folding.fold import partial_name
from icestream.operators.protocol import Emitted
from icestream.plan.grid.lower import window_spec
from icestream.plan.nodes.queries import TIME, Plan, Source, View
from icestream.plan.windows.grid import Windows
from icestream.state.files import Files
from icestream.state.log.ipc import read_batch, write_table

_LOW = 0xFFFF_FFFF


@dataclass(frozen=True)
class WindowJob:
    """Count, sum and greatest value by key over some kinds of windows."""

    windows: tuple[Windows, ...]
    #: length of the panes computed when the job is split
    pane: Micros
    key_groups: int

    @cached_property
    def combined(self) -> Plan:
        """Return the plan of the windows."""
        return self._plan(self.windows)

    @cached_property
    def panes(self) -> Plan:
        """Return the plan of the panes."""
        return self._plan((Windows(self.pane, self.pane),))

    @property
    def longest(self) -> Micros:
        """Return the length of the longest window."""
        return max(each.range for each in self.windows)

    def _plan(self, windows: Sequence[Windows]) -> Plan:
        aggregates = (
            Aggregate("count", None, "n"),
            Aggregate("count", "x0", "valid"),
            Aggregate("sum", "x0", "total"),
            Aggregate("max", "x0", "top"),
        )
        return Plan(
            sources=(Source("rows", 0),),
            keys=pa.schema([("key", pa.int64())]),
            inputs=pa.schema([("x0", pa.int64())]),
            expressions=("value",),
            views=tuple(View(each, aggregates, ((0,),), (0,)) for each in windows),
            time=pa.timestamp("us"),
            key_groups=self.key_groups,
            store="panes",
        )


class RunningJob:
    """A job on nodes, in one shape or the other."""

    def __init__(
        self,
        job: WindowJob,
        shape: ComponentShape,
        folder: str,
        files: Files,
        *,
        places: Sequence[int],
        homes: Sequence[int],
        one_disk: bool = True,
        mapped: Mapped | None = None,
    ) -> None:
        """Start empty.

        Args:
            job: what is computed.
            shape: one component or two.
            folder: parent of the nodes' folders.
            files: how logs are written.
            places: the node that receives each key group's rows.
            homes: the node that consolidates each key group while the job is split.
            one_disk: whether nodes share one disk.
            mapped: function that nodes apply to rows first.
        """
        self.shape = shape
        #: bytes of partial results that were sent
        self.sent = 0
        self._job = job
        self._folder = folder
        self._files = files
        self._one_disk = one_disk
        self._mapped = mapped
        self._homes = tuple(homes)
        self._made = 0
        self.computing = self._panes(places) if shape is ComponentShape.SPLIT else None
        self.windows = self._windows(homes if shape is ComponentShape.SPLIT else places)
        #: windows that replace those of a split job, and where they begin
        self._next: tuple[MovingWindows, Micros] | None = None
        self._reached: Micros = 0
        self.watermark: Micros = 0

    @property
    def busy(self) -> dict[int, float]:
        """Return the seconds of processor time of each node in the last batch."""
        found: dict[int, float] = {}
        for part in self._parts():
            for node, seconds in part.busy.items():
                found[node] = found.get(node, 0.0) + seconds
        return found

    @property
    def combining(self) -> bool:
        """Return whether new windows are filling next to those of a split job."""
        return self._next is not None

    def feed(self, rows: pa.RecordBatch, watermark: Micros) -> list[Emitted]:
        """Process a batch and return the rows of windows that close."""
        if rows.num_rows:
            self._reached = max(self._reached, pc.max(rows.column(TIME)).as_py())
        self.watermark = watermark
        if self._next is None:
            return self._through(rows, watermark)
        grown, first = self._next
        times = rows.column(TIME).to_numpy()
        kinds = self._job.windows
        before = pa.array(in_windows(kinds, times, ALWAYS, first))
        after = pa.array(in_windows(kinds, times, first, None))
        found = [
            *of_windows(self._through(rows.filter(before), watermark), lambda start: start < first),
            *of_windows(grown.feed(rows.filter(after), watermark), lambda start: start >= first),
        ]
        if watermark >= first + self._job.longest:
            self._taken_over(grown)
        return found

    def move(self, moves: Iterable[Move]) -> list[Moved]:
        """Move key groups of the component that receives rows."""
        return self._first.move(moves)

    @property
    def places(self) -> tuple[int, ...]:
        """Return the node that receives the rows of each key group."""
        return self._first.places

    @property
    def load(self) -> npt.NDArray[np.float64]:
        """Return the seconds of each key group on the node that receives its rows."""
        return self._first.load

    def split(self) -> float:
        """Compute panes separately from now on; return the seconds of the change."""
        began = time.perf_counter()
        self._homes = self.windows.places
        self.computing = self._panes(self._homes)
        self.shape = ComponentShape.SPLIT
        return time.perf_counter() - began

    def combine(self, way: Way) -> list[Moved]:
        """Send rows straight to windows, on the nodes that compute the panes now."""
        assert self.computing is not None
        places = self.computing.places
        if way is Way.SMOOTH:
            self._next = (self._windows(places), self._reached + 1)
            return []
        # the open panes end here, and continue in the windows
        rest = self.computing.feed(None, INFINITY)
        self._consolidated(rest, self.watermark)
        self.computing.close()
        self.computing, self.shape = None, ComponentShape.COMBINED
        return self.windows.move(Move(group, node, way) for group, node in enumerate(places))

    def close(self) -> None:
        """Remove everything."""
        for part in self._parts():
            part.close()

    @property
    def _first(self) -> MovingWindows:
        return self.computing if self.computing is not None else self.windows

    def _parts(self) -> list[MovingWindows]:
        found = [self.windows] if self.computing is None else [self.computing, self.windows]
        return [*found, self._next[0]] if self._next is not None else found

    def _through(self, rows: pa.RecordBatch, watermark: Micros) -> list[Emitted]:
        if self.computing is None:
            return self.windows.feed(rows, watermark)
        return self._consolidated(self.computing.feed(rows, watermark), watermark)

    def _consolidated(self, partials: list[Emitted], watermark: Micros) -> list[Emitted]:
        """Send partial results to the windows."""
        payloads = [write_table(partial_results(self._job.panes, rows)) for _, rows in partials]
        self.sent += sum(each.size for each in payloads)
        batches = [read_batch(each) for each in payloads]
        joined = pa.concat_batches(batches) if batches else None
        return self.windows.feed(joined, watermark, partial=True)

    def _taken_over(self, grown: MovingWindows) -> None:
        assert self.computing is not None
        for part in (self.computing, self.windows):
            part.close()
        self.computing, self.windows, self._next = None, grown, None
        self.shape = ComponentShape.COMBINED

    def _panes(self, places: Sequence[int]) -> MovingWindows:
        return self._component(self._job.panes, places, consolidated=True)

    def _windows(self, places: Sequence[int]) -> MovingWindows:
        return self._component(self._job.combined, places, consolidated=False)

    def _component(self, plan: Plan, places: Sequence[int], *, consolidated: bool) -> MovingWindows:
        self._made += 1
        return MovingWindows(
            plan,
            places,
            os.path.join(self._folder, f"component-{self._made}"),
            self._files,
            consolidated=consolidated,
            one_disk=self._one_disk,
            mapped=self._mapped,
        )


def partial_results(plan: Plan, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows of panes as partial results: a column for each field they were folded from."""
    columns = {
        TIME: rows.column("window").field("start").cast(pa.int64()),
        "k0": rows.column("key"),
    }
    for each in window_spec(plan).layout.fields:
        columns |= _columns(each, rows)
    return pa.RecordBatch.from_pydict(columns)


def _columns(field: Field, rows: pa.RecordBatch) -> dict[str, pa.Array]:
    if field.kind == "sum_i128":
        total = rows.column("total").to_numpy()
        return {
            partial_name(field): pa.array(total & _LOW),
            partial_name(field, 1): pa.array(total >> 32),
        }
    name = {"rows": "n", "valid": "valid", "max": "top"}[field.kind]
    return {partial_name(field): rows.column(name)}
