"""One server and its queue, by definition, with lists and dictionaries: slow and obvious.

Idea: the oracle of the simulation. Waiting keys are a Python list in the order of the schedule;
staleness of a key is integrated from the definition: the time since its first update after the
newest value that was taken, or delivered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.oracles.service_price import PriceReference


@dataclass(frozen=True)
class ServiceRecord:
    """A service: key, oldest update it represents, arrival of the value, when it began."""

    key: int
    since: int
    value: int
    taken: int


class PlainServer:
    """Serves the newest update of every key, by one of the schedules."""

    def __init__(
        self, schedule: str, cost: int, gaps: Sequence[float] | None = None, smoothing: int = 32
    ) -> None:
        """Start with nothing waiting; `gaps` are mean gaps of keys if they are known."""
        self._schedule = schedule
        self._cost = cost
        self._known = gaps
        self._smoothing = smoothing
        self._first: int | None = None
        #: key -> newest update, mean gap, updates seen
        self._seen: dict[int, tuple[int, float, int]] = {}
        #: waiting keys in order, and for each its first update
        self._line: list[int] = []
        self._since: dict[int, int] = {}
        self._price = PriceReference(cost)

    def run(self, updates: Sequence[tuple[int, int]], until: int) -> list[ServiceRecord]:
        """Serve (time, key) updates until a time; return the services."""
        served: list[ServiceRecord] = []
        now = arrived = 0
        while now < until:
            while arrived < len(updates) and updates[arrived][0] <= now:
                self._arrive(*updates[arrived])
                arrived += 1
            if not self._line:
                if arrived == len(updates):
                    break
                now = updates[arrived][0]
                continue
            key = self._next(now)
            self._line.remove(key)
            since = self._since.pop(key)
            self._price.learn(now - since, self._gap(key), 1.0, now, len(self._line))
            served.append(ServiceRecord(key, since, self._seen[key][0], now))
            now += self._cost
            # arrivals at the end of a service count when the server is free
            while arrived < len(updates) and updates[arrived][0] < now:
                self._arrive(*updates[arrived])
                arrived += 1
        return served

    def _arrive(self, time: int, key: int) -> None:
        if self._first is None:
            self._first = time
        newest, gap, count = self._seen.get(key, (self._first, 0.0, 0))
        if count == 0:
            gap = float(time - self._first)
        else:
            gap += (time - newest - gap) / min(count + 1, self._smoothing)
        self._seen[key] = (time, gap, count + 1)
        waits = key in self._since
        is_slow = self._gap(key) > self._cost * len(self._line)
        if not waits:
            self._since[key] = time
        if self._schedule == "linecutting" and is_slow:
            self._line = [key] + [each for each in self._line if each != key]
        elif self._schedule == "fifo":
            self._line = [each for each in self._line if each != key] + [key]
        elif not waits:
            self._line.append(key)

    def _next(self, now: int) -> int:
        if self._schedule != "index":
            return self._line[0]
        price = self._price.price
        return max(
            self._line,
            key=lambda key: self._price.worth(now - self._since[key], self._gap(key), 1.0, price),
        )

    def _gap(self, key: int) -> float:
        return self._seen[key][1] if self._known is None else self._known[key]


def area(
    updates: Sequence[tuple[int, int]],
    changes: Sequence[tuple[int, int, int]],
    key: int,
    until: int,
) -> float:
    """Integrate a key's staleness from 0 to a time.

    Args:
        updates: (time, key) of every update.
        changes: (time, key, arrival of the value) of every service, or of every delivery.
        key: the key.
        until: the end time.
    """
    arrivals = sorted(time for time, each in updates if each == key)
    steps = [(0, -1), *((at, value) for at, each, value in changes if each == key and at < until)]
    total = 0.0
    for place, (begin, value) in enumerate(steps):
        end = steps[place + 1][0] if place + 1 < len(steps) else until
        first = next((time for time in arrivals if time > value), until)
        if first < end:
            start = max(begin, first)
            total += ((end - first) ** 2 - (start - first) ** 2) / 2
    return total
