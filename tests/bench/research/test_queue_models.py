from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from bench.research.queue_models import (
    Continuous,
    UpdateArrivals,
    pull_pull,
    pull_push,
    push_pull,
    push_push,
)
from icestream.state.queue.queue import UpdateQueue
from icestream.state.queue.reader import Dequeued

SCHEMA = pa.schema([("n", pa.int64())])
RESULT = pa.schema([("square", pa.int64())])


def square(rows: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pc.power(rows["n"], 2)], schema=RESULT)


def source() -> Iterator[UpdateArrivals]:
    rng = np.random.default_rng(7)
    for turn in range(6):
        keys = rng.integers(0, 9, 20).astype(np.uint64)
        arrived = np.arange(20) + 100 * turn
        rows = pa.RecordBatch.from_arrays([pa.array(arrived)], schema=SCHEMA)
        yield UpdateArrivals(keys, keys, arrived, rows)


class Application:
    def __init__(self) -> None:
        self.has: dict[int, int] = {}

    def take(self, results: Dequeued) -> None:
        pairs = zip(results.id_high.tolist(), results.rows["square"].to_pylist(), strict=True)
        self.has.update(pairs)


def asked() -> Callable[[], UpdateArrivals | None]:
    arrivals = source()
    return lambda: next(arrivals, None)


@pytest.mark.parametrize("model", ["push-push", "pull-push", "push-pull", "pull-pull"])
def test_every_model_ends_with_the_newest_results(model: str) -> None:
    ticks = itertools.count(1000)
    work = Continuous(UpdateQueue(SCHEMA), square, lambda: next(ticks), size=4)
    application = Application()
    if model == "push-push":
        push_push(source(), work, application.take)
    elif model == "pull-push":
        pull_push(asked(), work, application.take)
    elif model == "push-pull":
        for turn, results in enumerate(push_pull(source(), work, RESULT)):
            if turn % 2:
                application.take(results.take(9, 2000))
    else:
        take = pull_pull(asked(), work, RESULT)
        for _ in range(7):
            application.take(take(9, 2000))
    newest: dict[int, int] = {}
    for arrivals in source():
        newest.update(zip(arrivals.id_high.tolist(), (arrivals.arrived**2).tolist(), strict=True))
    assert application.has == newest
    staleness, _ = (work.queue.staleness(at).application for at in (3000, 4000))
    later = work.queue.staleness(4000).application
    assert later.most == staleness.most
