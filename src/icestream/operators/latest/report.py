"""What shards report about serving, and how the progress report summarises it.

Idea: shards count, the driver adds up. Staleness is reported as exact integrals, so averages over
shards are averages over keys and time, and as profiles in logarithmic bins, from which quantiles
over all shards follow.

Invariants:
1. The sum of several shards' reports is what one shard would report for all their keys
   (`test_oracle_shards_together_tell_what_one_would`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from icestream.core.arrays import Floats
from icestream.core.times import INFINITY, Micros
from icestream.kernels.queue.staleness import BINS, PROFILE
from icestream.state.queue.staleness import middles, quantile
from icestream.state.queue.windows.spec import UpdateWindows


@dataclass(frozen=True)
class StalenessIntegral:
    """Staleness of some keys over some time: integral, keys times time, largest, distribution."""

    #: staleness summed over keys and time, microseconds squared
    area: float = 0.0
    #: keys times microseconds
    extent: float = 0.0
    most: Micros = 0
    #: ends minus beginnings of ramps by bin: how many, and their sum
    profile: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    #: number of keys by the bin of their own average
    averages: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        area: float,
        extent: float,
        most: Micros,
        profile: Floats,
        averages: Mapping[int, int] | None = None,
    ) -> StalenessIntegral:
        busy = np.flatnonzero(profile.any(axis=1)).tolist()
        by_bin = {each: tuple(profile[each].tolist()) for each in busy}
        return cls(area, extent, most, by_bin, averages or {})

    @property
    def average(self) -> float:
        """Return the mean over keys and time, in microseconds."""
        # the area of long ramps is rounded
        return min(max(0.0, self.area) / self.extent, self.most) if self.extent else 0.0

    def quantile(self, part: float) -> float:
        """Return the staleness that is not exceeded during a share `part` of all keys' time."""
        if not self.extent:
            return 0.0
        profile = np.zeros((BINS, PROFILE))
        for place, row in self.profile.items():
            profile[place] = row
        total = max(self.extent, float(profile[:, 1].sum()))
        return min(quantile(profile, total, part), float(self.most))

    def plus(self, other: StalenessIntegral) -> StalenessIntegral:
        profile = dict(self.profile)
        for place, (count, micros) in other.profile.items():
            ours = profile.get(place, (0.0, 0.0))
            profile[place] = ours[0] + count, ours[1] + micros
        averages = dict(self.averages)
        for place, keys in other.averages.items():
            averages[place] = averages.get(place, 0) + keys
        return StalenessIntegral(
            self.area + other.area,
            self.extent + other.extent,
            max(self.most, other.most),
            profile,
            averages,
        )

    def key_quantile(self, part: float) -> float:
        """Return the per-key average that a share `part` of all keys does not exceed."""
        if not self.averages:
            return 0.0
        places = np.array(sorted(self.averages))
        reached = np.cumsum([self.averages[place] for place in places.tolist()])
        at = np.searchsorted(reached, part * reached[-1])
        return min(float(middles()[places[at]]), float(self.most))

    def shown_whole(self) -> dict[str, Any]:
        """Return it in milliseconds, with quantiles of the keys' own averages."""
        keys = (("p50Ms", 0.5), ("p99Ms", 0.99), ("maxMs", 1.0))
        of_keys = {name: round(self.key_quantile(part) / 1000, 3) for name, part in keys}
        return {**self.shown(), "ofKeys": of_keys}

    def shown(self) -> dict[str, float]:
        """Return it in milliseconds, for the progress report."""
        return {
            "averageMs": round(self.average / 1000, 3),
            "p50Ms": round(self.quantile(0.5) / 1000, 3),
            "p99Ms": round(self.quantile(0.99) / 1000, 3),
            "maxMs": round(self.most / 1000, 3),
        }


@dataclass(frozen=True)
class ServingReport:
    """What one shard, or all of them, did in a version."""

    #: number of keys served, and of calls of the step
    served: int = 0
    calls: int = 0
    #: number of keys that wait, and of known keys
    waiting: int = 0
    keys: int = 0
    #: number of updates that newer ones replaced while they waited
    superseded: int = 0
    #: number of updates dropped because their key had a newer one
    outdated: int = 0
    #: microseconds of serving; of several shards the longest
    serving: Micros = 0
    #: staleness of answers since the query began, and since the previous version
    stale: StalenessIntegral = field(default_factory=StalenessIntegral)
    lately: StalenessIntegral = field(default_factory=StalenessIntegral)
    #: staleness in the queue since the query began, and since the previous version
    queued: StalenessIntegral = field(default_factory=StalenessIntegral)
    queued_lately: StalenessIntegral = field(default_factory=StalenessIntegral)
    #: for windows: number of tuples processed, and microseconds per tuple
    tuples: int = 0
    each: float = 0.0
    #: for windows: when the next one that has begun ends
    ends: Micros = INFINITY

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ServingReport:
        """Read what `to_json` wrote."""
        names = ("stale", "lately", "queued", "queued_lately")
        stale = {name: StalenessIntegral(**value[name]) for name in names}
        return cls(**{**value, **stale})

    def shown(self, *, queued: bool = True) -> dict[str, Any]:
        """Return the entries of the progress report; staleness only for keys that are queued."""
        staleness = {
            "staleness": self.lately.shown(),
            "totalStaleness": self.stale.shown_whole(),
            "queueStaleness": self.queued_lately.shown(),
            "totalQueueStaleness": self.queued.shown_whole(),
        }
        return {
            "served": self.served,
            "calls": self.calls,
            "waiting": self.waiting,
            "keys": self.keys,
            "superseded": self.superseded,
            "outdated": self.outdated,
            "servingMs": round(self.serving / 1000, 1),
            **(staleness if queued else {}),
        }

    def shown_windows(self, windows: UpdateWindows) -> dict[str, Any]:
        """Return what windows add to the report: the cost of a window and its bounds.

        `ms` is the time spent for each answer. The bounds are C_W with the measured tuples per
        window and time per tuple: processed once, or once for every window that overlaps.
        """
        if not self.served:
            return {}
        tuples = self.tuples / self.served
        least, most = windows.cost_bounds(self.each * tuples / windows.size)
        return {
            "windowCost": {
                "tuples": round(tuples, 1),
                "ms": round(self.serving / self.served / 1000, 4),
                "leastMs": round(least / 1000, 4),
                "mostMs": round(most / 1000, 4),
            }
        }


def combined_report(shards: Sequence[ServingReport]) -> ServingReport:
    """Add up the reports of shards about serving updates; of times the longest counts."""

    def added(name: str, one: Any, other: Any) -> Any:
        if isinstance(one, StalenessIntegral):
            return one.plus(other)
        if name == "ends":
            return min(one, other)
        return max(one, other) if name in ("serving", "each") else one + other

    total = ServingReport()
    for each in shards:
        mine, its = vars(total), vars(each)
        total = ServingReport(**{name: added(name, mine[name], its[name]) for name in mine})
    return total
