from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from icestream.kernels.queue import queue as k
from icestream.kernels.queue.staleness import NONE
from icestream.operators.latest.coalescing import (
    ID_HIGH_COLUMN,
    ID_LOW_COLUMN,
    NewestUpdates,
    folded,
)
from icestream.operators.latest.waiting_keys import SINCE_FIRST, WaitingKeys
from icestream.state.arena import Arena
from icestream.state.budget import Budget
from icestream.state.queue.queue import UpdateQueue

VALUES = pa.schema([("n", pa.int64())])


def test_parity_folded_updates_make_the_rates_of_all(tmp_path: object) -> None:
    waiting = waiting_in(tmp_path, "linecutting")
    plain = UpdateQueue(VALUES, schedule="linecutting", smoothing=32)
    dice = np.random.default_rng(5)
    for batch in range(30):
        count = int(dice.integers(1, 200))
        keys = (20 * dice.random(count) ** 3).astype(np.uint64)
        times = np.sort(dice.integers(batch * 1000, (batch + 1) * 1000, count))
        rows = pa.record_batch([np.arange(count)], schema=VALUES)
        plain.enqueue(keys, keys, times, rows)
        ones = np.ones(count, dtype=np.int64)
        waiting.take_in(folded(NewestUpdates.of(keys, keys, times, times, ones, rows)))
        now = (batch + 1) * 1000
        waiting.serve(0, 5, now)
        plain.dequeue(5, now)
    every = np.arange(20, dtype=np.uint64)
    ours, theirs = waiting.cells, plain.cells
    mine, other = ours.find(every, every), theirs.find(every, every)
    known = other >= 0
    assert (mine[known] >= 0).all()
    counts = ours.column(k.COUNT)[mine[known]]
    assert counts.tolist() == theirs.column(k.COUNT)[other[known]].tolist()
    gaps = theirs.kernel.reals[other[known], k.GAP]
    ours_gaps = ours.kernel.reals[mine[known], k.GAP]
    assert ours_gaps == pytest.approx(gaps, rel=0.6)
    few = counts < 32
    assert ours_gaps[few] == pytest.approx(gaps[few])


def waiting_in(folder: object, schedule: str) -> WaitingKeys:
    budget = Budget(64 << 20)
    arena = Arena.create(str(folder), budget.account("test"))
    return WaitingKeys(VALUES, schedule, arena, budget.account("work"))


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        (ID_HIGH_COLUMN, 1, "a key twice"),
        (f"{SINCE_FIRST}0", NONE, "values of keys that do not wait"),
    ],
)
def test_a_snapshot_that_makes_no_sense_is_refused(
    tmp_path: object, name: str, wrong: int, message: str
) -> None:
    """Keys that come twice, and keys with a value nobody waits for."""
    waiting = waiting_in(tmp_path, "fifo")
    keys, times = np.arange(3, dtype=np.uint64), np.arange(3)
    rows = pa.record_batch([np.arange(3)], schema=VALUES)
    waiting.take_in(NewestUpdates.of(keys, keys, times, times, np.ones(3, dtype=np.int64), rows))
    ((known, values),) = (each for each in waiting.portions(10, waiting=True))
    described = dict([*waiting.described(known), *waiting.ordered(known)])
    again = waiting_in(tmp_path, "fifo")
    again.bring_back(described, values)
    assert again.serve(0, 3, 9).id_high.tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="a key twice"):
        again.bring_back(described, values)
    changed = described[name].copy()
    changed[0] = wrong
    both = (
        {ID_HIGH_COLUMN: changed, ID_LOW_COLUMN: changed}
        if name == ID_HIGH_COLUMN
        else {name: changed}
    )
    with pytest.raises(ValueError, match=message):
        waiting_in(tmp_path, "fifo").bring_back({**described, **both}, values)
