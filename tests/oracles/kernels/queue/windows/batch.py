"""The obvious versions of the kernels in `icestream.kernels.queue.windows.batch`."""

from __future__ import annotations

from icestream.core.arrays import Ids, Ints
from icestream.kernels.queue.windows.batch import INSERTS, NOTHING, UPDATES_WAITING
from tests.oracles.kernels.window_queue import PlainWindows


def find_cells_reference(hi: Ids, lo: Ids) -> list[int]:
    """Number keys in order of first appearance, with a dict."""
    numbers: dict[tuple[int, int], int] = {}
    return [
        numbers.setdefault(key, len(numbers)) for key in zip(hi.tolist(), lo.tolist(), strict=True)
    ]


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
            kinds.append(NOTHING if said != "update" else UPDATES_WAITING if waits else INSERTS)

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
