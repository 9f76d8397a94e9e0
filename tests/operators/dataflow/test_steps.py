from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from icestream.operators.dataflow.steps import (
    Emit,
    Filtering,
    Map,
    Merge,
    Projecting,
    Receive,
    Step,
    consumers,
    regrouped,
)
from icestream.operators.folding.fold import ID_HIGH_COLUMN, ID_LOW_COLUMN
from icestream.operators.lifetimes.changes import HEAD, changes_of, payload_of
from icestream.sql.expressions.compile import Predicate, Projection
from icestream.state.keys import identified
from tests.fixtures import dataflow_plans as plans

PAYLOAD = pa.schema([("k", pa.int64()), ("name", pa.string())])


def changes(keys: list[int | None]) -> pa.RecordBatch:
    count = len(keys)
    payload = pa.record_batch([pa.array(keys, pa.int64()), [f"n{key}" for key in keys]], PAYLOAD)
    ones, nobody = np.ones(count, dtype=np.int64), np.zeros(count, dtype=np.uint64)
    bare = changes_of(payload, np.arange(count), np.arange(count) + 5, ones, nobody, nobody)
    return regrouped(bare, ("k",))


def test_steps_come_after_their_inputs() -> None:
    for make in (plans.recommender, plans.nested, plans.united, plans.difference):
        for steps in make().components:
            assert all(before < number for number, s in enumerate(steps) for before in s.inputs)
    receive = Receive(0, PAYLOAD)
    wrong: tuple[Step, ...] = (Emit((1,), PAYLOAD, 0, 0), receive)
    with pytest.raises(AssertionError, match="step 0 reads changes of step 1"):
        consumers(wrong)


def test_consumers_know_the_port_they_take_changes_on() -> None:
    steps: tuple[Step, ...] = (
        Receive(0, PAYLOAD),
        Map((0,), PAYLOAD, 0, lambda batch: batch, "same"),
        Merge((1, 0), PAYLOAD, 0),
        Emit((2,), PAYLOAD, 0, 0),
    )
    assert consumers(steps) == (((1, 0), (2, 1)), ((2, 0),), ((3, 0),), ())


def test_changes_are_regrouped_by_the_identity_of_columns() -> None:
    found = changes([3, None, 3, 4])
    again = regrouped(found, ("name", "k"))
    id_high, id_low = identified(payload_of(found), ("name", "k"))
    assert again.column(ID_HIGH_COLUMN).to_numpy().tolist() == id_high.tolist()
    assert again.column(ID_LOW_COLUMN).to_numpy().tolist() == id_low.tolist()
    assert payload_of(again).equals(payload_of(found))
    first = found.column(ID_HIGH_COLUMN).to_pylist()
    assert first[0] == first[2]
    assert len(set(first)) == 3


def test_filters_and_projections_leave_lifetimes_alone() -> None:
    found = changes([3, None, 5])
    kept = Filtering(Predicate.bind(PAYLOAD, "k > 3"))(found)
    assert kept.equals(found.slice(2))
    shown = Projecting(Projection.bind(PAYLOAD, ["name", "k * 2 AS twice"]))(found)
    assert shown.schema.names[len(HEAD) :] == ["name", "twice"]
    assert shown.column("twice").to_pylist() == [6, None, 10]
    assert shown.columns[: len(HEAD)] == found.columns[: len(HEAD)]
