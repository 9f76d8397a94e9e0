"""The result of a query before it is started.

Idea: the user may project and filter the rows of the windows (`select`, `where`). This happens to
the rows of a committed version on their way to the sink, so it changes no state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from icestream.api.event_writer import built
from icestream.api.events import Events, events_of
from icestream.api.projection import ProjectedRows
from icestream.api.shared_plan import BuiltQuery, Statement, StreamInput, build
from icestream.api.words import quoted
from icestream.api.writer import StreamWriter
from icestream.core.errors import DefinitionError
from icestream.operators.lifetimes.aggregate import LifetimeAggregate
from icestream.operators.lifetimes.window_copies import WINDOW, WindowCopies
from icestream.plan.events.dataflow import Dataflow
from icestream.plan.explain import explained
from icestream.plan.grid.cost import WindowStatistics
from icestream.plan.nodes.queries import SOURCE, TIME, Plan
from icestream.plan.windows.grid import Cumulative, Windows


@dataclass(frozen=True)
class Result(ProjectedRows):
    """The rows that a query computes; start it with `writeStream`.

    Examples:
        >>> kpis.where("count > 100").select("window.end", "serviceId").columns
        ['end', 'serviceId']
    """

    _built: BuiltQuery[Plan]
    _statement: Statement

    @property
    def writeStream(self) -> StreamWriter:
        """Return a writer that sets where the results go and starts the query.

        Examples:
            >>> writer = kpis.writeStream.format("parquet").option("path", "out").memory("64 MB")
        """
        now = partial(_as_events, self._statement)
        return StreamWriter(self._statement, self._built, self._shape, self.schema, now)

    def explain(self, statistics: WindowStatistics | None = None) -> None:
        """Print what will be computed and how.

        With statistics of the stream, it also prints the size of both storage plans; a running
        query measures them itself and reports them in `lastProgress`.

        Examples:
            >>> kpis.explain()
                sources  [{'name': 'stream', ...
        """
        print(explained(self._built.plan, statistics))


def _as_events(statement: Statement, mode: str) -> BuiltQuery[Dataflow]:
    """Return windows on a grid as groups of events that are copied into them, for mode `now`."""
    plan = build([statement]).plan
    view, windows = plan.views[0], statement.windows
    if not isinstance(windows, Windows | Cumulative) or statement.sets is not None:
        msg = (
            "output mode 'now' is for window(...) and cumulative(...) with one groupBy. The newest "
            "answer of a window that moves with events is "
            "stream.events().last(range).groupApply(keys, lambda group: group.agg(...))"
        )
        raise DefinitionError(msg)
    keys = [f"__k{place}" for place in range(len(plan.keys))]
    events = events_of([_projected(statement, part, keys) for part in statement.parts])
    copies = WindowCopies(windows, plan.time)
    events = events._mapped(copies, copies.columns(events._node.payload), f"copies {windows}")

    def aggregated(group: Events) -> Events:
        operator = LifetimeAggregate(group._node.payload, view.aggregates, (WINDOW, *keys))
        text = ", ".join(f"{each.text} as {each.alias}" for each in view.aggregates)
        return group._applied(operator, f"aggregate {text}", grows=False)

    made = events.groupApply([WINDOW, *keys], aggregated)
    names = [f"{key} AS {quoted(name)}" for key, name in zip(keys, plan.keys.names, strict=True)]
    named = made.select(WINDOW, *names, *(quoted(each.alias) for each in view.aggregates))
    return built(named._node, named._parts, mode, windows)


def _projected(statement: Statement, part: StreamInput, keys: Sequence[str]) -> StreamInput:
    """Return the keys and inputs of a statement as the columns of a source."""
    frame = build([replace(statement, parts=(part,))]).events.drop(SOURCE)
    names = [TIME, *keys, *frame.columns[1 + len(keys) :]]
    return replace(part, frame=frame.toDF(*names), time=TIME)
