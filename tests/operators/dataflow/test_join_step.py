from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

from icestream.operators.dataflow import join_step
from icestream.operators.dataflow.component import ComponentOperator
from icestream.operators.dataflow.join_step import JoinInstructions, JoinStores
from icestream.operators.dataflow.spec import ComponentSpec
from icestream.operators.lifetimes.changes import changes_of
from icestream.operators.multi_join.operator import FILL
from icestream.operators.multi_join.spec import JOINED, MERGED
from icestream.plan.events.dataflow import Dataflow
from icestream.state.versions.commits import BASE
from tests.fixtures.dataflow_plans import dataflow
from tests.fixtures.join_plans import SCHEMAS, deferred, sources
from tests.oracles.plain_dataflow import ChangeLists


class RecordingJoin:
    """Says what it was asked for, in order."""

    took_snapshot = False
    released = ()

    def __init__(self, *_: Any) -> None:
        self.calls: list[Any] = []

    def reserve(self, size: int) -> None:
        pass

    def spill(self, partitions: Any) -> int:
        self.calls.append(("spill", partitions.tolist()))
        return 0

    def on_changes(self, port: int, changes: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        self.calls.append(("changes", port, changes.num_rows))
        return iter(())

    def clean_up(self, partitions: Any, *, last: bool, fill: float) -> Iterator[pa.RecordBatch]:
        asked = None if partitions is None else partitions.tolist()
        assert fill == FILL
        self.calls.append(("clean up", asked, last))
        return iter(())

    def forget(self, watermark: int) -> None:
        self.calls.append(("forget", watermark))

    def end_version(self, watermark: int) -> None:
        self.calls.append(("end", watermark))


@pytest.fixture
def flow() -> Dataflow:
    a, b, *_ = sources(None)
    return dataflow(deferred(a, b, on=[("a1", "b1")]), "append", SCHEMAS[:2])


def calls(spec: ComponentSpec, orders: JoinInstructions) -> list[Any]:
    account = SimpleNamespace(
        budget=SimpleNamespace(total=1 << 20), reserve=lambda size: None, held=0
    )
    shard: Any = SimpleNamespace(
        account=account, arena=SimpleNamespace(header={}, bytes=0), seal=lambda lifetime: None
    )
    inputs = ChangeLists()
    rows = pa.RecordBatch.from_arrays([pa.array([1, 2])] * 3, schema=SCHEMAS[1])
    ones, ids = np.ones(2, dtype=np.int64), np.arange(2, dtype=np.uint64)
    inputs.lists[1].append(changes_of(rows, ones, ones, ones, ids, ids))
    assert spec.join is not None
    with mock.patch.object(join_step, "MultiJoin", RecordingJoin):
        stores = JoinStores(spec.join, shard, orders)
    operator = ComponentOperator(spec, shard, stores)
    operator.on_batch(inputs)
    assert list(operator.on_watermark(50)) == []
    found: Any = stores.join
    return list(found.calls)


def test_a_join_spills_first_and_cleans_up_last(flow: Dataflow) -> None:
    orders = JoinInstructions(spill=(3, 4), clean_up=(7,), watermark=40)
    assert calls(flow.specs[0], orders) == [
        ("spill", [3, 4]),
        ("changes", 1, 2),
        ("clean up", [7], False),
        ("forget", 40),
        ("end", 40),
    ]


def test_a_join_may_be_told_to_clean_up_everything_and_to_discard_it(flow: Dataflow) -> None:
    orders = JoinInstructions(clean_up=None, last=True, watermark=40)
    assert ("clean up", None, True) in calls(flow.specs[0], orders)
    assert not any("clean up" in each for each in calls(flow.specs[0], JoinInstructions()))


def test_a_component_with_a_join_has_segments_of_it_and_of_snapshots(flow: Dataflow) -> None:
    assert flow.specs[0].lifetimes == (JOINED, MERGED, BASE)
