from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from icestream.kernels.updates import queue as k
from icestream.operators.updates.folding import HI, LO, Folded, folded
from icestream.operators.updates.waiting import PLACE, Waiting
from icestream.state.arena import Arena
from icestream.state.budget import Budget
from icestream.state.update_queue.queue import UpdateQueue

VALUES = pa.schema([("n", pa.int64())])


def test_parity_folded_updates_make_the_rates_of_all(tmp_path: object) -> None:
    arena = Arena.create(str(tmp_path), Budget(64 << 20).account("test"))
    waiting = Waiting(VALUES, "index", arena)
    plain = UpdateQueue(VALUES, schedule="index", smoothing=32)
    dice = np.random.default_rng(5)
    for batch in range(30):
        count = int(dice.integers(1, 200))
        keys = (20 * dice.random(count) ** 3).astype(np.uint64)
        times = np.sort(dice.integers(batch * 1000, (batch + 1) * 1000, count))
        rows = pa.record_batch([np.arange(count)], schema=VALUES)
        plain.enqueue(keys, keys, times, rows)
        ones = np.ones(count, dtype=np.int64)
        waiting.take_in(folded(Folded.of(keys, keys, times, times, ones, rows)))
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
    gaps = theirs.gaps[other[known]]
    assert ours.gaps[mine[known]] == pytest.approx(gaps, rel=0.6)
    few = counts < 32
    assert ours.gaps[mine[known]][few] == pytest.approx(gaps[few])


@pytest.mark.parametrize(("name", "wrong"), [(HI, 77), (HI, 1), (PLACE, -1), (PLACE, 2**62)])
def test_an_order_that_makes_no_sense_is_refused(tmp_path: object, name: str, wrong: int) -> None:
    """Keys nobody knows, keys that come twice, and lists there are none of."""
    arena = Arena.create(str(tmp_path), Budget(64 << 20).account("test"))
    waiting = Waiting(VALUES, "fifo", arena)
    keys, times = np.arange(3, dtype=np.uint64), np.arange(3)
    rows = pa.record_batch([np.arange(3)], schema=VALUES)
    waiting.take_in(Folded.of(keys, keys, times, times, np.ones(3, dtype=np.int64), rows))
    described = dict(waiting.in_order(0))
    waiting.put_in_order(0, described, same=True)
    changed = described[name].copy()
    changed[0] = wrong
    both = {HI: changed, LO: changed} if name == HI else {name: changed}
    with pytest.raises(ValueError, match="do not wait, or not in its lists"):
        waiting.put_in_order(0, {**described, **both}, same=True)
