"""Windows on a grid, and sessions, as a step of a dataflow.

Idea: the windows are a plan with one view, lowered like any other; the step gives its operator the
changes that arrive, and makes changes of its rows. Events that live later than they are meant to,
because a join had to wait for partners, are in windows that are later by as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import pyarrow as pa

from icestream.core.times import Micros
from icestream.core.units import format_interval
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.dataflow.pane_step import EntryReading, PaneStep, TupleReading
from icestream.operators.frames.event_frames import EVENT_FIELDS
from icestream.operators.grid.operator import PANES
from icestream.operators.grid.slice_log import SLICE_BYTES
from icestream.operators.lifetimes.aggregate import lifetime_aggregate
from icestream.operators.lifetimes.open_windows import InWindows, OpenWindows
from icestream.operators.lifetimes.window_copies import WINDOW
from icestream.operators.object_aggregates.functions import result_type
from icestream.operators.protocol import Shard
from icestream.plan.grid.lower import (
    Lowered,
    check,
    lowered,
    on_panes,
    tuple_keys,
    window_spec,
)
from icestream.plan.nodes.events import (
    Applied,
    Entered,
    Left,
    Mapped,
    Node,
    Paned,
    Scope,
    WindowRows,
)
from icestream.plan.nodes.queries import Plan, View
from icestream.plan.windows.frame import Frame
from icestream.plan.windows.grid import Cumulative, Windows
from icestream.plan.windows.session import Session


@dataclass(frozen=True)
class PaneWindows:
    """The windows of a component."""

    #: the windows, of the times at which events live
    plan: Plan
    #: columns of the changes that identify groups
    keys: tuple[str, ...]
    result: pa.Schema
    #: how much later than meant events live
    delay: Micros = 0
    #: the edges on which events arrive
    edges: tuple[int, ...] = ()

    @classmethod
    def of(cls, node: Paned) -> PaneWindows:
        """Return the windows of a node."""
        payload, keys = node.before.payload, node.keys
        names = (*node.shown, *keys[len(node.shown) :])
        fields = [payload.field(key).with_name(name) for key, name in zip(keys, names, strict=True)]
        read = dict.fromkeys(column for each in node.aggregates for column in each.columns)
        places, shown = tuple(range(len(keys))), tuple(range(len(node.shown)))
        windows = node.windows
        if not isinstance(windows, Session):
            windows = windows.later(node.delay)
        plan = Plan(
            sources=(),
            keys=pa.schema(fields),
            inputs=pa.schema([payload.field(name) for name in read]),
            expressions=tuple(read),
            views=(View(windows, node.aggregates, (places,), shown),),
            time=node.time,
            store=PANES,
        )
        check(plan)
        return cls(plan, keys, node.payload, node.delay)

    @cached_property
    def needs_order(self) -> bool:
        """Return whether words depend on the order of events of equal time."""
        return self._is_folded and window_spec(self.plan).layout.needs_order

    @property
    def received(self) -> pa.Schema:
        """Return the columns that arrive."""
        keys = [each.with_name(name) for each, name in zip(self.plan.keys, self.keys, strict=True)]
        return pa.schema([*(EVENT_FIELDS if self.needs_order else ()), *keys, *self.plan.inputs])

    @property
    def text(self) -> str:
        """Return the windows and aggregates, for readers and for checkpoints."""
        (view,) = self.plan.views
        kind, *lengths = view.windows.describe().values()
        later = f", delayed by {format_interval(self.delay)}" if self.delay else ""
        shown = ", ".join(f"{each.text} as {each.alias}" for each in view.aggregates)
        return f"panes of {kind} {', '.join(lengths)}{later}: {shown}"

    @property
    def lifetimes(self) -> tuple[str, ...]:
        return _lowered(self.plan).lifetimes

    @property
    def least_quota(self) -> int:
        return 16 * SLICE_BYTES

    @property
    def lends_buffers(self) -> bool:
        return False

    @property
    def _is_folded(self) -> bool:
        return on_panes(self.plan) is not None

    def opened(self, shard: Shard) -> PaneStep:
        """Return the step on the state of a shard."""
        plan = self.plan
        reading: EntryReading | TupleReading
        if self._is_folded:
            spec = window_spec(plan)
            reading = EntryReading(spec.layout, spec.grid, plan.group_keys, self.keys)
        else:
            reading = TupleReading(tuple_keys(plan), self.keys)
        windows = plan.views[0].windows
        assert not isinstance(windows, Frame)
        return PaneStep(
            _lowered(plan).operator(shard),
            shard,
            reading,
            self.edges,
            windows,
            self.result,
            self.delay,
        )


@lru_cache(maxsize=8)
def _lowered(plan: Plan) -> Lowered:
    return lowered(plan)


def paned(
    events: Node,
    windows: Windows | Cumulative | Session,
    time: pa.DataType,
    keys: Sequence[str],
    shown: Sequence[str],
    aggregates: Sequence[Aggregate],
) -> Paned:
    """Return the rows of windows over final events: the window, keys that are shown, answers."""
    payload, types = events.payload, {each.name: each.type for each in events.payload}
    answers = [pa.field(each.alias, result_type(each, types)) for each in aggregates]
    shows = [payload.field(key) for key in keys[: len(shown)]]
    return Paned(
        pa.schema([windows.heading(time).with_name(WINDOW), *shows, *answers]),
        None,
        True,
        events.reach + (windows.gap or 0 if isinstance(windows, Session) else windows.range),
        events.delay,
        before=events,
        windows=windows,
        keys=tuple(keys),
        shown=tuple(shown),
        aggregates=tuple(aggregates),
        time=time,
    )


def while_open(
    events: Node,
    windows: Windows | Cumulative,
    time: pa.DataType,
    keys: Sequence[str],
    shown: Sequence[str],
    aggregates: Sequence[Aggregate],
) -> Left:
    """Return the rows of windows as they hold while they are open: the window, keys, answers.

    Rows are known by their window and the keys in `shown`.
    """
    payload, delay = events.payload, events.delay
    later = windows.later(delay)
    living = InWindows(later)
    reach = events.reach + windows.range
    of = events.scope, events.grows, reach, delay
    text = f"lives in {windows}"
    lives = Mapped(living.columns(payload), *of, before=events, change=living, text=text)
    entered = Entered(lives.payload, Scope(tuple(keys)), *of[1:], before=lives)
    operator = lifetime_aggregate(lives.payload, aggregates, keys)
    texts = ", ".join(f"{each.text} as {each.alias}" for each in aggregates)
    inside = entered.scope, False, reach, delay
    answers = Applied(
        operator.result, *inside, inputs=(entered,), operator=operator, text=f"aggregate {texts}"
    )
    columns = pa.schema([each for each in operator.result if each.name not in {*keys} - {*shown}])
    rows = OpenWindows(columns, later, time, shown, delay)
    text = f"rows of {windows}"
    made = Applied(rows.result, *inside, inputs=(answers,), operator=rows, text=text)
    return Left(rows.result, None, *inside[1:], before=made)


def either(opened: Node, panes: Node) -> WindowRows:
    """Return rows of windows while they are open, and from panes where they are final."""
    assert isinstance(opened, Left)
    assert opened.payload.types == panes.payload.types
    if isinstance(panes, Paned):
        panes = replace(panes, payload=opened.payload)
    whole = opened.payload, opened.scope, opened.grows, opened.reach, opened.delay
    return WindowRows(*whole, before=opened.before, panes=panes)
