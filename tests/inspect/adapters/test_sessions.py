from __future__ import annotations

from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from icestream.inspect.access.checkpoint import Checkpoint
from icestream.inspect.adapters.window_parts import ENDS, STARTS
from icestream.inspect.state_rows import Reading
from icestream.plan.nodes.queries import Plan
from icestream.testing.sources import SECOND
from tests.fixtures.checkpoints import events, make
from tests.fixtures.other_events import kept_rows

GAP = 4 * SECOND
sessions = partial(kept_rows, kept="sessions")
FIELDS = ["__rows()", "__sum_f64(value)"]


def test_oracle_open_sessions_are_what_events_fold_to(tmp_path: Path) -> None:
    """Events of a group belong together while no pause exceeds 4 s; those of the end are open."""
    root = make("sessions", str(tmp_path))
    plan = Checkpoint(root).state_schema
    assert isinstance(plan, Plan)
    watermark = Reading(root).commit.watermark
    by_key: dict[int, list[tuple[int, float]]] = {}
    for batch in range(5):
        for [split] in events(plan, batch):
            for row in split.to_pylist():
                at = int(row["time"].timestamp() * 1e6)
                if at >= 0:
                    by_key.setdefault(row["k0"], []).append((at, row["value"]))
    expected: list[tuple[int, int, int, int, float]] = []
    for key, found in by_key.items():
        stretch: list[tuple[int, float]] = []
        for at, value in sorted(found):
            if stretch and at > stretch[-1][0] + GAP:
                stretch = []
            stretch.append((at, value))
            end = stretch[-1][0] + GAP
            expected = [e for e in expected if e[:2] != (key, stretch[0][0])]
            expected.append((key, stretch[0][0], end, len(stretch), sum(v for _, v in stretch)))
    expected = sorted(each for each in expected if each[2] > watermark)
    shown = sessions(root)
    columns = ["key", STARTS, ENDS, *FIELDS]
    words = [shown.column(name) for name in columns]
    words[1:3] = [column.cast(pa.int64()) for column in words[1:3]]
    assert sorted(zip(*(column.to_pylist() for column in words), strict=True)) == expected
    assert len(expected) > 3


def test_sessions_are_read_only_where_they_are_asked_for(tmp_path: Path) -> None:
    root = make("sessions", str(tmp_path))
    assert [table.name for table in Reading(root).tables] == ["open sessions"]
    assert any("'sessions'" in note for note in Reading(root).notes)
    one = Reading(root, kept="sessions", key={"key": "3"})
    rows = pa.Table.from_batches(list(one.batches()), schema=one.schema)
    assert rows.num_rows == pc.sum(pc.equal(sessions(root)["key"], 3)).as_py() > 0
