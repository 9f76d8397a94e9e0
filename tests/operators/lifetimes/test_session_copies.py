from __future__ import annotations

import pyarrow as pa

from icestream.operators.lifetimes.rows_by_group import located
from icestream.operators.lifetimes.session_copies import SessionCopies
from icestream.plan.windows.session import Session
from tests.oracles.lifetimes import Event, changes_from
from tests.oracles.plain_groups import PlainGroups

PLAIN = pa.schema([("x", pa.string())])
G = (7, 1)


def came(*times: int, diff: int = 1) -> pa.RecordBatch:
    return changes_from([(Event(G, t, t + 1, (str(t),)), diff) for t in times], PLAIN)


def members(*batches: pa.RecordBatch) -> dict[tuple[int, int, str], int]:
    found: dict[tuple[int, int, str], int] = {}
    for batch in batches:
        for row in batch.to_pylist():
            assert (row["__le"], row["__re"]) == (
                row["__window"]["end"] - 1,
                row["__window"]["end"],
            )
            key = (row["__window"]["start"], row["__window"]["end"], row["x"])
            found[key] = found.get(key, 0) + row["__diff"]
    return {key: count for key, count in found.items() if count}


def test_sessions_grow_join_and_break() -> None:
    # gap 10:   0---5---10   20---25-----35          0------------...---35 once 14 is there
    sessions = SessionCopies(PLAIN, Session(10), pa.int64())
    groups = PlainGroups(sessions.synopses)
    groups.begin(0)
    made = list(sessions.on_changes(0, came(0, 5, 25), groups, 0))
    assert members(*made) == {(0, 15, "0"): 1, (0, 15, "5"): 1, (25, 35, "25"): 1}
    made += sessions.on_changes(0, came(15), groups, 0)
    assert set(members(*made)) == {(0, 35, each) for each in ("0", "5", "15", "25")}
    made += sessions.on_changes(0, came(15, diff=-1), groups, 0)
    assert members(*made) == {(0, 15, "0"): 1, (0, 15, "5"): 1, (25, 35, "25"): 1}


def test_bounded_ended_sessions_leave_the_state() -> None:
    sessions = SessionCopies(PLAIN, Session(10), pa.int64())
    groups = PlainGroups(sessions.synopses)
    for start in range(0, 900, 30):
        groups.begin(start)
        list(sessions.on_changes(0, came(start, start + 8), groups, start))
        list(sessions.on_watermark(groups, start + 18))
        groups.begin(start + 18)
        assert groups.read(0, located(came(start), groups)).rows.num_rows == 0
