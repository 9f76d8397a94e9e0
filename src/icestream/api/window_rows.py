"""Windows of any kind as events: so results go on as streams, and hold in a table while open.

Idea: events live in their windows on a grid (`open_windows`); they are copied into sessions, which
are groups like any other (`session_copies`), and into grouping sets. A window that moves with
events gives each event a lifetime that ends when later events push it out. So all aggregates, modes
and operators that events have follow, and the rows of a window are events at its last instant, once
they are final.

Invariants:
1. Rows are those of the windows' own operators
   (`test_oracle_every_kind_of_window_composes_as_in_sql`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from icestream.api.column_text import aggregates_over, names_of, sql_text
from icestream.api.columns import quoted
from icestream.api.events import Events, events_of
from icestream.api.functions import AggregateExpression, as_column
from icestream.api.shared_plan import Statement, StreamInput, build, check_aggregates, check_names
from icestream.core.errors import DefinitionError
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.lifetimes.aggregate import lifetime_aggregate
from icestream.operators.lifetimes.session_copies import SessionCopies
from icestream.operators.lifetimes.until_next import UntilNext
from icestream.operators.lifetimes.window_copies import WINDOW, GroupingCopies, OwnTimes
from icestream.operators.object_aggregates.functions import needs_objects
from icestream.plan.events.features import FeatureCall, rows_at_slides, with_features
from icestream.plan.events.pane_windows import either, paned, while_open
from icestream.plan.nodes.queries import SOURCE, TIME, Plan, WindowKind, grouping_id
from icestream.plan.windows.frame import GROUPING_ID, Frame
from icestream.plan.windows.grid import Cumulative, Windows
from icestream.plan.windows.session import Session

#: keys of a group that has all events
_ALL = "__all"
#: why sessions with gaps of events' own are refused
OWN_GAPS = (
    "sessions in which each event has a gap of its own are final rows of aggregates of fixed size, "
    "of one stream: write them in mode append, and read them as a stream to compute more; or give "
    "one gap for all events, such as session('30 minutes')"
)
Sets = tuple[tuple[int, ...], ...] | None


def rows_of_statement(statement: Statement, *, newest: bool = False) -> Events:
    """Return the rows of a statement over a stream.

    A window that moves with events has a row for each, or only the `newest` of each group.
    """
    plan = build([statement], runs=False).plan
    view = plan.views[0]
    keys = [f"__k{place}" for place in range(len(plan.keys))]
    events = events_of([_projected(statement, part, keys) for part in statement.parts])
    names = list(plan.keys.names)
    asked = keys, names, statement.sets, view.aggregates, plan.time
    if isinstance(view.windows, Frame) and not newest:
        return _row_for_each(events, view.windows, *asked)
    return _rows(events, view.windows, *asked)


def reads_events(plan: Plan) -> bool:
    """Return whether the windows of a plan of one view can be those of events."""
    (view,) = plan.views
    if isinstance(view.windows, Frame):
        sets = view.groupings if view.tells_grouping else None
        return _is_of_own(view.windows, len(view.keys), sets)
    return isinstance(view.windows, Session)


def _is_of_own(frame: Frame, keys: int, sets: Sets) -> bool:
    """Return whether the rows of a frame are over the events of one group."""
    return (frame.partition == "key" or keys == 0) and sets is None


def rows_of_windows(
    events: Events,
    windows: WindowKind,
    cols: Sequence[object],
    sets: Sets,
    aggregates: Sequence[AggregateExpression],
) -> Events:
    """Return the rows of windows over events, at the start of whose lifetimes they are."""
    check_aggregates(aggregates)
    payload = events._node.payload
    columns = [as_column(each) for each in cols]
    texts = [sql_text(each, payload, "groupBy", alias=False) for each in columns]
    keys = [f"__k{place}" for place in range(len(texts))]
    inputs, found = aggregates_over(aggregates, payload, "1")
    named = [f"({text}) AS {key}" for text, key in zip(texts, keys, strict=True)]
    read = events.select(*named, *inputs, f"0 AS {_ALL}")
    names = names_of(columns, payload, "groupBy")
    (part, *_) = events._parts.values()
    chosen = [aggregate for aggregate, _ in found]
    return _rows(read, windows, keys, names, sets, chosen, part.time_type)


def final_window_rows(
    events: Events,
    windows: Windows | Cumulative,
    time: pa.DataType,
    keys: Sequence[str],
    aggregates: Sequence[AggregateExpression],
) -> Events:
    """Return the final rows of windows over events: the window, the keys, the answers."""
    inputs, found = aggregates_over(aggregates, events._node.payload, "1")
    read = events.select(*keys, *inputs, f"0 AS {_ALL}")
    chosen = [aggregate for aggregate, _ in found]
    node = paned(read._node, windows, time, list(keys) or [_ALL], keys, chosen)
    return replace(events, _node=node)


def _row_for_each(
    events: Events,
    frame: Frame,
    keys: Sequence[str],
    names: Sequence[str],
    sets: Sets,
    aggregates: Sequence[Aggregate],
    time: pa.DataType,
) -> Events:
    """Return a row for each event, or at the slides of the frame, over that which ends there."""
    if not _is_of_own(frame, len(keys), sets):
        msg = (
            "the rows of this window can be written, but nothing else can read them: use a window "
            "of the events of one group, window(range, slide='event') or rows(n, partitionBy=...), "
            "and one groupBy"
        )
        raise DefinitionError(msg)
    own = replace(frame, partition="key")
    if own.slide is None:
        calls = [
            FeatureCall(each.function, each.columns, each.alias, tuple(keys), own, each.parameters)
            for each in aggregates
        ]
        node = with_features(events._node, calls)
    else:
        heading = pa.field(TIME, time)
        node = rows_at_slides(events._node, own, heading, keys, aggregates)
    return replace(events, _node=node).select(
        f"{TIME} AS time",
        *(f"{key} AS {quoted(name)}" for key, name in zip(keys, names, strict=True)),
        *(quoted(each.alias) for each in aggregates),
    )


def _rows(
    events: Events,
    windows: WindowKind,
    keys: Sequence[str],
    names: Sequence[str],
    sets: Sets,
    aggregates: Sequence[Aggregate],
    time: pa.DataType,
) -> Events:
    """Return the rows of windows over events with columns for keys and inputs of aggregates."""
    heading = windows.heading(time).name
    numbers = [GROUPING_ID] * (sets is not None)
    check_names([heading, *names, *numbers, *(each.alias for each in aggregates)])
    if _ALL not in events.columns:
        events = events.withColumn(_ALL, "0")
    by = [*keys, *numbers]
    if sets is not None:
        places = tuple(range(len(keys)))
        chosen = [(tuple(keys[at] for at in each), grouping_id(each, places)) for each in sets]
        grouped = GroupingCopies(tuple(keys), tuple(chosen))
        shown = f"copies into grouping sets {sets}"
        events = events._mapped(grouped, grouped.columns(events._node.payload), shown)
    if isinstance(windows, Frame):
        made = _of_frames(events, windows, by, aggregates, time)
    elif isinstance(windows, Session):
        sessions = partial(_of_sessions, windows=windows, aggregates=aggregates, time=time)
        made = events.groupApply(by or _ALL, sessions)
        keyed, titles = by or [_ALL], [*names, *numbers] or [_ALL]
        made = _with_panes(made, events, windows, keyed, titles, aggregates, time)
    else:
        assert isinstance(windows, Windows | Cumulative)
        node = while_open(events._node, windows, time, by or [_ALL], by, aggregates)
        made = replace(events, _node=node)
        keyed, titles = by or [_ALL], [*names, *numbers]
        made = _with_panes(made, events, windows, keyed, titles, aggregates, time)
    return made.select(
        f"{WINDOW} AS {heading}",
        *(f"{key} AS {quoted(name)}" for key, name in zip(keys, names, strict=True)),
        *numbers,
        *(quoted(each.alias) for each in aggregates),
    )


def _with_panes(
    made: Events,
    events: Events,
    windows: Windows | Cumulative | Session,
    keys: Sequence[str],
    shown: Sequence[str],
    aggregates: Sequence[Aggregate],
    time: pa.DataType,
) -> Events:
    """Return rows of open windows, with the operator of the windows where they are final."""
    types = {each.name: each.type for each in events._node.payload}
    if isinstance(windows, Session) and any(needs_objects(each, types) for each in aggregates):
        return made
    panes = replace(events, _node=paned(events._node, windows, time, keys, shown, aggregates))
    if panes.columns != made.columns:
        panes = panes.select(*map(quoted, made.columns))._loosened(made._node.payload)
    return replace(made, _node=either(made._node, panes._node))


def _of_sessions(
    group: Events, windows: Session, aggregates: Sequence[Aggregate], time: pa.DataType
) -> Events:
    if windows.gap is None:
        raise DefinitionError(OWN_GAPS)
    node = group._node
    operator = SessionCopies(node.payload, windows, time, node.delay)
    copied = group._applied(operator, f"copies {windows}", grows=False)
    longer = replace(copied._node, reach=node.reach + windows.gap)
    copied = replace(copied, _node=longer)
    return copied.groupApply(WINDOW, lambda session: _aggregated(session, aggregates))


def _of_frames(
    events: Events,
    frame: Frame,
    by: Sequence[str],
    aggregates: Sequence[Aggregate],
    time: pa.DataType,
) -> Events:
    """Return the newest row of each group: the frame that ends with its last event."""
    if frame.slide is not None:
        msg = (
            "rows with every m-th event, or at multiples of a time, exist in output mode 'append' "
            "only: use a row with every event, window(range, slide='event') or rows(n)"
        )
        raise DefinitionError(msg)
    events._refuse_retractions("a window that moves with events")
    events._refuse_delay("a window that moves with events")
    own = OwnTimes(time)
    events = events._mapped(own, own.columns(events._node.payload), "with their times")
    operator = UntilNext(events._node.payload, frame)
    newest = (*aggregates, Aggregate("max", WINDOW, WINDOW))

    def living(group: Events) -> Events:
        return group._applied(operator, f"frame {frame.describe()['reach']}", grows=False)

    if frame.partition == "stream":
        alive = events.groupApply(_ALL, living)
        return alive.groupApply(by or _ALL, lambda group: _aggregated(group, newest))
    return events.groupApply(by or _ALL, lambda group: _aggregated(living(group), newest))


def _aggregated(group: Events, aggregates: Sequence[Aggregate]) -> Events:
    scope = group._node.scope
    assert scope is not None
    operator = lifetime_aggregate(group._node.payload, aggregates, scope.keys)
    text = ", ".join(f"{each.text} as {each.alias}" for each in aggregates)
    return group._applied(operator, f"aggregate {text}", grows=False)


def _projected(statement: Statement, part: StreamInput, keys: Sequence[str]) -> StreamInput:
    """Return the keys and inputs of a statement as the columns of a source."""
    frame = build([replace(statement, parts=(part,))], runs=False).events.drop(SOURCE)
    names = [TIME, *keys, *frame.columns[1 + len(keys) :]]
    return replace(part, frame=frame.toDF(*names), time=TIME)
