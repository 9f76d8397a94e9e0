"""Later lifetimes, and unions of columns of which only some may be null; no Spark is needed."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from icestream.api.events import Events
from icestream.core.errors import DefinitionError
from icestream.plan.events.queries import compiled
from icestream.plan.nodes.events import FromSource
from icestream.plan.nodes.queries import Source
from tests.oracles.plain_dataflow import PlainDataflow

TIME = pa.timestamp("us", tz="UTC")
COLUMNS = pa.schema([pa.field("k", pa.int64()), pa.field("v", pa.int64(), nullable=False)])


def events() -> Events:
    return Events(FromSource(COLUMNS, source=0), {})


def rows_of(query: Events, rows: list[tuple[int, int | None, int]]) -> list[tuple[Any, ...]]:
    """Give start, end and payload of what a query makes of rows of time, k and v."""
    sources = (Source("s", 0),)
    flow = compiled(((query._node, "update"),), {0: 0}, sources, (COLUMNS,), TIME)
    times, keys, values = zip(*rows, strict=True)
    arrays = [
        pa.array(times, TIME),
        pa.array([0] * len(rows), pa.int32()),
        pa.array(keys, pa.int64()),
        pa.array(values, pa.int64()),
    ]
    batch = pa.RecordBatch.from_arrays(arrays, schema=flow.batch_schema)
    table = pa.Table.from_batches(PlainDataflow(flow).feed([[batch]]))
    lifetime = table.column("lifetime").combine_chunks()
    edges = [lifetime.field(edge).cast(pa.int64()).to_pylist() for edge in ("start", "end")]
    payload = [table.column(name).to_pylist() for name in query.columns]
    found = list(zip(*edges, *payload, strict=True))
    return sorted(found, key=str)


def test_shifted_events_live_as_long_as_before_but_later() -> None:
    later = events().window(10).shift(5)
    query = later.groupApply("k", lambda group: group.join(group.select("v AS w")))
    assert rows_of(query, [(100, 1, 7)]) == [(105, 115, 1, 7, 7)]
    assert later._node.reach == 15


def test_events_are_not_shifted_into_the_past() -> None:
    with pytest.raises(DefinitionError, match="into the past"):
        events().shift(-1)


def test_a_union_may_be_null_where_one_of_its_parts_may() -> None:
    #   k may be null, a constant not
    def both(group: Events) -> Events:
        constant = group.select("k", "3L AS x", "v AS y")
        return constant.union(group.select("k", "k AS x", "7L AS y"))

    query = events().groupApply("k", both)
    kinds = {field.name: field.nullable for field in query._node.payload}
    assert kinds == {"k": True, "x": True, "y": False}
    assert rows_of(query, [(5, None, 1), (6, 2, 1)]) == [
        (5, 6, None, 3, 1),
        (5, 6, None, None, 7),
        (6, 7, 2, 2, 7),
        (6, 7, 2, 3, 1),
    ]


def test_a_union_of_other_types_is_refused() -> None:
    with pytest.raises(DefinitionError, match="a union needs equal columns: k int64, v int64 and"):
        events().union(events().select("k", "CAST(v AS DOUBLE) AS v"))
