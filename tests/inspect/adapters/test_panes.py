from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from icestream.core.errors import DefinitionError
from icestream.inspect.access.checkpoint import Checkpoint
from icestream.inspect.adapters.window_parts import PANE, PaneState, instants_of
from icestream.inspect.state_rows import Reading
from icestream.plan.nodes.queries import Plan
from icestream.plan.windows.grid import Cumulative
from icestream.testing.sources import SECOND, StreamShape, batches_of, generate
from tests.fixtures.checkpoints import events, make
from tests.fixtures.other_events import kept_rows
from tests.fixtures.plans import EVERY_INPUT, open_query, window_plan

panes = partial(kept_rows, kept="panes")
FIELDS = ["__rows()", "__sum_f64(value)", "__min(value)", "__max(value)"]


def test_oracle_panes_are_what_events_fold_to(tmp_path: Path) -> None:
    """Panes of 5 s; the watermark is at 33 s and more, so windows of 20 s begin at 15 s."""
    root = make("windows", str(tmp_path))
    plan = Checkpoint(root).state_schema
    assert isinstance(plan, Plan)
    [_, _, *columns] = panes(root).column_names
    assert columns[:2] == [PANE, "key"]
    watermark = Reading(root).commit.watermark
    first = (watermark // (5 * SECOND) - 3) * 5 * SECOND
    folded: dict[tuple[int, int], list[float]] = {}
    seen = 0
    for batch in range(5):
        for [split] in events(plan, batch):
            for row in split.to_pylist():
                at = int(row["time"].timestamp() * 1e6)
                pane = at // (5 * SECOND) * 5 * SECOND
                if pane >= first:
                    folded.setdefault((pane, row["k0"]), []).append(row["value"])
                    seen += 1
    assert seen > 40
    expected = {place: [float(len(v)), sum(v), min(v), max(v)] for place, v in folded.items()}
    found = panes(root)
    at = found.column(PANE).cast(pa.int64()).to_pylist()
    places = list(zip(at, found.column("key").to_pylist(), strict=True))
    values = zip(*(found.column(name).to_pylist() for name in FIELDS), strict=True)
    assert Counter(places) == Counter(list(expected))
    assert {place: list(map(float, row)) for place, row in zip(places, values, strict=True)} == (
        expected
    )


def test_panes_are_read_only_where_they_are_asked_for(tmp_path: Path) -> None:
    root = make("windows", str(tmp_path))
    assert [table.name for table in Reading(root).tables] == ["open windows"]
    assert any("panes" in note for note in Reading(root).notes)
    one = Reading(root, kept="panes", key={"key": "3"})
    rows = pa.Table.from_batches(list(one.batches()), schema=one.schema)
    assert rows.num_rows == pc.sum(pc.equal(panes(root)["key"], 3)).as_py() > 0
    with pytest.raises(DefinitionError, match="there is no kept 'panes'"):
        _ = Reading(make("events", str(tmp_path / "other")), kept="panes").tables


@pytest.mark.parametrize("shifted", [False, True])
def test_parity_fields_are_shown_and_taken_back(shifted: bool, tmp_path: Path) -> None:
    kind = Cumulative(20 * SECOND, 4 * SECOND) if shifted else None
    plan = window_plan("12 seconds", "4 seconds", inputs=EVERY_INPUT, windows=kind)
    query = open_query(plan, str(tmp_path))
    shape = StreamShape(events=120, batches=3, nulls=0.2, specials=0.05, span=20 * SECOND)
    for batch in batches_of(generate(plan, shape, 5)):
        query.feed(batch)
    query.close()
    reading = Reading(str(tmp_path / "checkpoint"), kept="panes")
    state = PaneState(plan, reading.commit)
    rows = pa.Table.from_batches(list(reading.batches()), schema=reading.schema)
    assert rows.num_rows > 10
    shown = rows.select(state.table.columns.names).combine_chunks().to_batches()[0]
    entries = state.fields.taken(shown)
    assert len(np.unique(entries.table[:, 2:], axis=0)) > 10
    again = state.rows(
        state.spec.grid.panes_of(instants_of(shown)),
        entries,
        pa.Table.from_batches([shown.select(state.spec.keys.names)]),
    )
    assert again.equals(shown) or str(again.to_pylist()) == str(shown.to_pylist())
    np.testing.assert_array_equal(entries.table, state.fields.taken(again).table)
