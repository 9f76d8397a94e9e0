"""The execution traces of windows of 3, sliding by 1, at a cost of 2 for each tuple, of one key.

A tuple comes at 1, 2, 3, ...; window w has the tuples w, w + 1, w + 2. What comes at an instant
comes before a window is chosen at that instant. `I` is an update of a key that does not wait, `U`
one of a key that does.
"""

from __future__ import annotations

import numpy as np

from bench.research.window_simulation import Input, WindowQueueRun, run_updates
from icestream.state.queue.windows.spec import Semantics, UpdateWindows

LETTERS = ".IU"


def trace(semantics: Semantics, until: int) -> WindowQueueRun:
    given = Input.of(np.zeros(until, dtype=np.int64), own_time=True)
    return run_updates(UpdateWindows(3, 1, semantics), given, cost=2)


def letters(run: WindowQueueRun) -> str:
    return "".join(LETTERS[kind] for kind in run.kinds.tolist())


def queue_staleness(run: WindowQueueRun, instants: range) -> list[int]:
    """Staleness of the queue before what happens at each instant: since when the key waits."""
    waits = [(since, at) for _, _, at, since in run.commits.tolist()]
    return [
        next((instant - since for since, at in waits if since < instant <= at), 0)
        for instant in instants
    ]


def test_trace_of_lazy_windows() -> None:
    """Window 1 is full at 3 and taken at once; its three tuples take until 9.

    tuples    1  2  3  4  5  6  7  8  9 10 11 12 13 14 15 16
    queue           I  I  U  U  U  U  U  I  U  U  U  U  U  I
    operator        [W1 = 1 2 3      ][W7 = 7 8 9      ][W13 ...
    results                          W1                W7
    """
    run = trace("lazy", 22)
    assert letters(run)[:16] == "..IIUUUUUIUUUUUI"
    commits = [[window, at, since] for _, window, at, since in run.commits.tolist()]
    assert commits[:3] == [[1, 3, 3], [7, 9, 4], [13, 15, 10]]
    deliveries = [[window, at] for _, window, at in run.deliveries.tolist()]
    assert deliveries[:3] == [[1, 9], [7, 15], [13, 21]]
    # the queue's: W2 is full at 4 and waits until W7 is taken at 9
    assert queue_staleness(run, range(1, 17)) == [0, 0, 0, 0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 0]
    # the application's: W1 full at 3; when it is delivered at 9, W2 has been full since 4, and
    # when W7 is delivered at 15, W8 since 10
    ramps = run.application(0)
    assert [ramps.at(instant) for instant in range(1, 10)] == [0, 0, 0, 1, 2, 3, 4, 5, 6]
    assert [ramps.at(instant) for instant in range(10, 16)] == [6, 7, 8, 9, 10, 11]
    assert [ramps.at(instant) for instant in range(16, 22)] == [6, 7, 8, 9, 10, 11]
    assert ramps.opens.tolist()[:3] == [3, 4, 10]


def test_trace_of_eager_windows() -> None:
    """Window 1 starts at 1 and is taken at once; its tuples are there when they are needed.

    tuples    1  2  3  4  5  6  7  8  9 10 11 12 13 14
    queue     I  I  U  U  U  U  U  I  U  U  U  U  U  I
    operator  [W1 = 1 2 3      ][W7 = 7 8 9      ][W13 ...
    results                    W1                W7
    """
    run = trace("eager", 20)
    assert letters(run)[:14] == "IIUUUUUIUUUUUI"
    commits = [[window, at, since] for _, window, at, since in run.commits.tolist()]
    assert commits[:3] == [[1, 1, 1], [7, 7, 2], [13, 13, 8]]
    deliveries = [[window, at] for _, window, at in run.deliveries.tolist()]
    assert deliveries[:3] == [[1, 7], [7, 13], [13, 19]]
    # the queue's counts from starters: W2 starts at 2 and waits until W7 is taken at 7
    assert queue_staleness(run, range(1, 15)) == [0, 0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 0]
    # the application's counts from closers: W1 is full at 3, and W2, full at 4, invalidates the
    # answer of W1 given at 7; the answer of W7 at 13 is invalidated by W8, full at 10
    ramps = run.application(0)
    assert [ramps.at(instant) for instant in range(1, 8)] == [0, 0, 0, 1, 2, 3, 4]
    assert [ramps.at(instant) for instant in range(8, 14)] == [4, 5, 6, 7, 8, 9]
    assert [ramps.at(instant) for instant in range(14, 20)] == [4, 5, 6, 7, 8, 9]
    assert ramps.opens.tolist()[:3] == [3, 4, 10]


def test_eager_is_fresher_than_lazy_by_what_it_processes_while_windows_fill() -> None:
    lazy, eager = trace("lazy", 3_000), trace("eager", 3_000)
    # at a steady pace both cycles take 6; ramps go from 5 to 11 and from 3 to 9
    assert abs(lazy.staleness - 8) < 0.02
    assert abs(eager.staleness - 6) < 0.02
