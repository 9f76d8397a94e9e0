from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bench.cold.cold_zipf import COLUMNS, as_batch, flow_of
from icestream.core.arrays import Ints
from icestream.core.errors import BudgetError
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.process.operator import UserDefined
from icestream.operators.process.per_group import StatefulProcessor
from icestream.runtime.local import LocalExecutor
from icestream.runtime.version.task import ShardReport, ShardTask
from icestream.runtime.work.dataflow.memory_use import MemoryUse
from icestream.testing.sources import StreamShape, batches_of
from tests.fixtures import dataflow_plans as plans
from tests.fixtures.dataflow_plans import RATINGS, SECOND, PlanStream, dataflow
from tests.suites.dataflow_conformance import open_dataflow, small_sizes, stream_of


@pytest.mark.slow
def test_bounded_memory_goes_to_components_that_miss_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[int] = []
    run = LocalExecutor.run

    def noted(self: LocalExecutor, tasks: Sequence[ShardTask]) -> list[ShardReport]:
        given.extend(task.quota for task in tasks)
        return run(self, tasks)

    monkeypatch.setattr(LocalExecutor, "run", noted)
    flow = plans.recommender()
    # half of an equal share is more than the three stores of a component need at least
    budget = 12 << 20
    query = open_dataflow(flow, tmp_path, budget=budget, shards=1)
    reported: list[list[int]] = []
    for batch in batches_of(stream_of(flow, StreamShape(events=900, groups=40, batches=6), 1)):
        given.clear()
        (delivery,) = query.driver.batch(query.next_batch, batch)
        reported.append(list(given))
        assert sum(given) <= budget
        assert delivery.progress["icestream"]["peakMemoryBytes"] <= budget
    alike = budget // flow.jobs
    assert set(reported[0]) == {alike // 2}
    last: Any = query.driver.last
    held = MemoryUse.from_json(last.decisions["holdings"]).of
    most = max(held, key=lambda shard: held[shard].held)
    assert reported[-1][most] > alike
    assert min(reported[-1]) >= alike // 2


def test_a_query_goes_on_with_less_memory(tmp_path: Path) -> None:
    flow = plans.recommender()
    batches = list(batches_of(stream_of(flow, StreamShape(events=200, groups=20, batches=4), 1)))
    query = open_dataflow(flow, tmp_path, budget=24 << 20, shards=1)
    for batch in batches[:2]:
        query.feed(batch)
    query.close()
    query = open_dataflow(flow, tmp_path, budget=5 << 20, shards=1)
    for batch in batches[2:]:
        (delivery,) = query.driver.batch(query.next_batch, batch)
        assert delivery.progress["icestream"]["peakMemoryBytes"] <= 5 << 20


def test_bounded_groups_that_pass_are_neither_opened_nor_written(tmp_path: Path) -> None:
    # events of an instant: all that is made of them is over when the watermark has passed
    total = Aggregate("sum", "rating", "total")

    def best(group: PlanStream) -> PlanStream:
        return group.apply(["item"], lambda item: item.agg(total)).top(1, "total")

    flow = dataflow(PlanStream.of(RATINGS).apply(["user"], best), "changes", slack=0)
    count, dice = 60_000, np.random.default_rng(5)
    times, users = np.arange(count) // 10 * 1_000, dice.integers(0, 3, count)
    columns = [
        pa.array(times).cast(flow.time),
        pa.array(np.zeros(count, dtype=np.int32)),
        *map(pa.array, (users, dice.integers(0, 5_000, count), dice.integers(1, 9, count) / 2)),
    ]
    events = pa.RecordBatch.from_arrays(columns, schema=flow.batch_schema)
    query = open_dataflow(flow, tmp_path, budget=3 << 20, shards=1)
    rows = 0
    for first in range(0, count, 20_000):
        (delivery,) = query.driver.batch(query.next_batch, [[events.slice(first, 20_000)]])
        rows += query.rows([delivery]).num_rows
        cold = delivery.progress["icestream"]["coldState"]
        # those of the last instant may still get more; those of the batch before are gone soon
        assert cold["groups"] <= 2 * (10 + 3)
        assert cold["left"] == cold["demoted"] == 0
    assert rows == len(np.unique(times * 3 + users))


def test_bounded_a_large_request_is_answered_without_a_trace(tmp_path: Path) -> None:
    # a thousand events of a user, in chunks of 32: the groups of 40 items inside the user's are
    # whole in a chunk, so that none of them is stored
    total = Aggregate("sum", "rating", "total")

    def best(group: PlanStream) -> PlanStream:
        return group.apply(["item"], lambda item: item.agg(total)).top(1, "total")

    flow = dataflow(PlanStream.of(RATINGS).apply(["user"], best), "changes", slack=0)
    users, dice = np.arange(3_001) // 1_000, np.random.default_rng(5)
    columns = [
        pa.array((1 + users) * SECOND).cast(flow.time),
        pa.array(np.zeros(len(users), dtype=np.int32)),
        *map(pa.array, (users, np.arange(3_001) % 40, dice.integers(1, 9, 3_001) / 2)),
    ]
    events = pa.RecordBatch.from_arrays(columns, schema=flow.batch_schema)
    with small_sizes(quota=1 << 20, chunk=64):
        query = open_dataflow(flow, tmp_path, budget=2 << 20, shards=1)
        (delivery,) = query.driver.batch(query.next_batch, [[events]])
    cold = delivery.progress["icestream"]["coldState"]
    # the last instant is not over: the group of its one event stays, and what is shown of it
    assert cold["groups"] <= 2
    assert cold["extents"] <= 3
    assert query.rows([delivery]).num_rows == 4


def test_an_aggregate_that_needs_a_whole_group_is_named(tmp_path: Path) -> None:
    total, most = Aggregate("sum", "rating", "total"), Aggregate("mode", "total", "most")
    made = PlanStream.of(RATINGS).window(10_000 * SECOND)
    made = made.apply(["user", "item"], lambda item: item.agg(total))
    flow = dataflow(made.apply(["user"], lambda user: user.agg(most)), "changes", slack=0)
    count = 40_000
    with small_sizes(quota=256 << 10, chunk=512):
        query = open_dataflow(flow, tmp_path, budget=512 << 10, shards=1)
        with pytest.raises(BudgetError, match=r"the step 'aggregate.* needs"):
            query.feed([[_falling(flow, 0, count)]])


def _falling(flow: Any, first: int, count: int) -> pa.RecordBatch:
    """Return ratings of one user, each less than all before."""
    place = np.arange(first, first + count)
    columns = [
        pa.array(place * 1_000).cast(flow.time),
        pa.array(np.zeros(count, dtype=np.int32)),
        pa.array(np.ones(count, dtype=np.int64)),
        pa.array(place),
        pa.array(1e9 - place),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=flow.batch_schema)


@pytest.mark.parametrize("times", [12, pytest.param(100, marks=pytest.mark.slow)])
def test_bounded_groups_of_sixteen_bytes_with_churn(tmp_path: Path, times: int) -> None:
    budget, size = 256 << 10, 10_000
    flow, dice = flow_of("fixed"), np.random.default_rng(0)
    counts = np.zeros(times * budget // 16 + size, dtype=np.int64)
    groups = 0
    with small_sizes(quota=budget, chunk=4096, snapshot=16):
        query = open_dataflow(flow, tmp_path, budget=budget, shards=1)

        def feed(keys: Ints, *, asks: bool) -> tuple[pa.Table, dict[str, Any]]:
            number = query.next_batch
            instants, flags = np.full(len(keys), number), np.full(len(keys), asks)
            ones = np.ones(len(keys), dtype=np.int64)
            batch = as_batch(instants, keys, ones, flags, flow.batch_schema)
            (delivery,) = query.driver.batch(number, [[batch]])
            return query.rows([delivery]), delivery.progress["icestream"]

        while 16 * groups < times * budget:
            fresh = size if groups == 0 else size * 4 // 5
            old = dice.integers(0, max(1, groups), size - fresh)
            keys = np.concatenate([np.arange(groups, groups + fresh), old])
            groups += fresh
            np.add.at(counts, keys, 1)
            _, facts = feed(keys, asks=False)
            assert facts["peakMemoryBytes"] <= budget
            # an outdated entry for each other one at most, and those of groups in the directory
            assert facts["coldState"]["indexed"] <= 2.1 * groups
        asked = np.sort(dice.choice(groups, 2_000, replace=False))
        rows, _ = feed(asked, asks=True)
    rows = rows.sort_by("key")
    assert rows.column("key").to_pylist() == asked.tolist()
    assert rows.column("total").to_pylist() == counts[asked].tolist()


@pytest.mark.slow
def test_bounded_final_aggregates_of_ten_times_the_budget(tmp_path: Path) -> None:
    batches, size, users, budget = 8, 10_000, 4000, 512 << 10
    functions = (Aggregate("count", None, "n"), Aggregate("sum", "rating", "total"))
    ratings = PlanStream.of(RATINGS).window(1000 * SECOND)
    flow = dataflow(ratings.apply(["user"], lambda group: group.agg(*functions)), "append", slack=0)
    dice = np.random.default_rng(3)
    user, rating = dice.integers(0, users, batches * size), dice.integers(1, 9, batches * size) / 2
    columns = [
        pa.array(np.arange(batches * size)).cast(flow.time),
        pa.array(np.zeros(batches * size, dtype=np.int32)),
        *map(pa.array, (user, user, rating)),
    ]
    events = pa.RecordBatch.from_arrays(columns, schema=flow.batch_schema)
    with small_sizes(quota=budget, chunk=4096, snapshot=4):
        query = open_dataflow(flow, tmp_path, budget=budget, shards=1)
        tables, logged = [], []
        for number in range(batches):
            batch = [[events.slice(number * size, size)]]
            (delivery,) = query.driver.batch(query.next_batch, batch)
            facts = delivery.progress["icestream"]
            assert facts["peakMemoryBytes"] <= budget
            logged.append(facts["coldState"]["logged"])
            tables.append(query.rows([delivery]))
        # every event is a row, and alive
        assert batches * size * 8 * 9 >= 10 * budget
        # what is logged is the same, however much is there
        assert logged[-1] - logged[-2] < 1.2 * (logged[2] - logged[1]) < 400 * size
        tables.append(query.flush())
    reported = pa.concat_tables(tables)
    assert sorted(zip(*_stretches(reported), strict=True)) == sorted(
        _running_sums(user.tolist(), rating.tolist(), 1000 * SECOND)
    )


def _stretches(reported: pa.Table) -> list[list[Any]]:
    lifetime = reported.column("lifetime").combine_chunks()
    edges = [lifetime.field(name).cast(pa.int64()).to_pylist() for name in ("start", "end")]
    return [*edges, *(reported.column(name).to_pylist() for name in ("user", "n", "total"))]


def _running_sums(
    users: list[int], ratings: list[float], length: int
) -> Iterator[tuple[int, int, int, int, float]]:
    """Yield what is told of events, one in a microsecond, that all live at once for a while."""
    mine: dict[int, list[int]] = {}
    for instant, user in enumerate(users):
        mine.setdefault(user, []).append(instant)
    for user, instants in mine.items():
        edges = [(t, 1, ratings[t]) for t in instants]
        edges += [(t + length, -1, -ratings[t]) for t in instants]
        n, total = 0, 0.0
        for (start, count, rating), (end, *_) in pairwise(edges):
            n, total = n + count, total + rating
            yield start, end, user, n, total


@pytest.mark.parametrize("kind", ["join", "difference"])
@pytest.mark.parametrize("times", [6, pytest.param(50, marks=pytest.mark.slow)])
def test_bounded_one_group_of_many_times_the_budget(tmp_path: Path, kind: str, times: int) -> None:
    budget, size = 256 << 10, 4_000
    events = PlanStream.of(COLUMNS)
    stored = events.where("NOT asks").select("key", "value").forever()
    asking = events.where("asks").select("key", "value AS wanted").window(SECOND)

    def combined(left: PlanStream, right: PlanStream) -> PlanStream:
        if kind == "difference":
            return left.difference(right)
        right = right.select("key AS asked", "wanted")
        return left.join(right, where="value = wanted", hidden=("asked",))

    flow = dataflow(
        stored.apply(("key",), combined, asking), "changes", columns=(COLUMNS,), slack=0
    )
    dice = np.random.default_rng(3)
    # a row has six words of eight bytes
    values = dice.integers(0, 500, times * budget // 48 // size * size)
    found = np.zeros(500, dtype=np.int64)
    with small_sizes(quota=budget, chunk=4096, snapshot=16):
        query = open_dataflow(flow, tmp_path, budget=budget, shards=1)
        for first in range(0, len(values) + 1, size):
            is_last = first == len(values)
            some = np.array([7]) if is_last else values[first : first + size]
            instants = np.full(len(some), first * SECOND)
            flags = np.full(len(some), fill_value=is_last)
            keys = np.zeros(len(some), dtype=np.int64)
            batch = as_batch(instants, keys, some, flags, flow.batch_schema)
            (delivery,) = query.driver.batch(query.next_batch, [[batch]])
            assert delivery.progress["icestream"]["peakMemoryBytes"] <= budget
            rows = query.rows([delivery])
            np.add.at(found, rows.column("value").to_numpy(), rows.column("change").to_numpy())
    # while the request is alive, the difference is empty
    expected = np.zeros_like(found)
    expected[7] = (values == 7).sum() if kind == "join" else 0
    assert found.tolist() == expected.tolist()


class Remembering(StatefulProcessor):
    """Appends to a list, and adds it up when it is asked."""

    output = "key long, total long"

    def init(self, handle: Any) -> None:
        """Declare the list."""
        self.values = handle.getListState("values", "value long")

    def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Any:  # noqa: N802
        """Add up the list, and append."""
        del timers
        total = sum(value for (value,) in self.values.get()) if any(rows["asks"]) else None
        self.values.appendList([(value,) for value in rows["value"]])
        return None if total is None else [{"key": key[0], "total": total}]


@pytest.mark.parametrize("kind", ["aggregate", "list"])
@pytest.mark.parametrize("times", [3, pytest.param(50, marks=pytest.mark.slow)])
def test_bounded_aggregates_and_lists_of_one_large_group(
    tmp_path: Path, kind: str, times: int
) -> None:
    budget, size, dice = 256 << 10, 4_000, np.random.default_rng(5)
    events, length = PlanStream.of(COLUMNS), 1000 * SECOND
    if kind == "list":
        keys = pa.schema([COLUMNS.field("key")])
        operator = UserDefined(Remembering(), keys, COLUMNS)
        made = events.apply(["key"], lambda group: group.through(operator, "list", grows=True))
    else:
        functions = (Aggregate("sum", "value", "total"), Aggregate("max", "value", "most"))
        made = events.window(length).apply(["key"], lambda group: group.agg(*functions))
    flow = dataflow(made, "append", columns=(COLUMNS,), slack=0)
    # an event has nine words, a value of a list two
    count = times * budget // (72 if kind == "aggregate" else 16) // size * size
    values, tables = dice.integers(0, 1 << 40, count), []
    with small_sizes(quota=budget, chunk=4096, snapshot=16):
        query = open_dataflow(flow, tmp_path, budget=budget, shards=1)
        for first in range(0, count, size):
            some, instants = values[first : first + size], np.arange(first, first + size)
            asks = instants == count - 1
            zeros = np.zeros(size, dtype=np.int64)
            batch = as_batch(instants, zeros, some, asks, flow.batch_schema)
            (delivery,) = query.driver.batch(query.next_batch, [[batch]])
            assert delivery.progress["icestream"]["peakMemoryBytes"] <= budget
            tables.append(query.rows([delivery]))
        tables.append(query.flush())
    found = pa.concat_tables(tables)
    if kind == "list":
        assert found.column("total").to_pylist() == [int(values[:-size].sum())]
        return
    starts = found.column("lifetime").combine_chunks().field("start").cast(pa.int64()).to_numpy()
    order = np.argsort(starts)
    totals = found.column("total").to_numpy()[order]
    most = found.column("most").to_numpy()[order]
    sums = np.cumsum(values)
    assert totals.tolist() == [*sums.tolist(), *(sums[-1] - sums[:-1]).tolist()]
    later = np.maximum.accumulate(values[::-1])[::-1]
    assert most.tolist() == [*np.maximum.accumulate(values).tolist(), *later[1:].tolist()]


class Counting(StatefulProcessor):
    """Counts values in a map, and adds it up when it is asked."""

    output = "key long, total long, one long"

    def init(self, handle: Any) -> None:
        """Declare the map."""
        self.counts = handle.getMapState("counts", "value long", "n long")

    def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Any:  # noqa: N802
        """Put values, or add up the map."""
        del timers
        if any(rows["asks"]):
            total = sum(n for (n,) in self.counts.values())
            return [{"key": key[0], "total": total, "one": self.counts.getValue((7,))[0]}]
        for value in rows["value"]:
            self.counts.updateValue((value,), (value % 5,))
        return None


@pytest.mark.parametrize("times", [6, pytest.param(50, marks=pytest.mark.slow)])
def test_bounded_a_map_of_one_large_group(tmp_path: Path, times: int) -> None:
    """Each value is put twice: the map is consolidated on the log."""
    budget, size = 256 << 10, 8_000
    keys = pa.schema([COLUMNS.field("key")])
    operator = UserDefined(Counting(), keys, COLUMNS)
    events = PlanStream.of(COLUMNS)
    made = events.apply(["key"], lambda group: group.through(operator, "map", grows=True))
    flow = dataflow(made, "append", columns=(COLUMNS,), slack=0)
    # an entry has four words
    count = times * budget // 32 // size * size
    values = np.random.default_rng(5).permutation(count)
    tables = []
    with small_sizes(quota=budget, chunk=4096, snapshot=16):
        query = open_dataflow(flow, tmp_path, budget=budget, shards=1)
        for some in [*np.split(np.append(values, values), 2 * count // size), np.array([0])]:
            zeros, asks = np.zeros_like(some), np.full(len(some), len(some) == 1)
            instants = np.full(len(some), query.next_batch * SECOND)
            batch = as_batch(instants, zeros, some, asks, flow.batch_schema)
            (delivery,) = query.driver.batch(query.next_batch, [[batch]])
            assert delivery.progress["icestream"]["peakMemoryBytes"] <= budget
            tables.append(query.rows([delivery]))
        tables.append(query.flush())
    (found,) = pa.concat_tables(tables).to_pylist()
    assert (found["total"], found["one"]) == (int((values % 5).sum()), 7 % 5)


@pytest.mark.parametrize("times", [3, pytest.param(50, marks=pytest.mark.slow)])
def test_bounded_choices_of_one_large_group(tmp_path: Path, times: int) -> None:
    budget, size, length = 256 << 10, 3_000, 1000 * SECOND
    most = Aggregate("max", "value", "most")
    events = PlanStream.of(COLUMNS).window(length)
    made = events.apply(["key"], lambda group: group.agg(most))
    flow = dataflow(made, "changes", columns=(COLUMNS,), slack=0)
    # an event has seven words
    count = times * budget // 56 // size * size
    values = np.random.default_rng(5).integers(0, 1 << 40, count)
    found: Counter[tuple[int, int, int]] = Counter()
    with small_sizes(quota=budget, chunk=4096, snapshot=16):
        query = open_dataflow(flow, tmp_path, budget=budget, shards=1)
        for first in range(0, count, size):
            some, instants = values[first : first + size], np.arange(first, first + size)
            zeros = np.zeros(size, dtype=np.int64)
            batch = as_batch(instants, zeros, some, zeros.astype(np.bool_), flow.batch_schema)
            (delivery,) = query.driver.batch(query.next_batch, [[batch]])
            assert delivery.progress["icestream"]["peakMemoryBytes"] <= budget
            rows = query.rows([delivery])
            lifetime = rows.column("lifetime").combine_chunks()
            edges = (lifetime.field(each).cast(pa.int64()).to_pylist() for each in ("start", "end"))
            columns = (rows.column(each).to_pylist() for each in ("most", "change"))
            for start, end, value, change in zip(*edges, *columns, strict=True):
                found[start, end, value] += change
    later = np.maximum.accumulate(values[::-1])[::-1]
    answers = np.concatenate([np.maximum.accumulate(values), later[1:]])
    instants = np.append(np.arange(count), length + np.arange(count - 1))
    fresh = np.flatnonzero(np.diff(answers, prepend=-1))
    ends = np.append(instants[fresh[1:]], length + count - 1)
    expected = zip(instants[fresh].tolist(), ends.tolist(), answers[fresh].tolist(), strict=True)
    assert sorted(key for key, change in found.items() if change) == sorted(expected)
    assert set(found.values()) <= {0, 1}


@pytest.mark.parametrize("kind", ["max", "top"])
@pytest.mark.parametrize("times", [6, pytest.param(50, marks=pytest.mark.slow)])
def test_bounded_a_large_group_of_which_events_are_retracted(
    tmp_path: Path, kind: str, times: int
) -> None:
    """One group of all values; each batch retracts the best quarter of those there."""
    budget, size = 512 << 10, 4_000 if times == 6 else 32_000
    events = PlanStream.of(COLUMNS)
    stored = events.where("NOT asks").select("key", "value").forever()
    asking = events.where("asks").select("value").forever()
    left = stored.apply(("value",), lambda left, right: left.difference(right), asking)
    functions = (Aggregate("max", "value", "value"), Aggregate("count", None, "n"))
    made = left.apply(
        ("key",), lambda group: group.agg(*functions) if kind == "max" else group.top(2, "value")
    )
    flow = dataflow(made, "changes", columns=(COLUMNS,), slack=0)
    # an event has seven words
    count = 2 * times * budget // 3 // 56 // size * size
    values = np.random.default_rng(5).permutation(count)
    found: Counter[tuple[int, int | None, int]] = Counter()
    alive = np.zeros(count, dtype=np.bool_)
    answers: list[list[int]] = []
    with small_sizes(quota=budget // 2, chunk=4096, snapshot=16):
        query = open_dataflow(flow, tmp_path, budget=budget, shards=1)
        for number, some in enumerate(np.split(values, count // size)):
            best = np.flatnonzero(alive)[::-1][: size // 4]
            alive[some], alive[best] = True, False
            answers.append(np.flatnonzero(alive)[::-1][: 1 if kind == "max" else 2].tolist())
            both, asks = np.append(some, best), np.repeat([False, True], [len(some), len(best)])
            zeros, instants = np.zeros_like(both), np.full(len(both), number * SECOND)
            batch = as_batch(instants, zeros, both, asks, flow.batch_schema)
            (delivery,) = query.driver.batch(query.next_batch, [[batch]])
            assert delivery.progress["icestream"]["peakMemoryBytes"] <= budget
            rows = query.rows([delivery])
            lifetime = rows.column("lifetime").combine_chunks()
            edges = (lifetime.field(each).cast(pa.int64()).to_pylist() for each in ("start", "end"))
            columns = (rows.column(each).to_pylist() for each in ("value", "change"))
            for start, end, value, change in zip(*edges, *columns, strict=True):
                found[start, end, value] += change
    for number, expected in enumerate(answers):
        at = number * SECOND
        now = [v for (le, re, v), n in found.items() for _ in range(n) if le <= at < (re or at + 1)]
        assert sorted(now, reverse=True) == expected
