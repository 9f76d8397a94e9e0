"""Turns events into a query that can be started: the rows of all sources in one frame, a dataflow.

Idea: a dataflow reads one frame with the rows of all sources. Each row has the columns of every
source; those of other sources are null. Only columns that the query uses are included. Events of
equal time are in the order of their files, on which columns over frames and user code depend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as sf

from icestream.api.columns import quoted
from icestream.api.shared_plan import (
    BuiltQuery,
    StreamInput,
    WholeRows,
    in_order,
    read_parts,
    sources_of,
)
from icestream.api.stream_methods import StreamMethods
from icestream.core.errors import DefinitionError
from icestream.plan.events.dataflow import Dataflow, source_column
from icestream.plan.events.needed_columns import needed_columns
from icestream.plan.events.queries import compiled
from icestream.runtime.spark.arrow_types import from_arrow_schema, from_arrow_type
from icestream.state.rows import RowCodec


def together(results: Sequence[object], modes: Sequence[str]) -> BuiltQuery[Dataflow]:
    """Return events, and results of windows by their final rows, as one query."""
    given = [each.events() for each in results if isinstance(each, StreamMethods)]
    if len(given) < len(results):
        msg = (
            "ice.start takes results of one kind: of streams and events, of one job, or of steps "
            "over one stream. Start each other kind by itself with writeStream...start(): queries "
            "may read the same DataFrame in parallel"
        )
        raise DefinitionError(msg)
    nodes = [each._node for each in given]
    if any(node.scope is not None for node in nodes):
        msg = "return the events of a group from groupApply's function before writing them"
        raise DefinitionError(msg)
    sources = {tag: part for each in given for tag, part in each._parts.items()}
    asked = tuple(zip(nodes, modes, strict=True))
    return built(sources, needed_columns(*nodes), partial(compiled, asked, zone=given[0]._zone))


def built(
    sources: Mapping[int, StreamInput],
    columns: Mapping[int, pa.Schema],
    compiled: Callable[..., Dataflow],
    *,
    whole: bool = False,
) -> BuiltQuery[Dataflow]:
    """Return the query of a writer of events over some columns, by tag; all for refused rows.

    `compiled` makes the dataflow from the numbers of tags, the sources, their columns and the type
    of time.
    """
    parts, schemas = list(sources.values()), [columns[tag] for tag in sources]

    def chosen(part: StreamInput, number: int) -> list[Column]:
        return [
            (
                sf.col(quoted(each.name))
                if source == number
                else sf.lit(None).cast(from_arrow_type(each.type))
            ).alias(source_column(source, place))
            for source, schema in enumerate(schemas)
            for place, each in enumerate(schema)
        ]

    numbers = {tag: number for number, tag in enumerate(sources)}
    plan = compiled(numbers, sources_of(parts), tuple(schemas), parts[0].time_type)
    for synopses in (each for spec in plan.specs for each in spec.groupings):
        for synopsis in synopses:
            # refuses columns that cannot be stored
            RowCodec(synopsis.schema)
    kept = WholeRows.of(parts) if whole else None
    read, beside = partial(read_parts, parts, chosen), () if kept is None else (kept.columns,)
    return BuiltQuery(
        read(*beside),
        plan,
        tuple(from_arrow_schema(plan.results(view)) for view in plan.views),
        parts[0].time,
        in_order(parts, read, *beside),
        whole=partial(built, sources, columns, compiled, whole=True),
        kept=None if kept is None else kept.schema,
    )
