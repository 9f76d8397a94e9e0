"""Joins of several streams that may defer results, for tests: trees in a line or two.

Idea: the five streams of the classic example have two columns to join by and a number each; `tree`
joins the first three by their first column, then the others one by one by other columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from icestream.core.times import Micros
from icestream.plan.events.dataflow import Dataflow
from icestream.plan.joins.multi_join import Equal, joined
from icestream.plan.joins.spilling import Spilling
from icestream.runtime.local import Splits
from icestream.testing.stories.dataflow_plans import SECOND, Stream, dataflow

#: names of the streams, and of the joins after the first
NAMES = "abcde"


def columns_of(name: str) -> pa.Schema:
    """Return the columns of a stream: two to join by, and one that tells its rows apart."""
    return pa.schema([(f"{name}1", pa.int64()), (f"{name}2", pa.int64()), (name, pa.int64())])


SCHEMAS = tuple(map(columns_of, NAMES))


def sources(lifetime: Micros | None, count: int = len(NAMES)) -> list[Stream]:
    """Return streams whose events live for some time, or for ever."""
    streams = [Stream.of(schema, number) for number, schema in enumerate(SCHEMAS[:count])]
    return [s.forever() if lifetime is None else s.window(lifetime) for s in streams]


def deferred(
    *streams: Stream,
    on: str | Sequence[Equal],
    where: str | None = None,
    spilling: Spilling | None = None,
) -> Stream:
    """Join streams in the order given, unless told otherwise; some results may come later."""
    nodes = [stream.node for stream in streams]
    return Stream(joined(nodes, on, where, spilling or Spilling(order="written")))


def tree(
    lifetime: Micros | None = None,
    spilling: Spilling | None = None,
    *,
    narrow: bool = False,
    slack: Micros = 5 * SECOND,
    order: str = "written",
) -> Dataflow:
    """Join a, b and c by their first column, d by the second of c, e by the second of d.

    A `narrow` one drops all columns but those that joins need and those that tell rows apart.
    """
    a, b, c, d, e = sources(lifetime)
    spilling = replace(spilling or Spilling(), order=order)
    abc = deferred(a, b, c, on=[("a1", "b1", "c1")], spilling=spilling)
    abc = abc.select("a", "b", "c", "c2") if narrow else abc
    abcd = deferred(abc, d, on=[("c2", "d1")], spilling=spilling)
    abcd = abcd.select("a", "b", "c", "d", "d2") if narrow else abcd
    rows = deferred(abcd, e, on=[("d2", "e1")], spilling=spilling)
    rows = rows.select("a", "b", "c", "d", "e") if narrow else rows
    return dataflow(rows, "append", SCHEMAS, slack)


def batch_of(flow: Dataflow, times: Sequence[pa.Array], rows: Sequence[pa.Table]) -> Splits:
    """Return the rows of each source, with their times, as one batch of a split for each source."""
    splits = []
    for number, (instants, table) in enumerate(zip(times, rows, strict=True)):
        count = table.num_rows
        columns = [instants.cast(flow.time), pa.array([number] * count, pa.int32())]
        for source, schema in enumerate(flow.columns):
            for each in schema:
                mine = source == number
                column = table.column(each.name) if mine else pa.nulls(count, each.type)
                columns.append(column.combine_chunks() if mine else column)
        splits.append([pa.RecordBatch.from_arrays(columns, schema=flow.batch_schema)])
    return splits
