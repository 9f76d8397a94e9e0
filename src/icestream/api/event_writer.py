"""Turns events into a query that can be started: the rows of all sources in one frame, a dataflow.

Idea: a dataflow reads one frame with the rows of all sources. Each row has the columns of every
source; those of other sources are null. Only columns that the query uses are included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

from icestream.api.shared_plan import BuiltQuery, StreamInput, WholeRows, sources_of
from icestream.api.types import arrow_schema, arrow_type
from icestream.plan.events.dataflow import Dataflow, source_column
from icestream.plan.events.needed_columns import needed_columns
from icestream.plan.events.queries import compiled
from icestream.plan.nodes.events import Node
from icestream.plan.nodes.queries import SOURCE, TIME


def built(
    node: Node,
    sources: Mapping[int, StreamInput],
    mode: str,
    *,
    whole: bool = False,
) -> BuiltQuery[Dataflow]:
    """Return the projection of the sources, by tag, and the dataflow, for an output mode."""
    parts = list(sources.values())
    needed = needed_columns(node)
    columns = [needed[tag] for tag in sources]
    frames = [projected(part, number, columns) for number, part in enumerate(parts)]
    plan = compiled(
        ((node, mode),),
        {tag: number for number, tag in enumerate(sources)},
        sources_of(parts),
        tuple(columns),
        arrow_type(frames[0].schema[0].dataType, parts[0].time),
    )
    rows = StructType(
        [
            StructField(each.name, from_arrow_type(each.type), each.nullable)
            for each in plan.results(plan.views[0])
        ]
    )
    again = partial(built, node, sources, mode, whole=True)
    return reading(parts, columns, plan, (rows,), again, whole=whole)


def reading(
    parts: Sequence[StreamInput],
    columns: Sequence[pa.Schema],
    plan: Dataflow,
    rows: tuple[StructType, ...],
    again: Callable[[], BuiltQuery[Dataflow]],
    *,
    whole: bool,
) -> BuiltQuery[Dataflow]:
    """Return a query over some columns of its sources, and over all for refused rows."""
    kept = WholeRows.of(parts) if whole else None
    beside = kept.columns if kept is not None else ((),) * len(parts)
    frames = [
        projected(part, number, columns, *beside[number]) for number, part in enumerate(parts)
    ]
    return BuiltQuery(
        reduce(DataFrame.unionAll, frames),
        plan,
        rows,
        parts[0].time,
        whole=again,
        kept=None if kept is None else kept.schema,
    )


def columns_of(part: StreamInput) -> pa.Schema:
    """Return the columns of a source whose events a writer sends."""
    return arrow_schema(part.frame.columns, part.frame.schema.fields)


def projected(
    part: StreamInput, number: int, columns: Sequence[pa.Schema], *beside: Column
) -> DataFrame:
    """Return the rows of one source, with nulls in the columns of the others."""
    chosen = [sf.col(part.time).alias(TIME), sf.lit(number).cast("int").alias(SOURCE)]
    for source, schema in enumerate(columns):
        for place, each in enumerate(schema):
            name = source_column(source, place)
            if source == number:
                escaped = each.name.replace("`", "``")
                chosen.append(sf.col(f"`{escaped}`").alias(name))
            else:
                kind = from_arrow_type(each.type)
                chosen.append(sf.lit(None).cast(kind).alias(name))
    return part.frame.select(*chosen, *beside)
