from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from icestream.core.arrays import Ids
from icestream.core.times import INFINITY
from icestream.operators.dataflow import component
from icestream.operators.dataflow.transient_groups import TransientGroups, lasting
from icestream.operators.lifetimes.changes import changes_of
from icestream.state.groups.spec import GroupRows, Synopsis
from tests.fixtures.dataflow_plans import RATINGS, PlanStream, dataflow
from tests.oracles.plain_dataflow import ChangeLists, plain_component

KEPT = Synopsis("kept", pa.schema([("x", pa.int64())]))


def changes(*events: tuple[int, int, int]) -> pa.RecordBatch:
    """Return changes of groups that begin and end."""
    id_high, le, re = (np.array(each, dtype=np.int64) for each in zip(*events, strict=True))
    payload = pa.record_batch([pa.array(id_high)], names=["x"])
    ids = id_high.astype(np.uint64)
    return changes_of(payload, le, re, np.ones(len(id_high), np.int64), ids, ids + np.uint64(1))


def test_equal_identities_have_equal_slots() -> None:
    groups = TransientGroups(changes((7, 0, 1), (3, 0, 1), (7, 0, 2), (5, 0, 1)), [KEPT])
    id_high = np.array([5, 7, 7], dtype=np.uint64)
    slots = groups.locate(id_high, id_high + np.uint64(1))
    assert slots[1] == slots[2] != slots[0]
    high, low = groups.identities(slots)
    assert high.tolist() == [5, 7, 7]
    assert low.tolist() == [6, 8, 8]
    assert [part.tolist() for part in groups.portions(np.unique(slots))] == [[1, 2]]


def test_a_passing_group_keeps_nothing() -> None:
    groups = TransientGroups(changes((7, 0, 1)), [KEPT])
    slot, row = np.zeros(1, np.int64), pa.record_batch([pa.array([1])], schema=KEPT.schema)
    assert groups.read(0, slot).rows.num_rows == 0
    assert groups.read_best(0, slot, slot + 1).rows.schema == KEPT.schema
    groups.append(0, slot[:0], row.slice(0, 0))
    groups.remind(slot, slot + INFINITY)
    assert len(groups.due(INFINITY)) == 0
    with pytest.raises(AssertionError, match="1 rows or wake-ups of transient groups"):
        groups.append(0, slot, row)
    with pytest.raises(AssertionError):
        groups.rewrite(0, slot, GroupRows(slot, row))
    with pytest.raises(AssertionError):
        groups.hasten(slot, slot)


def test_all_changes_of_a_group_that_lasts_are_lasting() -> None:
    found = lasting(changes((1, 0, 4), (2, 0, 4), (1, 2, 9)), 5)
    assert found.tolist() == [True, False, True]


def test_groups_that_are_known_or_last_do_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[int] = []

    class Noted(TransientGroups):
        def __init__(self, changes: pa.RecordBatch, synopses: Any) -> None:
            super().__init__(changes, synopses)
            passed.extend(changes.column("user").to_pylist())

    monkeypatch.setattr(component, "TransientGroups", Noted)
    flow = dataflow(PlanStream.of(RATINGS).apply(["user"], lambda group: group.top(1, "rating")))
    operator = plain_component(flow.specs[0])

    def feed(users: list[int], ends: list[int], over: int) -> None:
        inputs = ChangeLists()
        items, ratings = pa.array(users, RATINGS.field("item").type), [2.0] * len(users)
        payload = pa.record_batch([pa.array(users), items, pa.array(ratings)], schema=RATINGS)
        id_high: Ids = np.array(users, dtype=np.uint64)
        begins = np.full(len(users), over - 5)
        ones, re = np.ones(len(users), np.int64), np.array(ends)
        inputs.lists[0] = [changes_of(payload, begins, re, ones, id_high, id_high)]
        operator.on_batch(inputs)
        list(operator.on_watermark(over))

    feed([1, 2, 3], [6, 90, 7], 10)
    assert passed == [1, 3]
    feed([1, 2, 3, 4], [16, 16, 17, 18], 20)
    assert passed == [1, 3, 1, 3, 4]
    # where most groups are known, and where the watermark stays, none pass
    feed([1, 2], [26, 26], 30)
    feed([5], [36], 30)
    assert passed == [1, 3, 1, 3, 4]
