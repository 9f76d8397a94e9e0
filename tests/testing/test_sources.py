from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.testing.sources import (
    ABORT,
    SECOND,
    Item,
    StreamShape,
    batches_of,
    generate,
    random_events,
    rebatch,
    restart,
    shapes,
)
from tests.fixtures.plans import EVERY_INPUT, window_plan

PLAN = window_plan(
    keys=pa.schema(
        [("name", pa.string()), ("number", pa.float64()), ("price", pa.decimal128(9, 2))]
    ),
    inputs=EVERY_INPUT,
    slack=[0, 0],
)


def batches(items: list[Item]) -> list[pa.RecordBatch]:
    return [b for splits in batches_of(items) for split in splits for b in split]


@given(shapes(), st.integers(0, 2**32))
@settings(max_examples=20)
def test_the_same_seed_gives_the_same_items(shape: StreamShape, seed: int) -> None:
    one, other = generate(PLAN, shape, seed), generate(PLAN, shape, seed)
    assert [item is ABORT for item in one] == [item is ABORT for item in other]
    for a, b in zip(batches(one), batches(other), strict=True):
        assert str(a.to_pylist()) == str(b.to_pylist())


@given(shapes(), st.integers(0, 2**32))
@settings(max_examples=20)
def test_generated_batches_fit_the_plan(shape: StreamShape, seed: int) -> None:
    items = generate(PLAN, shape, seed)
    assert items[-1] is not ABORT
    for batch in batches(items):
        assert batch.schema == PLAN.batch_schema
        batch.validate(full=True)
    assert sum(batch.num_rows for batch in batches(items)) >= shape.events


def test_what_a_shape_says_is_in_the_stream() -> None:
    shape = StreamShape(
        events=2000,
        start=-50 * SECOND,
        disorder=SECOND,
        duplicates=0.2,
        nulls=0.3,
        specials=0.2,
        gaps=1,
        skew=1.5,
        groups=20,
    )
    events = random_events(PLAN, shape, np.random.default_rng(1))
    assert events.num_rows > 2200
    times = events.column("time").cast(pa.int64()).to_numpy()
    assert times.min() < 0
    assert (np.diff(times) < 0).any()
    assert np.diff(np.sort(times)).max() >= 10 * shape.span
    doubles = events.column("double").to_numpy(zero_copy_only=False)
    assert np.isinf(doubles).any()
    assert events.column("k0").null_count > 400
    names = events.column("k0").drop_null().value_counts().field("counts").to_pylist()
    assert max(names) > 5 * min(names)
    assert set(events.column("source").to_pylist()) == {0, 1}


def test_rebatch_keeps_the_events_and_their_order() -> None:
    items = generate(PLAN, StreamShape(aborts=0.5, empty=0.3), 3)
    cut = rebatch(items, 17)
    one, other = (pa.Table.from_batches(batches(each)) for each in (items, cut))
    assert str(one.to_pylist()) == str(other.to_pylist())
    assert all(batch.num_rows <= 17 for batch in batches(cut))


def test_restart_puts_an_abort_between_batches() -> None:
    assert restart([[], [[]], []]) == [[], ABORT, [[]], ABORT, []]
    assert restart([[], ABORT, [[]], []], every=2) == [[], [[]], ABORT, []]
