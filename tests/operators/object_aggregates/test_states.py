"""Tables of states beside dicts of groups."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.folding.fold import ID_HIGH_COLUMN, ID_LOW_COLUMN
from icestream.operators.object_aggregates.states import ObjectSpec, States
from icestream.plan.windows.grid import Windows
from icestream.state.keys import KeyCodec

KEYS = pa.schema([("k0", pa.string())])
SPEC = ObjectSpec(
    (
        Aggregate("sum", "x0", "sum"),
        Aggregate("collect_list", "x0", "all"),
        Aggregate("count", None, "n"),
    ),
    KEYS,
    pa.schema([("x0", pa.int64())]),
    Windows(10, 1),
)

Event = tuple[int, str, int]
EVENTS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abcd"), st.integers(0, 9)))


def tuples(events: list[Event]) -> pa.RecordBatch:
    """Make tuples of (time, key, value)."""
    keys = pa.record_batch([pa.array([e[1] for e in events], pa.string())], schema=KEYS)
    id_high, id_low = KeyCodec(KEYS).identify(keys)
    return pa.record_batch(
        [
            pa.array([e[0] for e in events], pa.int64()),
            pa.array(id_high),
            pa.array(id_low),
            keys.column(0),
            pa.array([e[2] for e in events], pa.int64()),
        ],
        names=["time", ID_HIGH_COLUMN, ID_LOW_COLUMN, "k0", "x0"],
    )


def obvious(events: list[Event]) -> dict[tuple[int, str], list[int]]:
    grouped: dict[tuple[int, str], list[int]] = {}
    for time, key, value in events:
        grouped.setdefault((time // 2, key), []).append(value)
    return grouped


@given(EVENTS.filter(len))
def test_oracle_lifted_rows_are_sorted_and_one_per_group(events: list[Event]) -> None:
    states = States(SPEC)
    batch = tuples(sorted(events, key=lambda e: e[0]))
    panes, rows = states.lift(batch, np.asarray(batch.column(0)) // 2)
    check(states, panes.tolist(), rows, events)


@given(st.lists(EVENTS.filter(len), min_size=1, max_size=4), st.integers(1, 400))
def test_oracle_combined_rows_are_sorted_and_one_per_group(
    batches: list[list[Event]], size: int
) -> None:
    """Rows are cut, written and read between lifting and combining."""
    states = States(SPEC)
    parts: list[tuple[int, pa.RecordBatch]] = []
    for events in batches:
        batch = tuples(events)
        panes, rows = states.lift(batch, np.asarray(batch.column(0)) // 2)
        for pane in np.unique(panes).tolist():
            mine = rows.filter(pa.array(panes == pane))
            cut = [states.read(bytes(states.write(part))) for part in states.parts(mine, size)]
            parts += [(pane, part) for part in cut]
    targets = np.repeat([pane for pane, _ in parts], [part.num_rows for _, part in parts])
    found, rows = states.combine(targets, pa.concat_batches([part for _, part in parts]))
    whole = [event for events in batches for event in events]
    check(states, found.tolist(), rows, sorted(whole, key=lambda e: e[0]))


def check(states: States, panes: list[int], rows: pa.RecordBatch, events: list[Event]) -> None:
    entries = states.entries(rows).table
    ids = [
        (pane, int(id_high) % 2**64, int(id_low) % 2**64)
        for pane, (id_high, id_low) in zip(panes, entries[:, :2].tolist(), strict=True)
    ]
    assert ids == sorted(set(ids))
    sums, lists, counts = (answer.to_pylist() for answer in states.lower(rows))
    (keys,) = states.keys(rows)
    expected = obvious(sorted(events, key=lambda e: e[0]))
    found = dict(zip(zip(panes, keys.to_pylist(), strict=True), lists, strict=True))
    assert found == expected
    assert sums == [sum(each) for each in lists]
    assert counts == [len(each) for each in lists]


def test_rows_inside_a_range_of_id_high() -> None:
    states = States(SPEC)
    batch = tuples([(0, key, 1) for key in "abcd"])
    _, rows = states.lift(batch, np.zeros(4, dtype=np.int64))
    high_words = [int(id_high) % 2**64 for id_high in states.entries(rows).table[:, 0].tolist()]
    assert states.ends(rows) == (high_words[0], high_words[-1])
    inside = states.inside(rows, high_words[1], high_words[2] + 1)
    assert states.ends(inside) == (high_words[1], high_words[2])
    assert states.inside(rows, high_words[3] + 1, 2**64).num_rows == 0
