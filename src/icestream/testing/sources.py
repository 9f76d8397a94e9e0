"""Random events: out of order, repeated, skewed, null, not a number, before 1970, with gaps.

Idea: a `StreamShape` defines the kind of a stream, a seed selects one. `generate` turns both into
*items*: batches of splits, and `ABORT` markers, after which the query is dropped and reopened. So
the data of a test contains its crashes.

Invariants:
1. The same plan, shape and seed give the same items (`test_the_same_seed_gives_the_same_items`).
2. Batches fit the plan's `batch_schema` (`test_generated_batches_fit_the_plan`).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from hypothesis import strategies as st

from icestream.core.times import Micros
from icestream.plan.nodes.queries import Plan
from icestream.runtime.local import LocalQuery, Splits

SECOND: Micros = 1_000_000


class Marker(enum.Enum):
    """Something other than a batch in a stream of batches."""

    #: the process dies here: the query is dropped and reopened
    ABORT = "abort"


ABORT: Final = Marker.ABORT

Item = Splits | Marker
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class StreamShape:
    """The properties of a stream of events."""

    events: int = 200
    batches: int = 5
    #: most splits of a batch
    splits: int = 2
    #: number of groups that keys are drawn from
    groups: int = 8
    #: exponent of the Zipf distribution of keys; 0 for uniform
    skew: float = 0.0
    #: time of the first event
    start: Micros = 0
    #: time from first to last event
    span: Micros = 60 * SECOND
    #: how much later than its turn an event may arrive
    disorder: Micros = 0
    #: share of events that are sent twice
    duplicates: float = 0.0
    #: share of keys and of values that are null
    nulls: float = 0.0
    #: share of float values that are NaN, an infinity or -0.0
    specials: float = 0.0
    #: long gaps without events
    gaps: int = 0
    #: share of batches without events
    empty: float = 0.0
    #: share of batches followed by `ABORT`
    aborts: float = 0.0


def shapes(*, span: Micros = 60 * SECOND, specials: bool = True) -> st.SearchStrategy[StreamShape]:
    """Draw shapes of short test streams, simple ones first."""
    return st.builds(
        StreamShape,
        events=st.integers(0, 250),
        batches=st.integers(1, 6),
        splits=st.integers(1, 3),
        groups=st.sampled_from((1, 3, 40)),
        skew=st.sampled_from((0.0, 1.2)),
        start=st.sampled_from((0, 1_700_000_000 * SECOND + 123_456, -7 * span - 654_321)),
        span=st.just(span),
        disorder=st.sampled_from((0, span // 20, span // 2)),
        duplicates=st.sampled_from((0.0, 0.2)),
        nulls=st.sampled_from((0.0, 0.1, 0.6)),
        specials=st.sampled_from((0.0, 0.1) if specials else (0.0,)),
        gaps=st.integers(0, 2),
        empty=st.sampled_from((0.0, 0.3)),
        aborts=st.sampled_from((0.0, 0.4)),
    )


def generate(plan: Plan, shape: StreamShape, seed: int) -> list[Item]:
    """Return the items of one test source; the last is a batch."""
    dice = np.random.default_rng(seed)
    return items_of(random_events(plan, shape, dice), shape, dice)


def items_of(events: pa.RecordBatch, shape: StreamShape, dice: np.random.Generator) -> list[Item]:
    """Split events of a source into batches and splits, with empty ones and `ABORT` between."""
    size = -(-max(events.num_rows, 1) // shape.batches)
    items: list[Item] = []
    for first in range(0, max(events.num_rows, 1), size):
        while dice.random() < shape.empty:
            items.append([[]] if dice.random() < 0.5 else [])
        items.append(_split(events.slice(first, size), 1 + int(dice.integers(shape.splits))))
        if dice.random() < shape.aborts:
            items.append(ABORT)
    return items if items[-1] is not ABORT else items[:-1]


def random_events(plan: Plan, shape: StreamShape, dice: np.random.Generator) -> pa.RecordBatch:
    """Return random events of a test source in the order of arrival."""
    times = arrival_times(shape, dice)
    count = len(times)
    ids = group_numbers(shape, count, dice)
    columns = [pa.array(times).cast(plan.time), pa.array(_source(plan, count, dice), pa.int32())]
    for position, key in enumerate(plan.keys):
        columns.append(_key_column(ids, position, key.type, shape, dice))
    for column in plan.inputs:
        if column.name in plan.own_ends:
            columns.append(pa.array(times + dice.integers(-SECOND, 3 * SECOND, count), column.type))
        else:
            columns.append(random_column(column.type, count, shape, dice))
    events = pa.RecordBatch.from_arrays(columns, schema=plan.batch_schema)
    again = dice.random(count) < shape.duplicates
    places = np.repeat(np.arange(count), 1 + again)
    return events.take(pa.array(places))


def random_column(
    kind: pa.DataType, count: int, shape: StreamShape, dice: np.random.Generator
) -> pa.Array:
    """Return random values of a type for a test source, including nulls and special floats."""
    missing = dice.random(count) < shape.nulls
    if pa.types.is_floating(kind):
        values = np.round(dice.normal(scale=1000.0, size=count), 3)
        special = dice.random(count) < shape.specials
        values[special] = dice.choice([np.nan, np.inf, -np.inf, -0.0], int(special.sum()))
        return pa.array(values, mask=missing).cast(kind)
    if pa.types.is_boolean(kind):
        return pa.array(dice.random(count) < 0.5, mask=missing)
    integers = pa.array(dice.integers(*_bounds(kind), size=count, endpoint=True), mask=missing)
    if pa.types.is_decimal(kind):
        return _decimals(integers, kind)
    if pa.types.is_date32(kind):
        return integers.cast(pa.int32()).cast(kind)
    return integers.cast(kind)


def batches_of(items: Iterable[Item]) -> list[Splits]:
    """Return the batches among the items of a test source."""
    return [item for item in items if not isinstance(item, Marker)]


def restart(items: Sequence[Item], every: int = 1) -> list[Item]:
    """Put an `ABORT` after every `every` batches of a test source."""
    return [
        each
        for number, batch in enumerate(batches_of(items))
        for each in ((ABORT, batch) if number and number % every == 0 else (batch,))
    ]


def rebatch(items: Iterable[Item], size: int) -> list[Item]:
    """Return the events of a test source in batches of `size` events and one split."""
    whole = [batch for splits in batches_of(items) for split in splits for batch in split]
    if not whole:
        return [[]]
    events = pa.Table.from_batches(whole).combine_chunks()
    return [[events.slice(first, size).to_batches()] for first in range(0, events.num_rows, size)]


def drive(open_again: Callable[[], LocalQuery], items: Iterable[Item]) -> list[pa.Table]:
    """Feed a test source to a query, reopening it after each `ABORT`; return each batch's rows.

    The windows that are open at the end are flushed; their rows are the last table.
    """
    query = open_again()
    tables = []
    for item in items:
        if isinstance(item, Marker):
            query = open_again()
            continue
        tables.append(query.feed(item))
    tables.append(query.flush())
    query.close()
    return tables


def arrival_times(shape: StreamShape, dice: np.random.Generator) -> Rows:
    """Return the times of a test source's events in the order of arrival."""
    turns = np.sort(dice.integers(0, shape.span, size=shape.events, endpoint=True))
    for _ in range(shape.gaps):
        turns[turns > dice.integers(0, shape.span)] += 10 * shape.span
    arrivals = turns + dice.integers(0, shape.disorder, size=shape.events, endpoint=True)
    return shape.start + turns[np.argsort(arrivals, kind="stable")]


def group_numbers(shape: StreamShape, count: int, dice: np.random.Generator) -> Rows:
    """Return the group of each event of a test source, with skew."""
    if shape.skew <= 0:
        return dice.integers(0, shape.groups, size=count)
    weights = 1.0 / np.arange(1, shape.groups + 1) ** shape.skew
    return dice.choice(shape.groups, size=count, p=weights / weights.sum()).astype(np.int64)


def _source(plan: Plan, count: int, dice: np.random.Generator) -> Rows:
    return dice.integers(0, len(plan.sources), size=count)


def _key_column(
    ids: Rows, position: int, kind: pa.DataType, shape: StreamShape, dice: np.random.Generator
) -> pa.Array:
    """Return key values that the group determines, so that equal groups have equal keys."""
    numbers = ids if position == 0 else ids % (position + 1)
    missing = dice.random(len(ids)) < shape.nulls
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return pa.array([f"group {n}" for n in numbers.tolist()], mask=missing).cast(kind)
    if pa.types.is_floating(kind):
        values = numbers.astype(np.float64)
        special = dice.random(len(ids)) < shape.specials
        values[special] = dice.choice([np.nan, -0.0, 0.0, np.inf], int(special.sum()))
        return pa.array(values, mask=missing).cast(kind)
    if pa.types.is_boolean(kind):
        return pa.array(numbers % 2 == 0, mask=missing)
    if pa.types.is_decimal(kind):
        return _decimals(pa.array(numbers - 3, mask=missing), kind)
    if pa.types.is_date32(kind):
        return pa.array(numbers, mask=missing).cast(pa.int32()).cast(kind)
    return pa.array(numbers - 3, mask=missing).cast(kind)


def _bounds(kind: pa.DataType) -> tuple[int, int]:
    if pa.types.is_integer(kind):
        most = 2 ** (kind.bit_width - 1) - 1
        return (-most - 1, most) if kind.bit_width < 64 else (-(2**55), 2**55)
    if pa.types.is_decimal(kind):
        most = 10 ** min(kind.precision, 18) - 1
        return -most, most
    if pa.types.is_date32(kind):
        return -20_000, 30_000
    return -(10**15), 4 * 10**15


def _decimals(integers: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return decimals whose unscaled values are the given integers."""
    values = np.asarray(integers.fill_null(0).to_numpy(zero_copy_only=False))
    words = np.stack([values, values >> 63], axis=1)
    present = integers.is_valid().buffers()[1]
    return pa.Array.from_buffers(kind, len(values), [present, pa.py_buffer(words)])


def _split(events: pa.RecordBatch, splits: int) -> list[list[pa.RecordBatch]]:
    size = -(-max(events.num_rows, 1) // splits)
    parts: list[list[Any]] = [
        [events.slice(first, size)] for first in range(0, max(events.num_rows, 1), size)
    ]
    return parts
