"""Warnings about queries that run, but rarely compute what was meant."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from icestream.operators.lifetimes.alter_lifetimes import AlterLifetimes, ColumnLifetimes
from icestream.plan.computation import Computation
from icestream.plan.nodes.events import Entered, FromSource, Left, Mapped, Node, United
from icestream.plan.windows.lifetimes import Shifted

#: changes of a version, and changes for each of its events, from which a query is warned of
MANY_ROWS = 100_000
MANY_CHANGES = 100


class QueryWarning(UserWarning):
    """A query that runs, but rarely computes what was meant."""


def warn_of_instants(nodes: Sequence[Node], stacklevel: int) -> None:
    """Warn if two of the streams that are joined consist of instants."""
    if sum(map(_are_instants, nodes)) > 1:
        msg = (
            "this join pairs only events with exactly equal times, because events of both sides "
            "live for an instant: join with within='1 hour', or let events live with "
            "last('1 hour') or forever(); if equal times are meant, call point() on both"
        )
        warnings.warn(msg, QueryWarning, stacklevel=stacklevel + 1)


def warn_of_sliding(range: str | int, stacklevel: int) -> None:
    """Warn of a window of events that slides, while that of a stream is tumbling."""
    msg = (
        f"events.window({range!r}) slides with time, unlike windows of streams: write "
        f"last({range!r}), or ice.stream(events).window({range!r}) for tumbling windows"
    )
    warnings.warn(msg, QueryWarning, stacklevel=stacklevel + 1)


def warn_of_late_events(plan: Computation, progress: Mapping[str, Any], query: str) -> None:
    """Warn if events were too late for a source without slack; Python shows it once for a query."""
    sources = [source.name for source in plan.sources if source.slack == 0]
    if sources and progress["icestream"]["lateEvents"]:
        msg = (
            f"the query of {query} drops events that are out of order, because the slack of "
            f"{', '.join(sources)} is 0: write ice.stream(df, time=..., slack='10 seconds'), or "
            "give it df.withWatermark(...). query.lastProgress['icestream']['lateEvents'] counts "
            "them, and option('lateEvents', folder) keeps them"
        )
        warnings.warn(msg, QueryWarning, stacklevel=2)


def warn_of_revisions(plan: Computation, progress: Mapping[str, Any], query: str) -> None:
    """Warn if a version emits many changes for each event; Python shows it once for a query."""
    rows, events = progress["icestream"]["resultRows"], progress["numInputRows"]
    modes = {getattr(view, "mode", None) for view in plan.views}
    if "changes" in modes and rows > MANY_ROWS and rows > MANY_CHANGES * events:
        msg = (
            f"the query of {query} emitted {rows:,} changes for {events:,} events: in mode "
            "'changes' an aggregate over lifetimes is revised at every later instant at which an "
            "event of its group ends. Write outputMode('append') for final rows, or give the "
            "window a slide: window('1 hour', slide='1 minute')"
        )
        warnings.warn(msg, QueryWarning, stacklevel=2)


def warn_of_change(differences: Sequence[str], checkpoint: str) -> None:
    """Warn that a checkpoint goes on with another query, and what is different."""
    msg = (
        f"the query of {checkpoint} has changed, and goes on with its state. "
        f"{'; '.join(differences)}. What was computed before stays as it was"
    )
    warnings.warn(msg, QueryWarning, stacklevel=2)


def warn_of_linecutting(schedule: str, stacklevel: int) -> None:
    """Warn if keys are served in an order in which some of them may wait for ever."""
    if schedule == "linecutting":
        msg = (
            "schedule='linecutting' may never serve keys that are updated often while others are "
            "not: write schedule='inplace' unless the rare ones alone matter"
        )
        warnings.warn(msg, QueryWarning, stacklevel=stacklevel + 1)


def _are_instants(node: Node) -> bool:
    """Return whether events live for an instant because nobody said how long."""
    match node:
        case FromSource():
            return True
        case Mapped(change=AlterLifetimes(lifetime=lifetime)):
            return isinstance(lifetime, Shifted) and _are_instants(node.before)
        case Mapped(change=ColumnLifetimes()):
            return False
        case Mapped() | Entered() | Left():
            return _are_instants(node.before)
        case United():
            return all(map(_are_instants, node.parts))
    return False
