"""Staleness as seen by an application, from the updates produced and the values delivered.

Idea: the definition, evaluated exactly and independently of the measured system. The staleness of a
key at a time is 0 if the newest delivered value is its newest update, else the time since its first
update after that value.

Invariants:
1. The integral is that of the definition, sampled finely
   (`test_oracle_the_integral_is_that_of_the_definition`).

References: staleness of the source named in `docs/papers.md`, section 3.3.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from icestream.core.arrays import Ints
from icestream.core.times import Micros


@dataclass(frozen=True)
class KeyInstants:
    """Events of keys with their times: arrivals, or deliveries of values."""

    keys: Ints
    #: time of the update itself
    times: Ints
    #: when it happened
    at: Ints


def mean_staleness(
    produced: tuple[Ints, Ints], delivered: KeyInstants, keys: int, begin: Micros, end: Micros
) -> float:
    """Return the mean staleness of all keys over an interval, in seconds."""
    total = 0.0
    order = np.lexsort((produced[1], produced[0]))
    made_keys, made_times = produced[0][order], produced[1][order]
    order = np.lexsort((delivered.at, delivered.keys))
    got = KeyInstants(delivered.keys[order], delivered.times[order], delivered.at[order])
    for key in range(keys):
        made = made_times[_of(made_keys, key)]
        place = _of(got.keys, key)
        total += _area(made, got.times[place], got.at[place], begin, end)
    return total / (keys * (end - begin)) / 1e6


def _of(keys: Ints, key: int) -> slice:
    return slice(int(np.searchsorted(keys, key)), int(np.searchsorted(keys, key, side="right")))


def _area(made: Ints, values: Ints, at: Ints, begin: Micros, end: Micros) -> float:
    """Return the integral of one key's staleness."""
    # between two deliveries, the missing update is the oldest one after the newest value seen
    known = np.concatenate([[-1], np.maximum.accumulate(values)]) if len(values) else np.array([-1])
    starts = np.concatenate([[begin], np.clip(at, begin, end)])
    ends = np.concatenate([np.clip(at, begin, end), [end]])
    missing = np.searchsorted(made, known, side="right")
    open_at = (
        np.where(missing < len(made), made[np.minimum(missing, len(made) - 1)], end)
        if len(made)
        else np.full(len(known), end)
    )
    first = np.maximum(np.maximum(open_at, starts), begin)
    stale = ends > first
    high, low = (ends - open_at)[stale], (first - open_at)[stale]
    return float(((high.astype(np.float64) ** 2) - (low.astype(np.float64) ** 2)).sum() / 2)
