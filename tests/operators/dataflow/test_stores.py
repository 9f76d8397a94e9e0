from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

from icestream.operators.dataflow.stores import ColdOptions, ShardStores
from icestream.plan.events.dataflow import Dataflow
from icestream.runtime.local import LocalExecutor, LocalQuery
from icestream.runtime.version.task import ShardReport, ShardTask
from icestream.runtime.work.dataflow.work import DataflowWork
from icestream.state.files import LocalFiles
from icestream.state.groups.cold.manager import Policy
from icestream.state.groups.extents import NUMBERS
from icestream.state.log.reader import SegmentReader
from icestream.state.versions.commits import BASE, SEGMENTS, VersionStore
from icestream.testing.sources import SECOND, StreamShape, batches_of
from tests.fixtures import dataflow_plans as plans
from tests.fixtures.dataflow_plans import RATINGS, PlanStream, dataflow
from tests.suites.dataflow_conformance import open_dataflow, small_sizes, stream_of

MANY = StreamShape(events=1500, batches=6, groups=400)


def groupings_of(flow: Dataflow) -> set[int]:
    return {number for number, kept in enumerate(flow.specs[0].groupings) if kept}


def test_crash_groupings_come_back_together(tmp_path: Path) -> None:
    flow = plans.nested()
    root = tmp_path / "checkpoint"
    with small_sizes():
        query = open_dataflow(flow, tmp_path)
        taken = 0
        for batch in batches_of(stream_of(flow, replace(MANY, batches=8), 1)):
            query.feed(batch)
            commit = VersionStore(LocalFiles(), str(root)).load(_last(query))
            for shard, base in enumerate(commit.bases):
                if base == commit.version:
                    taken += 1
                    assert _saved(root, query, shard) == groupings_of(flow)
    assert taken >= 4


def _last(query: LocalQuery) -> int:
    assert query.driver.last is not None
    return query.driver.last.version


def _saved(root: Path, query: LocalQuery, shard: int) -> set[int]:
    """Return which groupings have a snapshot in the last version of a shard."""
    assert query.driver.last is not None
    found: set[int] = set()
    for each in query.driver.last.added:
        if each.shard == shard and each.lifetime == BASE:
            path = f"{root}/{SEGMENTS}/{each.info.name}"
            with closing(SegmentReader(LocalFiles(), path)) as reader:
                rows = reader.directory
                found |= set(rows["operator"][rows["synopsis"] == NUMBERS].tolist())
    return found


def test_bounded_groupings_share_the_quota(tmp_path: Path) -> None:
    flow, budget = plans.nested(), 3 * (160 << 10)
    with small_sizes(quota=budget, chunk=256):
        query = open_dataflow(flow, tmp_path, budget=budget, shards=1)
        cold: dict[str, int] = {}
        for batch in batches_of(stream_of(flow, MANY, 2)):
            (delivery,) = query.driver.batch(query.next_batch, batch)
            facts = delivery.progress["icestream"]
            assert facts["peakMemoryBytes"] <= budget
            assert facts["stateMemoryBytes"] <= budget
            cold = facts["coldState"]
    assert cold["left"] > 0
    assert cold["returned"] > 0
    assert cold["logged"] > 0


@pytest.mark.parametrize("budget", [3 * (160 << 10), 64 << 20])
def test_bounded_work_follows_what_is_free(tmp_path: Path, budget: int) -> None:
    flow, lent = plans.nested(), []
    balance = ShardStores._balance

    def balanced(self: ShardStores) -> None:
        balance(self)
        stores = list(self._stores.values())
        heap = stores[0].heap
        free = self._pool - heap.bytes - sum(store.directory.bytes for store in stores)
        more = sum(store.memory.work - store._work for store in stores)
        grown = max(0, heap.limit - heap.bytes) if heap.limit > self._pool // 4 else 0
        for store in stores:
            if store.directory.limit > store.least_directory:
                grown += store.directory.limit - store.directory.bytes
        assert more + grown <= max(0, free)
        lent.append(more)

    with small_sizes(quota=budget, chunk=256), mock.patch.object(ShardStores, "_balance", balanced):
        query = open_dataflow(flow, tmp_path, budget=budget, shards=1)
        for batch in batches_of(stream_of(flow, MANY, 2)):
            query.feed(batch)
    assert max(lent) > (budget // 8 if budget > 1 << 20 else 0)


def wide(mode: str = "changes") -> Dataflow:
    """Pair everything that a user did with a request of the user: state is all that was done."""
    done = pa.schema([("user", pa.int64()), ("what", pa.string())])
    asked = pa.schema([("user", pa.int64())])

    def answers(requests: PlanStream, all_done: PlanStream) -> PlanStream:
        return (
            requests.select("user AS asking")
            .select("asking", "asking AS user")
            .join(all_done.select("user AS doing", "what"), hidden=["doing", "user"])
        )

    requests, all_done = PlanStream.of(asked), PlanStream.of(done, 1).forever()
    return dataflow(requests.apply(["user"], answers, all_done), mode, (asked, done))


def test_bounded_state_of_ten_times_the_quota(tmp_path: Path) -> None:
    flow, budget, users, times = wide(), 256 << 10, 100, 14
    text = "x" * 2000
    with small_sizes(quota=budget, chunk=1024):
        query = open_dataflow(flow, tmp_path, budget=budget, shards=1)
        left = 0
        for number in range(times):
            (delivery,) = query.driver.batch(number, [[_done(flow, number, users, text)]])
            facts = delivery.progress["icestream"]
            assert facts["peakMemoryBytes"] <= budget
            left = facts["coldState"]["left"]
        state = facts["logBytes"]
        rows = query.feed([[_asked(flow, times, [3, 77, 99])]])
    assert state >= 10 * budget
    assert left > 0
    assert rows.num_rows == 3 * times
    assert sorted(set(rows.column("asking").to_pylist())) == [3, 77, 99]
    assert set(rows.column("what").to_pylist()) == {f"{n} {text}" for n in range(times)}


def _done(flow: Dataflow, number: int, users: int, text: str) -> pa.RecordBatch:
    times = np.full(users, number * SECOND)
    columns = {
        "s0_0": pa.nulls(users, pa.int64()),
        "s1_0": pa.array(np.arange(users)),
        "s1_1": pa.array([f"{number} {text}"] * users),
    }
    return _batch(flow, times, 1, columns)


def _asked(flow: Dataflow, number: int, users: list[int]) -> pa.RecordBatch:
    times = np.full(len(users), number * SECOND)
    columns = {
        "s0_0": pa.array(users),
        "s1_0": pa.nulls(len(users), pa.int64()),
        "s1_1": pa.nulls(len(users), pa.string()),
    }
    return _batch(flow, times, 0, columns)


def _batch(
    flow: Dataflow, times: np.ndarray[tuple[int], np.dtype[np.int64]], source: int,
    columns: dict[str, pa.Array],
) -> pa.RecordBatch:  # fmt: skip
    head = [pa.array(times).cast(flow.time), pa.array(np.full(len(times), source, np.int32))]
    return pa.RecordBatch.from_arrays([*head, *columns.values()], schema=flow.batch_schema)


@pytest.mark.parametrize(
    "policy",
    [
        Policy(threshold=0.5, free=0.5, k=16),
        Policy(classifier="lfu"),
    ],
    ids=["early", "lfu"],
)
def test_any_policy_gives_the_same_rows(tmp_path: Path, policy: Policy) -> None:
    flow = plans.running_aggregate()
    items = stream_of(flow, MANY, 3)
    tables = []
    for name, cold in (("usual", ColdOptions()), ("other", ColdOptions(policy=policy))):
        with small_sizes(quota=160 << 10, chunk=256):
            chosen = replace(flow, cold=cold)
            query = open_dataflow(chosen, tmp_path / name, budget=160 << 10, shards=1)
            rows = [query.feed(batch) for batch in batches_of(items)]
        tables.append(sorted(map(repr, pa.concat_tables(rows).to_pylist())))
    assert tables[0] == tables[1]


def test_a_component_without_state_needs_no_store(tmp_path: Path) -> None:
    kept = PlanStream.of(RATINGS).apply(["user"], lambda group: group.where("rating > 3"))
    flow = dataflow(kept, "append")
    items = stream_of(flow, StreamShape(events=60, batches=3), 4)
    with small_sizes():
        query = open_dataflow(flow, tmp_path)
        rows = [query.feed(batch) for batch in batches_of(items)]
        query = open_dataflow(flow, tmp_path)
        rows.append(query.flush())
    given = pa.concat_tables([pa.Table.from_batches(s) for b in batches_of(items) for s in b])
    expected = [x for x in given.column("s0_2").to_pylist() if x is not None and x > 3]
    assert sorted(pa.concat_tables(rows).column("rating").to_pylist()) == sorted(expected)


def test_stores_go_on_in_the_quota_they_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[ShardReport] = []
    run = LocalExecutor.run

    def noted(self: LocalExecutor, tasks: Sequence[ShardTask]) -> list[ShardReport]:
        reports[:] = run(self, tasks)
        return list(reports)

    monkeypatch.setattr(LocalExecutor, "run", noted)
    flow = plans.nested()
    batches = list(batches_of(stream_of(flow, MANY, 3)))
    query = open_dataflow(flow, tmp_path, budget=64 << 20, shards=1)
    for batch in batches[:-1]:
        query.feed(batch)
    needed = reports[0].statistics["needed_bytes"]
    assert needed < 32 << 20
    monkeypatch.setattr(DataflowWork, "_quotas", lambda *_: [needed])
    query.feed(batches[-1])
    assert reports[0].statistics["memory_bytes"] <= needed
    assert not reports[0].rebuilt


def test_a_large_group_is_answered_whatever_was_lent(tmp_path: Path) -> None:
    flow, budget, text = wide(), 1 << 20, "x" * 4000

    def answers(folder: Path) -> int:
        with small_sizes(quota=budget, chunk=1024):
            query = open_dataflow(flow, folder, budget=budget, shards=1)
            query.feed([[pa.concat_batches([_done(flow, 0, 1, text)] * 120)]])
            return len(query.feed([[_asked(flow, 1, [0])]]))

    with mock.patch.object(ShardStores, "take_back", return_value=None):
        assert answers(tmp_path / "without") == 120
    assert answers(tmp_path / "with") == 120
