from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from icestream.api.events import Events
from icestream.core.errors import DefinitionError, InputError
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


def visits() -> Events:
    stream = Events(FromSource(COLUMNS), {})
    return stream.groupApply(
        "user", lambda g: g.edges("what = 'in'", "what = 'out'", since="since").select("user")
    )


def query_of(events: Events, home: Path) -> LocalQuery:
    plan = compiled(((events._node, "update"),), {0: 0}, (Source("s", 0),), (COLUMNS,), TIME)
    return LocalQuery(plan, Settings(str(home / "checkpoint"), str(home / "local"), 64 << 20))


def reported_by(query: LocalQuery, *rows: Row) -> list[Change]:
    time, user, what, since = zip(*rows, strict=True)
    source = np.zeros(len(rows), dtype=np.int32)
    columns = [time, source, user, what, since]
    schema = query.plan.batch_schema
    arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    reported = query.feed([[batch]])
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


def test_an_end_without_a_start_is_reported(tmp_path: Path) -> None:
    query = query_of(visits(), tmp_path)
    reported_by(query, (10_000, 1, "in", None))
    with pytest.raises(InputError, match="end edges have no start"):
        reported_by(query, (15_000, 1, "out", 9_000))
    query.close()


def test_edges_are_rows_of_a_group() -> None:
    stream = Events(FromSource(COLUMNS), {})
    with pytest.raises(DefinitionError, match=r"groupApply\(keys, lambda group: group.edges"):
        stream.edges("what = 'in'", "what = 'out'", since="since")
    with pytest.raises(DefinitionError, match="not results that may be retracted"):
        stream.groupApply("user", lambda g: g.difference(g).edges("true", "false", since="since"))
    with pytest.raises(DefinitionError, match="since='user' must be a time"):
        stream.groupApply("user", lambda g: g.edges("true", "false", since="user"))
