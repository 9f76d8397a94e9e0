"""Small checkpoints of every kind of state, made without Spark.

Idea: whoever reads, verifies or repairs checkpoints must cope with all of them. Each kind here runs
a few batches of few events, over two shards, and leaves versions to go back to, late events and
open windows, keys that wait, partitions that owe.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from icestream.operators.aggregates import Aggregate
from icestream.operators.jobs.batches import TupleBatch
from icestream.operators.ordered.frame import Frame
from icestream.operators.session.spec import Session
from icestream.operators.updates.fronts import Arriving, Joined, Merged, columns_of
from icestream.operators.updates.step import UpdateStep
from icestream.operators.updates.streams import UpdateStream
from icestream.operators.updates.window_serving import WindowedBy
from icestream.plan.jobs.building import JobWindow
from icestream.plan.nodes import Computation, Source
from icestream.plan.updates import Latest, Updates
from icestream.runtime.local import LocalQuery, Splits
from icestream.runtime.versions.settings import Settings
from icestream.state.update_queue.windows.spec import UpdateWindows
from icestream.testing.stories.dataflow_plans import (
    SECOND,
    best,
    dataflow,
    running_aggregate,
    self_join,
    user_defined,
)
from icestream.testing.stories.job_plans import job_dataflow, tuples_of
from icestream.testing.stories.join_plans import SCHEMAS, deferred, sources
from icestream.testing.stories.plans import INSTANT, QuickFiles, window_plan

_COUNT = Aggregate("count", None, "n")
_SUM = Aggregate("sum", "value", "total")
_LARGEST = Aggregate("max", "value", "largest")


@dataclass(frozen=True)
class Kind:
    """One kind of state: its plan, and the codec of its log."""

    plan: Callable[[], Computation]
    codec: str | None = None


def _updates() -> Updates:
    columns = pa.schema([("key", pa.int64()), ("value", pa.float64())])
    step = UpdateStep(_same, columns, columns, ("key",))
    source = Source("s", 5 * SECOND)
    return Updates((source,), columns, INSTANT, (step,), Latest(("key",)), budget=0)


def _update_trees(*, windows: bool) -> Updates:
    """Return a union of two streams, joined with a third; matches wait, or windows over them."""
    streams = [
        UpdateStream(
            pa.schema([("at", INSTANT), ("key", pa.int64()), (name, pa.int64())]), ("key",), "at"
        )
        for name in ("a", "a", "b")
    ]
    inputs = [Arriving((number,), stream) for number, stream in enumerate(streams)]
    front = Joined(Merged((inputs[0], inputs[1]), (1, 0)), inputs[2], 3 * SECOND)
    columns, windowed = front.stream.schema, None
    if windows:
        answers = (_COUNT, Aggregate("sum", "a", "total"))
        spec = UpdateWindows(4 * SECOND, 2 * SECOND, "lazy")
        windowed = WindowedBy(columns, ("key",), "at", spec, answers, ("key", "b"))
        columns = windowed.operator("inplace").result.schema
    return Updates(
        tuple(Source(name, 5 * SECOND) for name in ("one", "two", "three")),
        columns_of(front),
        INSTANT,
        (UpdateStep(_same, columns, columns, ("key",)),),
        Latest(("key",)),
        budget=0,
        front=front,
        windowed=windowed,
    )


def _same(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows


def _joins() -> Computation:
    a, b = sources(60 * SECOND, 2)
    joined = deferred(a, b, on=[("a1", "b1")])
    return dataflow(joined, "append", SCHEMAS[:2])


def _jobs() -> Computation:
    columns = pa.schema([("area", pa.int64()), ("amount", pa.float64())])
    states = tuples_of(columns).compute(
        _added,
        key="area",
        initial={"n": 0, "total": 0.0},
        window=JobWindow("20 seconds", "5 seconds"),
        vectorised=True,
        name="added",
    )
    return job_dataflow(states, columns=[columns], slack=5 * SECOND)


def _added(state: dict[str, Any], tuples: TupleBatch) -> list[Any]:
    return [state["n"] + tuples.sizes, state["total"] + tuples.reduce(np.add, "amount")]


KINDS: Mapping[str, Kind] = {
    "windows": Kind(lambda: window_plan("20 seconds", "5 seconds", late="keep")),
    "tumbling": Kind(lambda: window_plan("10 seconds", aggregates=[_COUNT, _SUM]), "lz4"),
    "events": Kind(
        lambda: window_plan("20 seconds", "5 seconds", aggregates=[_COUNT], store="tuples"), "zstd"
    ),
    "objects": Kind(
        lambda: window_plan(
            "20 seconds", "5 seconds", aggregates=[Aggregate("collect_list", "value", "values")]
        )
    ),
    "rows": Kind(lambda: window_plan(windows=Frame(rows=3), aggregates=[_COUNT, _SUM, _LARGEST])),
    "ranges": Kind(lambda: window_plan(windows=Frame(range=9 * SECOND), aggregates=[_COUNT, _SUM])),
    "sessions": Kind(lambda: window_plan(windows=Session(4 * SECOND), aggregates=[_COUNT, _SUM])),
    "groups": Kind(running_aggregate),
    "pairs": Kind(self_join, "lz4"),
    "best": Kind(best),
    "processors": Kind(user_defined),
    "jobs": Kind(_jobs),
    "joins": Kind(_joins),
    "updates": Kind(_updates),
    "update joins": Kind(partial(_update_trees, windows=False)),
    "update windows": Kind(partial(_update_trees, windows=True), "lz4"),
}


def events(plan: Computation, batch: int, count: int = 40, keys: int = 6) -> Splits:
    """Return a batch of events of all sources; a few come late."""
    dice = np.random.default_rng(batch)
    splits = []
    for source in range(len(plan.sources)):
        times = np.sort(dice.integers(batch * 8 * SECOND, (batch + 1) * 8 * SECOND, count))
        if batch > 2:
            times[:2] -= 60 * SECOND
        columns = [pa.array(times).cast(plan.time), pa.array(np.full(count, source, np.int32))]
        for field in list(plan.batch_schema)[2:]:
            values = times if field.type == plan.time else dice.integers(0, keys, count)
            columns.append(pa.array(values).cast(field.type))
        splits.append([pa.RecordBatch.from_arrays(columns, schema=plan.batch_schema)])
    return splits


def opened(kind: str, folder: str, *, keep: int = 3) -> LocalQuery:
    """Open the query of a kind whose checkpoint is `folder/checkpoint`."""
    chosen = KINDS[kind]
    settings = Settings(
        root=os.path.join(folder, "checkpoint"),
        local=os.path.join(folder, "local"),
        budget=32 << 20,
        shards=2,
        keep=keep,
        codec=chosen.codec,
    )
    return LocalQuery(chosen.plan(), settings, QuickFiles())


def make(kind: str, folder: str, batches: int = 5) -> str:
    """Run a few batches of a kind; return its checkpoint."""
    query = opened(kind, folder)
    for batch in range(batches):
        query.feed(events(query.plan, batch))
    query.close()
    return os.path.join(folder, "checkpoint")


__all__ = ["KINDS", "Kind", "events", "make", "opened"]
