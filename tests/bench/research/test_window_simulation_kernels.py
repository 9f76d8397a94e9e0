"""Runs of a queue of windows beside their definition."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.research import window_simulation_kernels as kernels
from icestream.core.arrays import Ints
from icestream.kernels.queue.windows import zones as z
from icestream.kernels.queue.windows.tuple_batches import blank_cell
from icestream.state.queue.windows.queue import WindowArrays
from tests.oracles.kernels.window_queue import PlainWindows

SPECS = st.tuples(st.integers(1, 7), st.integers(1, 7)).map(lambda pair: (max(pair), min(pair)))
EVENTS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), max_size=60)


def windows_of(size: int, slide: int, *, eager: bool) -> z.WindowQueueArrays:
    arrays = WindowArrays(size, slide, eager=eager, fifo=False, width=0, block_rows=3)
    arrays.reserve_cells(4)
    for cell in range(4):
        blank_cell(arrays.cells, cell)
    arrays.reserve_zones(4 * (2 * size + slide))
    return arrays.kernel


def run_windows_reference(
    plain: PlainWindows, keys: Ints, times: Ints, arrived: Ints, cost: int
) -> tuple[list[int], list[list[int]], list[list[int]]]:
    """Do what `run_windows` does with lists: kinds of arrivals, commits and deliveries."""
    kinds: list[int] = []
    commits: list[list[int]] = []
    deliveries: list[list[int]] = []
    now = 0

    def arrive() -> None:
        while len(kinds) < len(keys) and arrived[len(kinds)] <= now:
            i = len(kinds)
            key = plain.keys.get(int(keys[i]))
            waits = key is not None and "WAIT" in key.states
            said = plain.enqueue(int(keys[i]), int(times[i]), int(arrived[i]))
            kinds.append(
                kernels.NOTHING
                if said != "update"
                else kernels.UPDATES_WAITING
                if waits
                else kernels.INSERTS
            )

    while True:
        arrive()
        busy = bool(plain.processing)
        served = plain.serve()
        if served is None:
            if len(kinds) == len(keys):
                return kinds, commits, deliveries
            now = int(arrived[len(kinds)])
            continue
        name, time = served
        window = plain.keys[name].committed
        if not busy:
            commits.append([name, window, now, plain.keys[name].since])
        if time:
            plain.read(name)
            now += cost
            arrive()
        if plain.finish(name):
            deliveries.append([name, window, now])


@given(spec=SPECS, eager=st.booleans(), events=EVENTS, cost=st.integers(1, 4))
@settings(max_examples=200)
def test_parity_runs_beside_the_definition(
    spec: tuple[int, int], eager: bool, events: list[tuple[int, int]], cost: int
) -> None:
    keys = np.array([key for key, _ in events], dtype=np.int64)
    arrived = np.cumsum([gap // 3 for _, gap in events], dtype=np.int64) + 1
    times = np.cumsum([gap for _, gap in events], dtype=np.int64)
    windows = windows_of(*spec, eager=eager)
    kinds = np.zeros(len(keys), dtype=np.int64)
    commits = np.zeros((len(keys) + 1, kernels.COMMIT), dtype=np.int64)
    deliveries = np.zeros((len(keys) + 1, kernels.DELIVERY), dtype=np.int64)
    taken, committed, delivered = kernels.run_windows(
        windows, keys, times, arrived, cost, kinds, commits, deliveries
    )
    wanted = run_windows_reference(PlainWindows(*spec, eager), keys, times, arrived, cost)
    assert taken == len(keys)
    assert kinds.tolist() == wanted[0]
    assert commits[:committed].tolist() == wanted[1]
    assert deliveries[:delivered].tolist() == wanted[2]
