from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from icestream.api.events import Events
from icestream.core.errors import DefinitionError
from icestream.plan.events.queries import compiled
from icestream.plan.nodes.events import FromSource
from icestream.plan.nodes.queries import Source
from icestream.runtime.local import LocalQuery
from icestream.runtime.version.settings import Settings

TIME = pa.timestamp("us", "UTC")
COLUMNS = pa.schema([("user", pa.int64()), ("what", pa.string()), ("since", TIME)])
#: time, user, what, since
Row = tuple[int, int, str, int | None]
#: start, end, change, user
Change = tuple[int, int, int, int]
NEVER = 2**62


def visits(late: str = "close") -> Events:
    stream = Events(FromSource(COLUMNS), {})

    def of_user(group: Events) -> Events:
        edges = group.edges("what = 'in'", "what = 'out'", since="since", late=late)
        return edges.select("user")

    return stream.groupApply("user", of_user)


def query_of(events: Events, home: Path) -> LocalQuery:
    plan = compiled(((events._node, "changes"),), {0: 0}, (Source("s", 0),), (COLUMNS,), TIME)
    return LocalQuery(plan, Settings(str(home / "checkpoint"), str(home / "local"), 64 << 20))


def rows(query: LocalQuery, *emitted: Row) -> pa.RecordBatch:
    time, user, what, since = zip(*emitted, strict=True)
    source = np.zeros(len(emitted), dtype=np.int32)
    columns = [time, source, user, what, since]
    schema = query.plan.batch_schema
    arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def reported_by(query: LocalQuery, *emitted: Row) -> list[Change]:
    reported = query.feed([[rows(query, *emitted)]])
    lifetime = reported.column("lifetime").combine_chunks()
    start, end = (lifetime.field(name).cast(pa.int64()) for name in ("start", "end"))
    reported_columns: list[pa.Array] = [
        start,
        end.fill_null(NEVER),
        reported.column("change"),
        reported.column("user"),
    ]
    return sorted(zip(*(each.to_pylist() for each in reported_columns), strict=True))


def test_an_event_is_there_from_its_start_and_ends_when_told(tmp_path: Path) -> None:
    query = query_of(visits(), tmp_path)
    begun = reported_by(query, (10, 1, "in", None), (11, 2, "in", None), (12, 3, "by", None))
    assert begun == [(10, NEVER, 1, 1), (11, NEVER, 1, 2), (12, 13, 1, 3)]
    ended = reported_by(query, (15, 1, "out", 10), (16, 1, "in", None))
    assert ended == [(10, 15, 1, 1), (10, NEVER, -1, 1), (16, NEVER, 1, 1)]
    query.close()


def test_an_end_without_a_start_is_dropped_and_counted(tmp_path: Path) -> None:
    query = query_of(visits(), tmp_path)
    reported_by(query, (10_000, 1, "in", None))
    # the start of user 2 comes too late and is dropped
    assert reported_by(query, (5_000, 2, "in", None), (12_000, 3, "in", None)) == [
        (12_000, NEVER, 1, 3)
    ]
    (delivery,) = query.driver.batch(2, [[rows(query, (15_000, 2, "out", 5_000))]])
    assert delivery.progress["icestream"]["endsWithoutStart"] == 1
    query.close()
    again = query_of(visits(), tmp_path)
    assert reported_by(again, (16_000, 3, "out", 12_000)) == [
        (12_000, 16_000, 1, 3),
        (12_000, NEVER, -1, 3),
    ]


@pytest.mark.parametrize(
    ("late", "ended"), [("close", [(1_000, 10_000, 1, 1), (1_000, NEVER, -1, 1)]), ("drop", [])]
)
def test_an_end_that_comes_late_ends_the_event_at_the_watermark_or_never(
    tmp_path: Path, late: str, ended: list[Change]
) -> None:
    query = query_of(visits(late), tmp_path)
    reported_by(query, (1_000, 1, "in", None), (2_000, 2, "in", None))
    reported_by(query, (10_000, 3, "in", None))
    # two late points are dropped either way, and so is a late start
    late_rows: list[Row] = [(3_000, 4, "by", None), (4_000, 5, "in", None), (5_000, 6, "by", None)]
    assert reported_by(query, (5_000, 1, "out", 1_000), *late_rows) == ended
    assert query.driver.last is not None
    assert query.driver.last.totals["late"] == 4
    assert reported_by(query, (20_000, 2, "out", 2_000)) == [
        (2_000, 20_000, 1, 2),
        (2_000, NEVER, -1, 2),
    ]
    query.close()


def test_edges_are_rows_of_a_group() -> None:
    stream = Events(FromSource(COLUMNS), {})
    with pytest.raises(DefinitionError, match=r"groupApply\(keys, lambda group: group.edges"):
        stream.edges("what = 'in'", "what = 'out'", since="since")
    with pytest.raises(DefinitionError, match="not results that may be retracted"):
        stream.groupApply("user", lambda g: g.difference(g).edges("true", "false", since="since"))
    with pytest.raises(DefinitionError, match="late must be 'close' or 'drop'"):
        visits("keep")
    with pytest.raises(DefinitionError, match="since='user' must be a time"):
        stream.groupApply("user", lambda g: g.edges("true", "false", since="user"))
