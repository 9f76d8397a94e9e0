"""The streams that schedules are compared over: shapes of rates, patterns of arrival, real ticks.

Idea: a stream has a name and can be generated for any load. Ticks of a real market are read from a
file of the user, given by the environment variable `ICESTREAM_TICKS` as `path:time column:key
column` (times in milliseconds); without one, a generated market replaces them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import numpy as np

from bench.research import workloads
from bench.research.workloads import UpdateWorkload
from icestream.core.errors import InputError

#: environment variable with the file of real ticks
TICKS = "ICESTREAM_TICKS"
#: (updates, gap between them in microseconds) -> stream
Maker = Callable[[int, float], UpdateWorkload]

SEED = 1
KEYS = 100


def streams() -> Mapping[str, Maker]:
    """Return all streams by name."""
    w, shares = workloads, workloads.zipf
    mixed = w.slow_and_fast(10, 8, 50)
    found: dict[str, Maker] = {
        f"Poisson, Zipf {theta:g}": lambda n, gap, theta=theta: w.poisson(  # type: ignore[misc]
            shares(KEYS, theta), n, gap, SEED
        )
        for theta in (0.0, 0.3, 0.6, 0.9, 1.2)
    }
    skewed = shares(KEYS, 0.9)
    found |= {
        "one per tick, Zipf 0.9": lambda n, gap: w.one_per_tick(skewed, n, gap, SEED),
        "uneven gaps, Zipf 0.9": lambda n, gap: w.clocks(skewed, n, gap, SEED, spread=1.5),
        "8 of 10 slow, 50:1": lambda n, gap: w.poisson(mixed, n, gap, SEED),
        "8 of 10 slow, 10:1": lambda n, gap: w.poisson(w.slow_and_fast(10, 8, 10), n, gap, SEED),
        "slow ones at once": lambda n, gap: w.slow_bursts(
            w.slow_and_fast(KEYS, 80, 50), n, gap, SEED, slow=80
        ),
        "bursts, Zipf 0.9": lambda n, gap: w.bursts(skewed, n, gap, SEED),
        "drifting, Zipf 0.9": lambda n, gap: w.drifting(skewed, n, gap, SEED),
        "market": lambda n, gap: w.quotes(500, n, gap, SEED),
    }
    if TICKS in os.environ:
        found["ticks"] = _ticks(0)
        found["ticks, spread over their minute"] = _ticks(workloads.MINUTE)
    return found


def clockwork() -> Mapping[str, Maker]:
    """Return streams whose keys are updated at even intervals, without randomness."""
    w = workloads
    return {
        "in turn": lambda n, gap: w.in_turn(KEYS, n, gap),
        "even clocks": lambda n, gap: w.clocks(w.equal(KEYS), n, gap, SEED),
        "even clocks, Zipf 0.9": lambda n, gap: w.clocks(w.zipf(KEYS, 0.9), n, gap, SEED),
    }


def _ticks(spread: int) -> Maker:
    """Return the user's ticks, scaled to the requested gap between updates."""
    try:
        path, time, key = os.environ[TICKS].rsplit(":", 2)
    except ValueError:
        msg = f"{TICKS} must be path:time column:key column; got {os.environ[TICKS]!r}"
        raise InputError(msg) from None
    read = workloads.read_ticks(path, time=time, key=key, spread=spread)

    def made(updates: int, gap: float) -> UpdateWorkload:
        del updates
        scale = gap * len(read) / read.until
        times = (read.times * scale).astype(np.int64)
        return UpdateWorkload(times, read.keys, read.key_count, int(read.until * scale) + 1)

    return made
