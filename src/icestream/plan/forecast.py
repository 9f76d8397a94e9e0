"""Estimates what a query will use before it runs: memory, disk and traffic of each operator.

Idea: a plan determines what is stored, a load how much arrives; the formulas that choose between
plans turn both into bytes. Windows on a grid use those of `grid/cost`, joins those of `joins/cost`,
update windows those of the cost of a window. Other state is counted in rows: events that are alive,
keys that wait.

Invariants:
1. Windows on a grid use what `cost` computes (`test_windows_take_what_the_cost_model_says`).
2. No forecast falls when the rate or the number of keys grows
   (`test_more_load_never_takes_less`).
3. An update window processes between its own tuples and those of all windows that overlap it
   (`test_windows_that_are_updates_cost_what_their_bounds_say`).

Limits: keys are assumed to be uniform; compression, processor time and the state of user code are
not estimated. Events that live forever are counted for a day.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from icestream.core.errors import DefinitionError
from icestream.core.times import DAY, Micros
from icestream.core.units import format_interval
from icestream.operators.dataflow.steps import JoinMany, Sole, Stateful
from icestream.plan.computation import Computation
from icestream.plan.events.dataflow import Dataflow
from icestream.plan.events.pane_windows import PaneWindows
from icestream.plan.grid import cost, lower
from icestream.plan.grid.parts import PlanPart, parts_of
from icestream.plan.grid.space_formulas import BLOCK_BYTES, TrafficEstimate, traffic
from icestream.plan.joins.order import (
    HEAD_BYTES,
    StreamStatistics,
    results_of,
    row_bytes,
    state_of,
)
from icestream.plan.nodes.queries import Plan
from icestream.plan.nodes.updates import Updates
from icestream.plan.windows.frame import Frame
from icestream.plan.windows.grid import Cumulative, Windows
from icestream.plan.windows.session import Session
from icestream.state.queue.windows.spec import UpdateWindows

#: how long events that live forever are counted
#: bytes of a group besides its row: its directory entry
GROUP_BYTES = 24
#: bytes of a waiting key besides its value: id, times, queue position
WAITING_BYTES = 96


@dataclass(frozen=True)
class StreamLoad:
    """The expected load of a stream."""

    #: events per second of event time
    rate: float
    #: groups in the longest window
    keys: float
    #: groups in a pane; None: all of them, or the events of a pane if these are fewer
    pane_keys: float | None = None
    #: bytes of a stored event; None: computed from its columns
    event_bytes: float | None = None

    def __post_init__(self) -> None:
        """Refuse impossible loads."""
        if self.rate <= 0 or self.keys < 1:
            msg = (
                "the events per second must be above 0, and the keys at least 1; got "
                f"{self.rate} and {self.keys}"
            )
            raise DefinitionError(msg)

    def in_pane(self, pane: Micros) -> float:
        if self.pane_keys is not None:
            return min(self.pane_keys, self.keys)
        return min(self.keys, max(1.0, self.rate * pane / cost.SECOND))


@dataclass(frozen=True)
class Forecast:
    """The expected cost of an operator."""

    operator: str
    #: bytes with all of its groups in memory
    memory: float
    #: bytes on disk
    disk: float
    #: block requests and bytes, per second of event time
    traffic: TrafficEstimate
    #: what was assumed or chosen
    note: str
    #: minimum and maximum tuples processed for one window of a key, for update windows
    per_window: tuple[float, float] | None = None


def forecast(plan: Computation, load: StreamLoad) -> list[Forecast]:
    """Return the forecast cost of each operator of a plan."""
    if isinstance(plan, Plan):
        return [_of_part(part, load, plan.store) for part in parts_of(plan)]
    if isinstance(plan, Dataflow):
        return list(_of_dataflow(plan, load))
    return [_of_updates(plan, load)]


def _of_part(part: PlanPart, load: StreamLoad, store: str) -> Forecast:
    plan = part.plan
    windows = plan.views[0].windows
    event = load.event_bytes or row_bytes(plan.batch_schema)
    key = load.keys * (row_bytes(plan.keys) + GROUP_BYTES)
    if part.folded:
        return _of_panes(plan, load, store, event, key)
    if isinstance(windows, Frame):
        return _of_frames(plan, load, event, key)
    if isinstance(windows, Session):
        row = HEAD_BYTES + 16 * len(plan.views[0].aggregates) + row_bytes(plan.keys)
        return Forecast(
            f"sessions with a gap of {windows.text}",
            load.keys * row / BLOCK_BYTES * 64,
            load.keys * row,
            traffic(load.rate, row),
            "as many sessions open as there are keys",
        )
    assert isinstance(windows, Windows | Cumulative)
    kept = load.rate * windows.range / cost.SECOND * event * 4 / 3
    return Forecast(
        f"objects over {format_interval(windows.range)}",
        key,
        kept,
        traffic(load.rate, event, 3),
        "every event kept, and a third more for pairs of panes; sketches take less",
    )


def _of_panes(plan: Plan, load: StreamLoad, store: str, event: float, key: float) -> Forecast:
    spec = lower.window_spec(plan)
    pane, longest = spec.grid.pane, max(each.range for each in spec.windows)
    points = [(pane, load.in_pane(pane)), (longest, load.keys)]
    statistics = cost.WindowStatistics(
        rate=load.rate,
        tuple_bytes=event,
        keys=cost.KeyCounts(tuple(points[pane == longest :])),
        entry_bytes=8 * spec.layout.typical.entry_width,
        group_bytes=8 * max(each.typical.group_width for each in spec.layouts),
        invertible=spec.layout.suffix_words == 0,
    )
    compared = cost.estimate([view.windows for view in spec.views], statistics)
    chosen = compared.choose(None if store == lower.AUTO else store)
    estimate = compared[chosen.plan]
    ranges = ", ".join(dict.fromkeys(format_interval(each.range) for each in spec.windows))
    space = estimate.space
    return Forecast(
        f"windows of {ranges}", space.memory + key, space.log, estimate.traffic, chosen.reason
    )


def _of_frames(plan: Plan, load: StreamLoad, event: float, key: float) -> Forecast:
    reaches = [_reach(each.windows, load) for each in plan.views]
    kept = max(events for events, _ in reaches)
    row = load.keys * 16 * sum(len(view.aggregates) for view in plan.views)
    return Forecast(
        f"a row per event over {', '.join(name for _, name in reaches)}",
        key + row + kept * event / BLOCK_BYTES * 32,
        kept * event,
        traffic(load.rate, event, 2 + len(reaches)),
        "events are written as they come, written in order, and read when they leave each window",
    )


def _reach(frame: object, load: StreamLoad) -> tuple[float, str]:
    """Return how many events a frame reaches back, and its reach as text."""
    assert isinstance(frame, Frame)
    if frame.range is not None:
        return load.rate * frame.range / cost.SECOND, format_interval(frame.range)
    rows = frame.rows or 0
    return rows * (load.keys if frame.partition == "key" else 1.0), f"{rows} rows"


def _of_dataflow(plan: Dataflow, load: StreamLoad) -> Iterator[Forecast]:
    alive = min(plan.reach, DAY) or cost.SECOND
    assumed = f"events alive for {format_interval(alive)}"
    assumed += " of those that live longer" if plan.reach > DAY else ""
    rows = load.rate * alive / cost.SECOND
    for number, steps in enumerate(plan.components):
        for step in steps:
            if isinstance(step, Stateful):
                payloads = [steps[each].payload for each in step.inputs]
                yield _of_rows(f"component {number}: {step.text}", payloads, rows, load, assumed)
            elif isinstance(step, Sole) and isinstance(step.spec, PaneWindows):
                for part in parts_of(step.spec.plan):
                    found = _of_part(part, load, step.spec.plan.store)
                    yield replace(found, operator=f"component {number}: {found.operator}")
            elif isinstance(step, JoinMany):
                yield _of_join(
                    number, step, [steps[each].payload for each in step.inputs], rows, load
                )


def _of_rows(
    name: str, payloads: list[pa.Schema], rows: float, load: StreamLoad, note: str
) -> Forecast:
    each = [row_bytes(payload) + HEAD_BYTES for payload in payloads]
    kept = rows * sum(each) / len(each)
    return Forecast(
        name, kept + load.keys * GROUP_BYTES, kept, traffic(load.rate, sum(each) / len(each)), note
    )


def _of_join(
    number: int, step: JoinMany, payloads: list[pa.Schema], rows: float, load: StreamLoad
) -> Forecast:
    part = rows / len(payloads)
    streams = [
        StreamStatistics(part, min(load.keys, part), row_bytes(payload)) for payload in payloads
    ]
    kept = state_of(streams)
    return Forecast(
        f"component {number}: join of {len(step.inputs)}",
        kept + load.keys * GROUP_BYTES,
        kept,
        traffic(load.rate, kept / rows),
        f"{results_of(streams):,.0f} results while {rows:,.0f} rows are alive",
    )


def _of_updates(plan: Updates, load: StreamLoad) -> Forecast:
    row = load.event_bytes or row_bytes(plan.columns)
    if plan.windowed is not None:
        return _of_update_windows(plan.windowed.windows, row, load)
    newest = plan.latest is not None
    keys = load.keys if newest else 0.0
    return Forecast(
        "the newest of each key" if newest else "every event",
        keys * (row + WAITING_BYTES),
        keys * row,
        traffic(load.rate, row, 1),
        "all keys wait, and all must fit in memory" if newest else "nothing is kept",
    )


def _of_update_windows(windows: UpdateWindows, row: float, load: StreamLoad) -> Forecast:
    kept = load.rate * windows.most_tuples / cost.SECOND * row
    least, most = windows.cost_bounds(load.rate / load.keys / cost.SECOND)
    size, slide = (format_interval(each) for each in (windows.size, windows.slide))
    return Forecast(
        f"{windows.semantics} windows of {size} every {slide}",
        load.keys * WAITING_BYTES + kept,
        kept,
        traffic(load.rate, row, 1),
        f"a window of a key takes the work of {least:,.0f} to {most:,.0f} tuples, the more of its "
        f"{windows.overlap} that are open at once are computed",
        (least, most),
    )
