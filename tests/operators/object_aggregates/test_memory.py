"""What lifting and combining really allocate, beside what the operator reserves for it."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.folding.fold import ID_HIGH_COLUMN, ID_LOW_COLUMN
from icestream.operators.object_aggregates.assembly import BESIDE, COPIES, WORK
from icestream.operators.object_aggregates.states import ObjectSpec, States
from icestream.operators.object_aggregates.user_aggregates import UserAggregate
from icestream.plan.windows.grid import Windows
from icestream.state.keys import KeyCodec

KEYS = pa.schema([("k0", pa.int64())])
INPUTS = pa.schema([("x", pa.float64()), ("t", pa.string())])
COUNT = UserAggregate(lambda x: 1, lambda a, b: a + b, lambda state: state, pa.int64())

CALLS = (
    Aggregate("collect_list", "x", "a"),
    Aggregate("collect_set", "t", "a"),
    Aggregate("count_distinct", "x", "a"),
    Aggregate("count_distinct", "x", "a", ("t",)),
    Aggregate("median", "x", "a"),
    Aggregate("mode", "t", "a"),
    Aggregate("first", "t", "a"),
    Aggregate("max", "t", "a"),
    Aggregate("max_by", "x", "a", ("t",)),
    Aggregate("approx_count_distinct", "x", "a"),
    Aggregate("approx_percentile", "x", "a", (), (0.5,)),
    Aggregate("approx_top_k", "t", "a"),
    Aggregate("user", "x", "a", (), (COUNT,)),
)


#: pools must live as long as what was allocated in them
POOLS: list[pa.MemoryPool] = []


def peak_of(action: Callable[[], Any]) -> tuple[Any, int]:
    """Return what an action returns and the most bytes it held, in Arrow's pool and outside."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    POOLS.append(pool)
    gc.collect()
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        result = action()
        return result, pool.max_memory() + tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)


def tuples(rows: int, groups: int, seed: int) -> pa.RecordBatch:
    """Make events whose values are nearly all distinct."""
    dice = np.random.default_rng(seed)
    keys = pa.record_batch([pa.array(dice.integers(0, groups, rows))], schema=KEYS)
    id_high, id_low = KeyCodec(KEYS).identify(keys)
    values = dice.normal(size=rows)
    texts = pa.array([f"text {n}" for n in dice.integers(0, 10 * rows, rows).tolist()])
    columns = [
        pa.array(np.arange(rows)),
        pa.array(id_high),
        pa.array(id_low),
        keys.column(0),
        pa.array(values),
        texts,
    ]
    return pa.record_batch(columns, names=["time", ID_HIGH_COLUMN, ID_LOW_COLUMN, "k0", "x", "t"])


@pytest.mark.sample(4)
@pytest.mark.parametrize("groups", [pytest.param(20, marks=pytest.mark.slow), 2000])
@pytest.mark.parametrize("call", CALLS, ids=lambda each: each.text)
def test_bounded_work_takes_no_more_than_is_reserved(call: Aggregate, groups: int) -> None:
    states = States(ObjectSpec((call,), KEYS, INPUTS, Windows(10, 1)))
    batches = [tuples(20_000, groups, seed) for seed in range(3)]
    panes = np.zeros(20_000, dtype=np.int64)
    parts = []
    for batch in batches:
        (_, rows), lifting = peak_of(partial(states.lift, batch, panes))
        # beside what lifting takes there are the events themselves, joined from smaller batches
        assert lifting + 2 * batch.nbytes <= WORK * batch.nbytes
        parts.append(states.read(bytes(states.write(rows))))
    size = sum(part.nbytes for part in parts)
    targets = np.zeros(sum(part.num_rows for part in parts), dtype=np.int64)
    (_, whole), combining = peak_of(lambda: states.combine(targets, pa.concat_batches(parts)))
    _, lowering = peak_of(lambda: states.lower(whole))
    assert combining + size <= WORK * size
    assert lowering + 2 * size <= WORK * size


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "call", [call for call in CALLS if "t" in call.columns], ids=lambda each: each.text
)
def test_bounded_large_texts_take_no_more_than_is_reserved(call: Aggregate) -> None:
    states = States(ObjectSpec((call,), KEYS, INPUTS, Windows(10, 1)))
    parts = []
    for seed in range(3):
        batch = tuples(40, 3, seed)
        texts = pa.array([chr(65 + n % 26) * 100_000 + f"{n} {seed}" for n in range(40)])
        batch = batch.set_column(5, "t", texts)
        parts.append(states.lift(batch, np.zeros(40, dtype=np.int64))[1])
    size = sum(part.nbytes for part in parts)
    targets = np.zeros(sum(part.num_rows for part in parts), dtype=np.int64)
    (_, whole), combining = peak_of(lambda: states.combine(targets, pa.concat_batches(parts)))
    _, lowering = peak_of(lambda: states.lower(whole))
    most = COPIES * size + BESIDE * sum(map(states.values, parts))
    assert combining + size <= most
    assert lowering + 2 * size <= most
