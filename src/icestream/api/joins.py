"""Joins of several streams at once.

Idea: `ice.join(a, b, c, on=...)` is one join of all its streams. Its result is a stream that can be
joined by other columns, which makes a tree:

    abc = ice.join(a, b, c, on="k", onPressure="defer")
    abcd = abc.join(d, on=[("c2", "d1")], onPressure="defer")
"""

# The names are those of PySpark's DataFrames.

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Unpack

from pyspark.sql import Column

from icestream.api.event_joins import (
    bounds_of,
    compared,
    condition_on,
    deferred,
    may_defer,
    near,
    paired,
)
from icestream.api.events import Events
from icestream.api.query_warnings import warn_of_instants
from icestream.api.stream_methods import StreamMethods
from icestream.core.errors import DefinitionError
from icestream.plan.joins.multi_join import Equal
from icestream.plan.nodes.spilling import Spilling, SpillingOptions, defers


def join(
    *streams: StreamMethods,
    on: str | Sequence[Equal],
    where: str | Column | None = None,
    within: str | int | None = None,
    onPressure: str = "fetch",
    **spilling: Unpack[SpillingOptions],
) -> Events:
    """Join several streams: one event of each, for the instants at which all of them live.

    Join columns with the same name appear once in the result; all other names must differ.

    Args:
        *streams: two or more streams, results or events, outside groups.
        on: columns with equal values: a name that all streams have, or a tuple with a name for each
            stream, or a list of these: `on=["day", ("symbol", "ticker", "about")]`.
        where: a further condition on combinations: SQL or a column, over the result's columns.
        within: combine events at most this far apart in time, instead of by lifetime.
        onPressure: what happens to state that does not fit into memory. `fetch`: it is read from
            disk when it is needed, and every result is emitted at once. `defer`: partitions of the
            join are spilled to disk; the rows in memory keep producing results, and the missing
            results follow when the join is cleaned up: at the end of the stream, by
            `query.cleanUp()`, and when no events arrive. In total the rows are the same, each once.
            `auto`: `defer` where that is possible, because it takes less processor time; `fetch`
            for streams of results that may be retracted.
        **spilling: with `defer` or `auto`: `strategy`, which partitions are spilled first
            (`global_output_ahead`, `global_output_with_penalty`, `global_output`, `local_output`,
            `bottom_up`, `random`, `largest`); `threshold`, the fraction of the memory that joins
            may fill (0.8); `amount`, the fraction of the state in memory that is spilled at once
            (0.3); `partitions` of each join (256); `sample`, the fraction of the rows that is
            traced to measure how productive partitions are; `order`, `cheapest` for the join order
            with the least expected state, or `written`.

    Examples:
        >>> bids, asks, news = (
        ...     events.select("symbol", f"price AS {name}").forever()
        ...     for name in ("bid", "ask", "news")
        ... )
        >>> ice.join(bids, asks, news, on="symbol", onPressure="defer").columns
        ['symbol', 'bid', 'ask', 'news']
    """
    if len(streams) < 2 or not all(isinstance(each, StreamMethods) for each in streams):
        msg = "join takes two or more streams of events (stream.events())"
        raise DefinitionError(msg)
    joined = streams[0].events()._together(streams[1:], "join")
    (joined, on), where = compared(joined, on), condition_on(joined, where)
    if within is not None:
        joined = near(joined, bounds_of(within))
    if defers(onPressure, spilling, possible=may_defer(joined, on)):
        made = deferred(joined, on, where, Spilling(**spilling))
    else:
        made = _one_by_one(joined, on, where)
    warn_of_instants([each._node for each in joined], stacklevel=2)
    return made


def _one_by_one(streams: Sequence[Events], on: str | Sequence[Equal], where: str | None) -> Events:
    """Join streams in their order; join columns with the same name appear once."""
    count = len(streams)
    rows = [
        (each,) * count if isinstance(each, str) else tuple(each)
        for each in ((on,) if isinstance(on, str) else on)
    ]
    wrong = [row for row in rows if len(row) != count]
    if wrong:
        msg = f"on={wrong[0]} must name a column of each of the {count} streams, in order"
        raise DefinitionError(msg)
    #: names that each join value has in the result so far
    names = [{row[0]} for row in rows]

    def one_more(result: Events, numbered: tuple[int, Events]) -> Events:
        port, stream = numbered
        pairs = []
        for known, row in zip(names, rows, strict=True):
            pairs.append((row[port] if row[port] in known else row[0], row[port]))
            known.add(row[port])
        last = where if port == count - 1 else None
        return paired(result, stream, pairs, last)

    return reduce(one_more, enumerate(streams[1:], start=1), streams[0])
