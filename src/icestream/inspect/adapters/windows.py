"""State of windows of every kind: the rows they would emit if they closed now.

Idea: the stored state of windows (panes, sessions, trees of object aggregates, tuples) is hard to
read. So the operator is restored in a scratch folder and its windows are closed one after the
other, as if the watermark had reached their end: the rows are the running aggregates of the open
windows. Windows that move with events show the current window of each group. Panes and partial
aggregates of sessions are read if requested (`panes`, `sessions`).

Invariants:
1. The rows are those that a query emits if it ends here
   (`test_parity_open_windows_beside_a_query_that_ends_here`).
2. At most `WINDOWS` windows of a view are closed, those that end first
   (`test_bounded_sliding_windows_show_the_first_that_end`).

Limits: if the log stores raw events instead of panes, windows are closed only once: of sliding
windows, the first that ends is shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icestream.core.arrays import Ints
from icestream.core.times import MINUS_INFINITY, Micros
from icestream.core.units import format_interval
from icestream.inspect.access.adapter_protocol import ReadRequest, StateRows, StateTable
from icestream.inspect.access.scratch_shard import ScratchShard
from icestream.inspect.adapters.window_parts import (
    ObjectAggregateState,
    PaneState,
    SessionState,
    obstacle,
)
from icestream.operators.dataflow.pane_step import moved
from icestream.operators.folding.exact_rows import ExactRows
from icestream.operators.frames.operator import FrameOperator
from icestream.operators.grid.composed_windows import Tiled
from icestream.operators.grid.operator import PANES
from icestream.operators.session.spec import SessionSpec
from icestream.plan.grid import lower
from icestream.plan.grid.parts import parts_of
from icestream.plan.nodes.queries import Plan, View
from icestream.plan.windows.frame import Frame
from icestream.plan.windows.grid import Cumulative, Windows
from icestream.plan.windows.session import Session
from icestream.runtime.work.windows.raw_event_reader import RawEventReader
from icestream.state.versions.commits import LATEST_END, Commit

#: most windows of a view that are shown
WINDOWS = 16
#: more than the reach of any dataflow
_FAR: Micros = 10_000 * 86_400_000_000


class WindowState:
    """The open windows of a plan."""

    def __init__(
        self,
        plan: Plan,
        commit: Commit,
        operator: str | None = None,
        shards: range | None = None,
        delay: Micros = 0,
    ) -> None:
        """Read the views from the plan, and the decisions of the version.

        The only view may be an operator of a dataflow, in some of its shards, of events that live
        later than they are meant to.
        """
        self._plan = plan = _showing_all(plan)
        self._store = str(commit.decisions.get("store", PANES))
        self._switched = tuple(commit.decisions.get("switched", ()))
        self._delay = delay
        #: how much later than the latest event windows of a dataflow may have rows of others
        self._ahead = 0 if operator is None else _FAR
        shards = range(len(commit.bases)) if shards is None else shards
        self.tables: Sequence[StateTable] = [
            StateTable(
                operator or f"view {number}",
                _kind(view),
                ", ".join(each.text for each in view.aggregates),
                pa.schema([plan.keys.field(place) for place in view.keys]),
                plan.results(view),
                shards,
            )
            for number, view in enumerate(plan.views)
        ]
        in_panes = self._store == PANES and not self._switched
        self._windows = WINDOWS if in_panes or _all_tumble(plan) else 1
        self._kept = kept(plan, commit) if operator is None else None
        self.notes: Sequence[str] = (*self._hidden(), *self._left_out())
        if self._kept is not None:
            self.tables = (*self.tables, self._kept.table)
            name = self._kept.table.name
            self.notes += (f"the parts that windows consist of are read as {name!r}, see --kept",)

    def _hidden(self) -> Iterator[str]:
        """Yield a note for each view that is not shown."""
        if len(parts_of(self._plan)) > 1:
            for number, view in enumerate(self._plan.views):
                if isinstance(view.windows, Frame):
                    yield (
                        f"view {number} moves with events, alongside other kinds of windows: "
                        "its state cannot be read yet"
                    )

    def _left_out(self) -> Iterator[str]:
        yield from (
            f"view {number} has up to {view.windows.range // view.windows.slide} windows open at "
            f"once (they slide by {format_interval(view.windows.slide)}): only the first "
            f"{self._windows} that end are shown"
            for number, view in enumerate(self._plan.views)
            if isinstance(view.windows, Windows | Cumulative)
            and view.windows.range // view.windows.slide > self._windows
        )

    def read(self, source: ScratchShard, asked: ReadRequest) -> Iterator[StateRows]:
        """Restore a shard, close its windows and yield their rows, or yield its stored parts."""
        commit, space = source.commit, source.space
        if self._kept is not None and self._kept.table in asked.tables:
            yield from self._kept.read(source, asked)
        if not asked.tables & set(self.tables[: len(self._plan.views)]):
            return
        plan = self._plan
        tiled = tuple(map(Tiled.from_json, commit.decisions.get("composition") or ()))
        events = self._events(source)
        lowered = lower.lowered(plan, self._store, tiled, events, switched=self._switched)
        operator: Any = lowered.operator(space)
        operator.restore(source.history)
        latest = max((each for each in commit.seen if each is not None), default=None)
        if latest is None:
            return
        seen: dict[int, set[Any]] = {}
        parts = len(parts_of(plan))
        end = plan.settled_by(latest + self._ahead)
        end = max(end, commit.decisions.get(LATEST_END, latest))
        for watermark in self._stages(source.history[-1].watermark, end):
            operator.on_batch([NoInputs()] * parts if parts > 1 else NoInputs())
            for view, rows in lowered.emitted(operator.on_watermark(watermark)):
                if not isinstance(plan.views[view].windows, Frame):
                    first = _first(rows, seen.setdefault(view, set()), self._windows)
                    yield from self._chosen(view, source.shard, first, asked)
            if all(len(seen.get(view, ())) for view in self._grids):
                break
        if isinstance(operator, FrameOperator):
            for view, rows in lowered.emitted(operator.standing()):
                yield from self._chosen(view, source.shard, rows, asked)

    def _events(self, source: ScratchShard) -> tuple[RawEventReader, int] | None:
        """Return the raw events that fields without an inverse are folded from, if any."""
        folded = lower.on_panes(self._plan)
        if self._store == PANES or folded is None or lower.takes_back(folded):
            return None
        space, following = source.space, source.commit.version + 1
        routes = source.commit.routes
        kept = RawEventReader(folded, routes, space.files, space.root, following, (), source.shard)
        return kept, following

    @property
    def _grids(self) -> list[int]:
        """Return the views whose windows are on a grid."""
        views = enumerate(self._plan.views)
        return [n for n, view in views if isinstance(view.windows, Windows | Cumulative)]

    def _stages(self, watermark: Micros, end: Micros) -> Iterator[Micros]:
        """Yield the watermarks at which windows are closed, until each view has shown some."""
        kinds: list[Any] = [self._plan.views[view].windows for view in self._grids]
        if len(kinds) < len(self._plan.views) or watermark == MINUS_INFINITY:
            yield end
            return
        reach = max(self._windows * each.slide for each in kinds)
        at = watermark
        while at < end:
            at = min(at + reach, end)
            reach *= 2
            yield at

    def _chosen(
        self, view: int, shard: int, rows: pa.RecordBatch, asked: ReadRequest
    ) -> Iterator[StateRows]:
        table = self.tables[view]
        if table not in asked.tables:
            return
        if self._delay:
            rows = moved(rows, -self._delay)
        if asked.key is not None:
            wanted = asked.key_row(table.keys)
            for name in table.keys.names:
                value = wanted.column(name)[0]
                column = rows.column(name)
                same = pc.equal(column, value) if value.is_valid else pc.is_null(column)
                rows = rows.filter(pc.fill_null(same, False))
        if rows.num_rows:
            yield StateRows(table, shard, rows)


def kept(plan: Plan, commit: Commit) -> PaneState | SessionState | ObjectAggregateState | None:
    """Return the adapter of the parts that windows consist of, if their state can be read."""
    if obstacle(plan, commit) is None:
        return PaneState(plan, commit)
    if (sole := lower.sole_part(plan)) is None:
        return None
    part, spec = sole
    if isinstance(spec, SessionSpec):
        return SessionState(part, spec, commit)
    return ObjectAggregateState(part, spec, commit)


class NoInputs:
    """An empty batch."""

    def entries(self) -> Iterator[ExactRows]:
        return iter(())

    def leaving(self, family: int) -> Iterator[ExactRows]:
        del family
        return iter(())

    def groups(self) -> Iterator[pa.Table]:
        return iter(())

    def tuples(self) -> Iterator[pa.RecordBatch]:
        return iter(())

    def earliest(self) -> Ints:
        """Return nothing."""
        return np.empty(0, dtype=np.int64)

    def states(self) -> Iterator[pa.RecordBatch]:
        return iter(())


def _all_tumble(plan: Plan) -> bool:
    kinds = [view.windows for view in plan.views]
    return all(isinstance(each, Windows) and each.tumbles for each in kinds)


def _showing_all(plan: Plan) -> Plan:
    """Return a plan whose views show all groups, if that does not change what they share."""
    kinds = {(view.windows, view.mode) for view in plan.views}
    if len({windows for windows, _ in kinds}) < len(kinds):
        return plan
    return replace(plan, views=tuple(replace(view, mode="append") for view in plan.views))


def _first(rows: pa.RecordBatch, seen: set[Any], most: int) -> pa.RecordBatch:
    """Return the rows of the first windows, given those that have been seen."""
    if not pa.types.is_struct(rows.schema.field(0).type) or rows.schema.field(0).name != "window":
        seen.add(None)
        return rows
    ends = rows.column(0).field(1).cast(pa.int64()).to_numpy()
    for end in np.unique(ends).tolist():
        if len(seen) < most:
            seen.add(end)
    chosen = np.isin(ends, list(seen))
    return rows if chosen.all() else rows.filter(pa.array(chosen))


def _kind(view: View) -> str:
    if isinstance(view.windows, Frame):
        return "windows as they stand"
    return "open sessions" if isinstance(view.windows, Session) else "open windows"
