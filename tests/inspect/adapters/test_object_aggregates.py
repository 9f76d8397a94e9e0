from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa

from icestream.inspect.access.checkpoint import Checkpoint
from icestream.inspect.adapters.window_parts import PANE
from icestream.inspect.state_rows import Reading
from icestream.plan.nodes.queries import Plan
from icestream.testing.sources import SECOND
from tests.fixtures.checkpoints import events, make
from tests.fixtures.other_events import kept_rows

PANE_LENGTH = 5 * SECOND
STATE = "__state(values)"


def test_oracle_states_of_panes_are_those_of_their_events(tmp_path: Path) -> None:
    """Panes of 5 s; the watermark is at 33 s and more, so windows of 20 s begin at 15 s."""
    root = make("objects", str(tmp_path))
    plan = Checkpoint(root).state_schema
    assert isinstance(plan, Plan)
    first = (Reading(root).commit.watermark // PANE_LENGTH - 3) * PANE_LENGTH
    expected: dict[tuple[int, int], Counter[tuple[int, float]]] = {}
    for batch in range(5):
        for [split] in events(plan, batch):
            for row in split.to_pylist():
                at = round(row["time"].timestamp() * 1e6)
                place = at // PANE_LENGTH * PANE_LENGTH, row["k0"]
                if place[0] >= first:
                    expected.setdefault(place, Counter())[at, row["value"]] += 1
    shown = kept_rows(root, "panes")
    instants = shown.column(PANE).cast(pa.int64()).to_pylist()
    found = {
        (instant, row["key"]): Counter((each["time"], each["value"]) for each in row[STATE])
        for instant, row in zip(instants, shown.to_pylist(), strict=True)
    }
    assert found == expected
    assert len(found) == shown.num_rows > 10
    assert shown["__rows()"].to_pylist() == [len(row[STATE]) for row in shown.to_pylist()]


def test_panes_of_objects_are_read_only_where_they_are_asked_for(tmp_path: Path) -> None:
    root = make("objects", str(tmp_path))
    assert [table.name for table in Reading(root).tables] == ["open windows"]
    assert any("'panes'" in note for note in Reading(root).notes)
