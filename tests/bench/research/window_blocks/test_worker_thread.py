from __future__ import annotations

import time
from functools import partial

import pytest

from bench.research.window_blocks.worker_thread import WorkerThread


def fail() -> None:
    msg = "no"
    raise OSError(msg)


def test_work_is_collected_in_the_order_it_was_given() -> None:
    lane, done = WorkerThread("lane"), list[int]()
    for number in range(20):
        lane.give(partial(done.append, number))
    for number in range(20):
        lane.collect()
        assert done[: number + 1] == list(range(number + 1))
    assert lane.pending == 0
    lane.close()


def test_an_error_is_raised_where_its_work_is_collected() -> None:
    lane, done = WorkerThread("lane"), list[int]()
    lane.give(partial(done.append, 0))
    lane.give(fail)
    lane.give(partial(done.append, 1))
    lane.collect()
    with pytest.raises(OSError, match="no"):
        lane.collect()
    lane.collect()
    assert done == [0, 1]
    lane.close()


def test_closing_waits_for_what_was_given() -> None:
    lane, done = WorkerThread("lane"), list[int]()
    lane.give(partial(time.sleep, 0.05))
    lane.give(partial(done.append, 1))
    lane.close()
    lane.close()
    assert done == [1]
