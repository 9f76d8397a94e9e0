"""Later lifetimes, and unions of columns of which only some may be null; no Spark is needed."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import icestream as ice
from icestream.api.events import Events
from icestream.api.query_warnings import QueryWarning
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
    flow = compiled(((query._node, "changes"),), {0: 0}, sources, (COLUMNS,), TIME)
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
    later = events().last(10).shift(5)
    query = later.groupApply("k", lambda group: group.join(group.select("v AS w")))
    assert rows_of(query, [(100, 1, 7)]) == [(105, 115, 1, 7, 7)]
    assert later._node.reach == 15


def test_events_expire_at_a_time_of_their_own() -> None:
    living = events().expires("timestamp_micros(v)")
    query = living.groupApply("k", lambda group: group.agg(ice.count().alias("n")))
    #   the first is there until 109, the second until 103; the third is over before it begins
    rows: list[tuple[int, int | None, int]] = [(100, 1, 109), (102, 1, 103), (105, 2, 90)]
    assert [row for row in rows_of(query, rows) if row[2] == 2] == []
    assert rows_of(query, rows) == [(100, 102, 1, 1), (102, 104, 1, 2), (104, 110, 1, 1)]


def test_events_expire_at_a_timestamp() -> None:
    with pytest.raises(DefinitionError, match="a timestamp; v is int64: convert it"):
        events().expires("v")


def test_a_window_of_events_that_slides_says_which_word_does() -> None:
    with pytest.warns(QueryWarning, match=r"slides with time.*last\('1 hour'\)"):
        sliding = events().window("1 hour")
    assert sliding._node.reach == events().last("1 hour")._node.reach


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


def test_windows_of_events_contain_their_start_and_not_their_end() -> None:
    #  0    5    10        20        30
    #  a    b  ) c       )         )        [0, 10) has a and b, [10, 20) has c
    counted = events().window(10, slide=10).groupApply("k", lambda g: g.agg(ice.count().alias("n")))
    found = rows_of(counted, [(at, 1, at) for at in (0, 5, 10)])
    assert [row for row in found if row[3]] == [(10, 20, 1, 2), (20, 30, 1, 1)]


def test_the_last_of_some_time_slides_with_it() -> None:
    counted = events().last(10).groupApply("k", lambda g: g.agg(ice.count().alias("n")))
    found = rows_of(counted, [(at, 1, at) for at in (0, 5, 10)])
    assert sorted(found) == [(0, 5, 1, 1), (5, 15, 1, 2), (15, 20, 1, 1)]


@pytest.mark.parametrize(
    ("ascending", "best"),
    [
        ([False, True], [(3, 1), (3, 2)]),
        ([True, False], [(1, 2), (1, 1)]),
        (True, [(1, 1), (1, 2)]),
        (False, [(3, 2), (3, 1)]),
    ],
)
def test_each_column_of_a_top_has_its_direction(
    ascending: bool | list[bool], best: list[tuple[int, int]]
) -> None:
    def of_group(group: Events) -> Events:
        pairs = group.select("v % 10 AS x", "v div 10 AS y")
        return pairs.top(1, by=["x", "y"], ascending=ascending)

    rows: list[tuple[int, int | None, int]] = [(5, 1, 10 * y + x) for x in (1, 3) for y in (1, 2)]
    assert [row[-2:] for row in rows_of(events().forever().groupApply("k", of_group), rows)] == [
        best[0]
    ]


@pytest.mark.parametrize("ascending", [[True], [True, 1], [True, False, True]])
def test_a_direction_for_other_columns_is_refused(ascending: Any) -> None:
    with pytest.raises(DefinitionError, match="one of them for each of the 2 columns"):
        events().groupApply("k", lambda g: g.top(1, by=["k", "v"], ascending=ascending))
