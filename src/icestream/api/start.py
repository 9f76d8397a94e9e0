"""Several results over one stream as one query, with one checkpoint and one budget.

Each result has its own sink; what belongs to the whole query is given to `start`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from icestream.api.launch import HELD, TABLES, launch
from icestream.api.query_settings import DEFAULT_MEMORY, is_own
from icestream.api.writer import StreamWriter
from icestream.core.errors import DefinitionError
from icestream.core.text_errors import TYPO, guess
from icestream.core.units import parse_bytes
from icestream.runtime.spark.query import Query


def start(
    *writers: StreamWriter,
    checkpointLocation: str,
    memory: str | int = DEFAULT_MEMORY,
    disk: str | int | None = None,
    shards: int | None = None,
    parallelism: int | tuple[int, int] | None = None,
    queryName: str | None = None,
    trigger: Mapping[str, Any] | None = None,
    **options: Any,
) -> Query:
    """Start several results as one query with a sink for each.

    Windows of one stream read and store its events once for all of them, and steps over one stream
    and results of one job are one query as well; so are events, also beside windows. Each writer
    sets its own sink (format, path, output mode, callback); settings of the whole query are given
    here.

    Args:
        *writers: what `result.writeStream` returned, each with its sink.
        checkpointLocation: the folder of the query.
        memory: bytes on a host for all results together.
        disk: bytes of disk for log, exchange and caches; by default any number.
        shards: the number of shards, the units of state.
        parallelism: the number of tasks that run them, or the minimum and the maximum.
        queryName: the name of the query.
        trigger: as the keywords of `trigger`, for example `{"availableNow": True}`.
        **options: options of the query, as `option` takes them: flush, ticker, plan, ...

    Examples:
        >>> busiest = hourly.agg(ice.max("busyTime").alias("longest"))
        >>> together = ice.start(
        ...     kpis.writeStream.format("noop"),
        ...     busiest.writeStream.format("noop"),
        ...     checkpointLocation="chk/together",
        ...     memory="64 MB",
        ...     trigger={"availableNow": True},
        ... )
        >>> together.awaitTermination()
    """
    _check_writers(writers)
    if any(each._statement is None for each in writers):
        writers = tuple(each._beside_events() for each in writers)
    own = ("memory", "disk", "shards", "parallelism", "queryName", "trigger")
    for option in options:
        if hint := guess(option, own, TYPO):
            msg = f"there is no option {option!r}{hint}"
            raise DefinitionError(msg)
    lead = writers[0].option("checkpointLocation", checkpointLocation).memory(memory)
    lead = lead.options(**options) if disk is None else lead.options(**options).disk(disk)
    lead = lead if shards is None else lead.shards(shards)
    if parallelism is not None:
        bounds = (parallelism,) if isinstance(parallelism, int) else parallelism
        lead = lead.parallelism(*bounds)
    lead = replace(lead, _name=queryName)
    lead = (lead.trigger(**trigger) if trigger else lead)._starting()
    sinks = [each._sink(number, lead) for number, each in enumerate(writers)]
    return launch([(lead, sinks[0]), *zip(writers[1:], sinks[1:], strict=True)])


def _check_writers(writers: Sequence[object]) -> None:
    """Refuse writers that cannot be one query, and settings of theirs that would be ignored."""
    paths: set[str] = set()
    if not writers:
        msg = "ice.start needs at least one result.writeStream"
        raise DefinitionError(msg)
    for each in writers:
        if not isinstance(each, StreamWriter):
            msg = f"ice.start takes what result.writeStream returns; got {type(each).__name__}"
            raise DefinitionError(msg)
        held = each._mode in (HELD if len(writers) > 1 else TABLES)
        if held and not each._built.plan.has_queue:
            msg = (
                f"a result in output mode {each._mode!r} is started alone, with "
                "writeStream...start(); together, write 'append', or 'changes' for the groups that "
                "changed when a window closed"
            )
            raise DefinitionError(msg)
        own = sorted(filter(is_own, each._options))
        scale = (
            each._shards
            or each._parallelism
            or each._disk
            or each._memory != parse_bytes(DEFAULT_MEMORY)
        )
        if own or each._trigger or scale:
            said = [*own, *each._trigger] or ["memory, disk, shards or parallelism"]
            msg = (
                f"a writer that is started with others sets {', '.join(said)}, which belongs to "
                "the whole query: pass it to ice.start"
            )
            raise DefinitionError(msg)
        path = each._options.get("path")
        if path is not None and path in paths:
            msg = f"two writers would write to {path}: give each a path of its own"
            raise DefinitionError(msg)
        paths |= {path} if path is not None else set()
