"""The slow, obvious update queue: dictionaries and lists, staleness by its definition.

Idea: every update and every delivery is recorded. A key's staleness at a time is the age of its
oldest update after the newest one delivered; its integral is summed up piece by piece between the
times at which anything happened.

Cost: O(all events so far) per call.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise

from icestream.core.times import INFINITY, Micros
from icestream.state.queue.windows.spec import UpdateWindows

Key = Hashable


@dataclass(frozen=True)
class Update:
    """One update of a key."""

    key: Key
    number: int
    arrived: Micros
    value: object


@dataclass(frozen=True)
class DequeuedUpdate:
    """A dequeued update: the newest one of a key and the oldest it represents."""

    update: Update
    since: Micros


@dataclass
class KeyHistory:
    """The history of a key."""

    updates: list[Update] = field(default_factory=list)
    #: (time, number of the update) when the queue served it, or the application received it
    served: list[tuple[Micros, int]] = field(default_factory=list)
    delivered: list[tuple[Micros, int]] = field(default_factory=list)
    gap: float = 0.0


def integral(
    updates: list[Update], handed_over: list[tuple[Micros, int]], began: Micros, now: Micros
) -> tuple[Fraction, Micros]:
    """Return area under the staleness of a key from `began` to `now`, and its largest value."""
    instants = {began, now}
    instants |= {update.arrived for update in updates} | {at for at, _ in handed_over}
    ordered = sorted(instant for instant in instants if began <= instant <= now)
    area, most = Fraction(0), 0
    for first, last in pairwise(ordered):
        done = max((number for at, number in handed_over if at <= first), default=-1)
        pending = [u.arrived for u in updates if u.number > done and u.arrived <= first]
        if pending:
            oldest = min(pending)
            area += Fraction((last - oldest) ** 2 - (first - oldest) ** 2, 2)
            most = max(most, last - oldest)
    return area, most


class PlainHistory:
    """The common part of update queue and append queue: histories and staleness."""

    def __init__(self) -> None:
        """Start with no key."""
        self.keys: dict[Key, KeyHistory] = {}
        #: arrival of the first update of all, and the earliest of a key's first ones
        self.began: Micros | None = None
        self.first: Micros = INFINITY
        self.late = 0

    def accept(self, key: Key, arrived: Micros, value: object, smoothing: int) -> Update | None:
        """Record an update; None if it goes back in time."""
        history = self.keys.setdefault(key, KeyHistory())
        updates = history.updates
        if updates and arrived < updates[-1].arrived:
            self.late += 1
            return None
        if self.began is None:
            self.began = arrived
        if updates:
            gap = arrived - updates[-1].arrived
            history.gap += (gap - history.gap) / min(len(updates) + 1, smoothing)
        else:
            self.first = min(self.first, arrived)
            history.gap = float(arrived - self.first)
        update = Update(key, len(updates), arrived, value)
        updates.append(update)
        return update

    def deliver(self, served: DequeuedUpdate, at: Micros) -> None:
        """Record that the application has an update."""
        self.keys[served.update.key].delivered.append((at, served.update.number))

    def staleness(self, now: Micros, *, application: bool) -> dict[Key, tuple[Fraction, Micros]]:
        """Return average and largest staleness of every key."""
        assert self.began is not None
        found = {}
        for key, history in self.keys.items():
            handed_over = history.delivered if application else history.served
            area, most = integral(history.updates, handed_over, self.began, now)
            found[key] = (area / max(now - self.began, 1), most)
        return found


class PlainUpdateQueue(PlainHistory):
    """Keeps the newest update of every key."""

    def __init__(self, schedule: str, cost: Micros = 0, smoothing: int = 32) -> None:
        """Start empty."""
        super().__init__()
        self.schedule = schedule
        self.smoothing = smoothing
        self.cost = cost
        #: waiting keys in order, and the oldest update that each represents
        self.line: list[Key] = []
        self.since: dict[Key, Micros] = {}

    def __len__(self) -> int:
        """Return the number of waiting keys."""
        return len(self.since)

    def enqueue(self, key: Key, arrived: Micros, value: object) -> None:
        """Add an update."""
        if self.accept(key, arrived, value, self.smoothing) is None:
            return
        slow = self.schedule == "linecutting" and self.keys[key].gap > self.cost * len(self.since)
        if key in self.since:
            if not slow and self.schedule != "fifo":
                return
            self.line.remove(key)
        self.since.setdefault(key, arrived)
        self.line.insert(0 if slow else len(self.line), key)

    def read(self, count: int) -> list[DequeuedUpdate]:
        """Return the updates that would be served."""
        return [
            DequeuedUpdate(self.keys[key].updates[-1], self.since[key]) for key in self.line[:count]
        ]

    def dequeue(self, count: int, now: Micros) -> list[DequeuedUpdate]:
        """Take updates in the order of the schedule."""
        taken, self.line = self.read(count), self.line[count:]
        for served in taken:
            self.keys[served.update.key].served.append((now, served.update.number))
            del self.since[served.update.key]
        return taken


class PlainAppendQueue(PlainHistory):
    """Keeps every update except those marked as shed."""

    def __init__(self) -> None:
        """Start empty."""
        super().__init__()
        self.line: list[DequeuedUpdate] = []

    def __len__(self) -> int:
        """Return the number of waiting updates."""
        return len(self.line)

    def enqueue(self, key: Key, arrived: Micros, value: object, *, shed: bool = False) -> None:
        """Add an update."""
        update = self.accept(key, arrived, value, 32)
        if update is not None and not shed:
            kept = [served.update.number for served in self.line if served.update.key == key]
            kept += [number for _, number in self.keys[key].served]
            first = self.keys[key].updates[max(kept, default=-1) + 1]
            self.line.append(DequeuedUpdate(update, first.arrived))

    def dequeue(self, count: int, now: Micros) -> list[DequeuedUpdate]:
        """Take updates in order of arrival."""
        taken, self.line = self.line[:count], self.line[count:]
        for served in taken:
            self.keys[served.update.key].served.append((now, served.update.number))
        return taken


def last_instant(windows: UpdateWindows, number: int) -> int:
    """The last instant of a window."""
    return number * windows.slide + windows.size - 1
