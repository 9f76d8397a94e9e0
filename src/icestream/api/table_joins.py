"""Joins of events with the rows of a batch DataFrame.

Idea: the batch is read once, when the query is written, and becomes a part of it. So it can stand
anywhere in a query, also behind aggregates and joins.

Limits: a restart needs the same rows. Rows that change are joined with the stream, by Spark, before
anything with state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import xxhash
from pyspark.sql import DataFrame

from icestream.api.columns import as_spelled, quoted
from icestream.api.event_joins import kind_of_join
from icestream.core.errors import DefinitionError
from icestream.core.units import format_bytes
from icestream.operators.dataflow.table_lookup import TableLookup
from icestream.plan.joins.multi_join import Equal, check_comparable
from icestream.runtime.spark.arrow_types import to_arrow_schema

if TYPE_CHECKING:
    from icestream.api.events import Events

#: what a worker may hold of a table, beside its budget
_MOST_BYTES = 64 << 20


def beside_table(
    events: Events, batch: DataFrame, on: str | Sequence[Equal] | None, how: str
) -> Events:
    """Join events with the rows of a batch; columns come in PySpark's order."""
    kind = kind_of_join(how)
    if batch.isStreaming or kind not in TableLookup.KINDS or not on:
        msg = (
            "events are joined with a batch DataFrame by columns, with how='inner', 'left', 'semi' "
            "or 'anti'; a streaming one becomes a stream first: ice.stream(df, time=...)"
        )
        raise DefinitionError(msg)
    rows = _rows(batch)
    equal = [on] if isinstance(on, str) else list(on)
    alone = [each for each in equal if isinstance(each, str)]
    shown = {name.lower(): name for name in as_spelled(alone, events.columns)}
    rows = rows.rename_columns([shown.get(name.lower(), name) for name in rows.schema.names])
    given = [(each, each) if isinstance(each, str) else tuple(each) for each in equal]
    both = events.columns, rows.schema.names
    pairs = [
        tuple(as_spelled([n], c)[0] for n, c in zip(each, both, strict=True)) for each in given
    ]
    mine, theirs = (tuple(names) for names in zip(*pairs, strict=True))
    for names, columns in ((mine, events.columns), (theirs, rows.schema.names)):
        unknown = [name for name in names if name not in columns]
        if unknown:
            msg = f"join names {unknown}; the columns are {columns}"
            raise DefinitionError(msg)
    payload = events._node.payload
    for name, twin in pairs:
        check_comparable([payload.field(name), rows.schema.field(twin)])
    shared = [name for name, twin in pairs if name == twin]
    adds = kind in ("inner", "left")
    added = [name for name in rows.schema.names if adds and name not in shared]
    twice = [name for name in added if name in payload.names]
    if twice:
        msg = f"both sides of the join have {twice}: rename them with withColumnRenamed"
        raise DefinitionError(msg)
    stored = _stored(rows)
    lookup = TableLookup(stored, mine, theirs, kind, tuple(added))
    text = f"{kind} join with a table on {pairs}: {added} of {xxhash.xxh128_hexdigest(stored)}"
    made = events._mapped(lookup, lookup.columns(payload), text)
    others = [name for name in made.columns if name not in shared]
    return made._selected(*map(quoted, (*shared, *others)))


def _rows(batch: DataFrame) -> pa.Table:
    rows = batch.toArrow().cast(to_arrow_schema(batch.schema))
    if rows.nbytes > _MOST_BYTES:
        msg = (
            f"a batch of {format_bytes(rows.nbytes)} is more than the {format_bytes(_MOST_BYTES)} "
            "that a query carries along: join it with the stream, before what has state, or read "
            "it as a stream"
        )
        raise DefinitionError(msg)
    return rows


def _stored(rows: pa.Table) -> bytes:
    """Return rows as bytes, in an order that does not depend on how they were read."""
    texts = [repr(each) for each in rows.to_pylist()]
    places = sorted(range(rows.num_rows), key=texts.__getitem__)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows.take(places).combine_chunks())
    return bytes(sink.getvalue())
