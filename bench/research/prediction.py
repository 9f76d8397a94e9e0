"""Predicts staleness from rates and cost alone.

Idea: `predict` generates a Poisson stream of the given rates and runs the real queue over it in
virtual time. `relaxed` solves the problem in which the server keeps its rate only on average: every
key is served when it has waited x = sqrt(g*g + 2*p) - g, where g is its mean gap, and the price p
is the one at which services just fit. No schedule does better, and INDEX comes close to it for many
keys; in closed form it also shows how the server's time is best divided.

Invariants:
1. No schedule is below the relaxed bound (`test_no_schedule_is_below_the_relaxed_bound`).
2. Predictions are a function of their arguments (`test_a_prediction_is_its_arguments`).

Cost: a second for a million updates; `relaxed` is a binary search over one number.

Limits: one server, a constant cost, independent keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bench.research.queue_simulation import simulate
from bench.research.workloads import poisson
from icestream.core.arrays import Floats
from icestream.core.errors import DefinitionError

#: services of a key that a prediction averages over, and maximum number of updates
_SERVICES = 200
_MOST_UPDATES = 2_000_000
_LEAST_UPDATES = 20_000
#: fraction of a run before staleness is measured
_WARM_UP = 0.1


@dataclass(frozen=True)
class Prediction:
    """Expected staleness, in seconds, averaged over keys and time."""

    queue: float
    application: float
    #: median and 99th percentile of the application's staleness over time
    p50: float
    p99: float
    #: seconds between two services of a key, on average over keys
    turn: float


@dataclass(frozen=True)
class Relaxed:
    """The optimum of a server that keeps its rate only on average."""

    #: mean queue staleness over keys, in the unit of the cost
    bound: float
    #: price of a service at which services just fit
    price: float
    #: how long each key waits, and services of each per unit of time
    waits: Floats
    services: Floats


def predict(
    rates: Floats,
    cost: float,
    schedule: str = "inplace",
    *,
    seconds: float | None = None,
    knows_rates: bool = False,
    seed: int = 0,
) -> Prediction:
    """Predict the staleness of keys that are updated at random at given rates.

    Args:
        rates: updates per second of each key.
        cost: seconds that processing one update takes, on one server.
        schedule: as for `simulate`, including append and shedding.
        seconds: how long the stream lasts, from an empty queue on; by default long enough for a
            steady state, without the beginning. The waiting time of "append", which serves every
            update, never becomes steady under overload.
        knows_rates: whether the queue gets the rates; otherwise it learns them.
        seed: seed of the stream.
    """
    rates = np.asarray(rates, dtype=np.float64)
    if not len(rates) or (rates < 0).any() or rates.sum() <= 0 or cost <= 0:
        msg = "rates must be >= 0 updates per second, not all 0, and the cost must be > 0 seconds"
        raise DefinitionError(msg)
    total = rates.sum()
    # time is scaled so that a service takes a thousand ticks: whole numbers without rounding
    scale = 1_000 / cost
    if seconds is None:
        turns = _SERVICES * len(rates) * max(total * cost, 1.0)
        updates = int(np.clip(turns, _LEAST_UPDATES, _MOST_UPDATES))
    else:
        updates = max(1, round(total * seconds))
    stream = poisson(rates / total, updates, scale / total, seed)
    found = simulate(
        stream,
        1_000,
        schedule,
        rates=rates / scale if knows_rates else None,
        warm_up=int(stream.until * _WARM_UP) if seconds is None else 0,
        seed=seed,
    )
    served = np.bincount(found.services.key, minlength=len(rates))
    turn = stream.until / np.maximum(served, 1)
    return Prediction(
        queue=found.queue.average / scale,
        application=found.application.average / scale,
        p50=found.application.p50 / scale,
        p99=found.application.p99 / scale,
        turn=float(turn[served > 0].mean()) / scale,
    )


def relaxed(rates: Floats, cost: float) -> Relaxed:
    """Solve the relaxed problem: services of all keys fit into the server's time on average.

    Args:
        rates: updates of each key per unit of time, all above 0.
        cost: time that a service takes.
    """
    gaps = 1.0 / np.asarray(rates, dtype=np.float64)
    low, high = 0.0, 0.0
    if (1.0 / gaps).sum() * cost > 1.0:
        high = float(gaps.max()) ** 2 + (len(gaps) * cost) ** 2
        for _ in range(200):
            middle = (low + high) / 2
            if (1.0 / np.sqrt(gaps * gaps + 2 * middle)).sum() * cost > 1.0:
                low = middle
            else:
                high = middle
    cycle = np.sqrt(gaps * gaps + 2 * high)
    waits = cycle - gaps
    return Relaxed(float((waits * waits / 2 / cycle).mean()), high, waits, 1.0 / cycle)
