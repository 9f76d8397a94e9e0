from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from icestream.core.arrays import Mask
from icestream.core.times import MINUS_INFINITY
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.lifetimes.event_rows import EventRows, EventWords, StoredEvents
from icestream.operators.lifetimes.lift import Lifting

PAYLOAD = pa.schema([("x", pa.int64()), ("y", pa.float64())])
FUNCTIONS = {
    "exact": [Aggregate("count", None, "n"), Aggregate("sum", "x", "total")],
    "floats": [Aggregate("sum", "y", "sum"), Aggregate("max", "x", "most")],
}


def kept(name: str, *, grows: bool) -> EventRows:
    return EventRows(Lifting(PAYLOAD, FUNCTIONS[name]), pa.schema([]), grows=grows)


def events(name: str, rows: list[tuple[int, int, int, int, float, int]]) -> EventWords:
    """Make events of (owner, le, re, x, y, count)."""
    owner, le, re, x, y, count = (list(column) for column in zip(*rows, strict=True))
    lifetimes = [np.array(each) for each in (owner, le, re, count)]
    batch = pa.RecordBatch.from_arrays([pa.array(le), pa.array(x), pa.array(y)], ["__le", "x", "y"])
    words = Lifting(PAYLOAD, FUNCTIONS[name]).lifted(batch, copies=100)
    row = np.arange(len(rows))
    return EventWords(lifetimes[0], lifetimes[1], lifetimes[2], lifetimes[3], words, row)


def found(rows: EventWords) -> StoredEvents:
    emitted_until = np.full(3, MINUS_INFINITY)
    beside = pa.RecordBatch.from_pylist([{}] * len(rows.owner), schema=pa.schema([]))
    return StoredEvents(
        rows, emitted_until, emitted_until, np.zeros(3, np.int64), beside, np.zeros(3, np.int64)
    )


def every(rows: EventWords) -> Mask:
    return np.ones(len(rows.owner), dtype=np.bool_)


def worth(rows: EventWords, instant: int) -> dict[tuple[int, tuple[int, ...]], int]:
    """Return how often each row of words is there at an instant."""
    there: dict[Any, int] = {}
    for owner, le, re, count, words in zip(
        rows.owner, rows.le, rows.re, rows.count, rows.words.table, strict=True
    ):
        if le <= instant < re:
            key = int(owner), tuple(words.tolist())
            there[key] = there.get(key, 0) + int(count)
    return {key: count for key, count in there.items() if count}


def added(rows: EventWords, instant: int) -> dict[int, list[int]]:
    """Return the sums of words of each owner at an instant."""
    total: dict[int, list[int]] = {}
    for (owner, words), count in worth(rows, instant).items():
        before = total.get(owner, [0] * len(words))
        total[owner] = [a + count * b for a, b in zip(before, words, strict=True)]
    return {owner: words for owner, words in total.items() if any(words)}


def rolled(dice: Random, counts: list[int]) -> list[tuple[int, int, int, int, float, int]]:
    rows = []
    for _ in range(40):
        le = dice.randrange(12)
        count = dice.choice(counts)
        rows.append(
            (dice.randrange(3), le, le + dice.randrange(1, 9), dice.randrange(2), 0.5, count)
        )
    return sorted(rows)


@pytest.mark.parametrize("seed", range(6))
def test_oracle_merged_rows_are_worth_the_same(seed: int) -> None:
    dice = Random(seed)
    exact = events("exact", [(*row[:5], 1) for row in rolled(dice, [1])])
    merged = kept("exact", grows=False).merged(found(exact), every(exact), 8)
    for instant in range(8, 22):
        assert added(merged, instant) == added(exact, instant)
    counted = events("floats", rolled(dice, [1, 2, -1]))
    fewer = kept("floats", grows=False).merged(found(counted), every(counted), 8)
    assert len(fewer.owner) < len(counted.owner)
    for instant in range(8, 22):
        assert worth(fewer, instant) == worth(counted, instant)


def test_what_was_taken_out_leaves_no_trace() -> None:
    rows = kept("floats", grows=False)
    taken = [(0, 0, 9, 7, 1e40, 1), (0, 0, 9, 1, 1.0, 1), (0, 3, 9, 7, 1e40, -1)]
    left = rows.alive(found(events("floats", taken)))
    lifetimes = sorted(zip(left.le.tolist(), left.re.tolist(), left.count.tolist(), strict=True))
    assert lifetimes == [(0, 3, 1), (0, 9, 1)]
