"""The obvious window queue: all tuples of all keys in lists, and the rules taken literally.

Idea: what `kernels.queue.windows` stores in blocks and linked lists is recomputed here, in every
call, from everything that ever came: which window is the newest, its tuples, what is still alive.

Limits: for tests; every call takes time proportional to the number of tuples.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class PlainKey:
    """A key with everything known about it."""

    tuples: list[tuple[int, int]] = field(default_factory=list)
    states: set[str] = field(default_factory=set)
    since: int = 0
    #: number of the newest window that counted as an update
    newest: int = -1
    committed: int = -1
    #: times the committed window was read up to
    read_to: int = 0
    #: time up to which no more tuples come
    clock: int = 0


@dataclass
class PlainWindows:
    """Windows under update semantics, by definition."""

    size: int
    slide: int
    eager: bool
    fifo: bool = False
    keys: dict[int, PlainKey] = field(default_factory=dict)
    waiting: list[int] = field(default_factory=list)
    processing: list[int] = field(default_factory=list)

    def enqueue(self, name: int, time: int, arrived: int) -> str:
        """Add a tuple; return `late`, `taken` or `update`."""
        key = self.keys.setdefault(name, PlainKey())
        if time <= key.clock:
            return "late"
        key.tuples.append((time, arrived))
        key.clock = time
        self._promote(name)
        return "update" if self._updated(name, arrived) else "taken"

    def advance(self, name: int, time: int, arrived: int) -> bool:
        """Record that no tuple of a key comes up to a time; return whether that made an update."""
        key = self.keys.get(name)
        if key is None or time <= key.clock:
            return False
        key.clock = time
        if key.committed >= 0 and time >= self.end(key.committed):
            self._promote(name)
        return self._updated(name, arrived)

    def _promote(self, name: int) -> None:
        key = self.keys[name]
        if "IDLE" in key.states:
            key.states.discard("IDLE")
            key.states.add("READY")
            self.processing.append(name)

    def _updated(self, name: int, arrived: int) -> bool:
        key = self.keys[name]
        newest = max(self.windows(key), default=-1)
        if newest <= key.newest:
            return False
        key.newest = newest
        if "WAIT" not in key.states:
            key.states.add("WAIT")
            key.since = arrived
            self.waiting.append(name)
        elif self.fifo:
            self.waiting.remove(name)
            self.waiting.append(name)
        return True

    def windows(self, key: PlainKey) -> list[int]:
        """Return the windows that count: those that started, or those that are full."""
        first, last = key.tuples[0][0] // self.slide, key.tuples[-1][0]
        numbers = range(first, last // self.slide + 1)
        return [
            number
            for number in numbers
            if self.content(key, number) and (self.eager or self.end(number) <= key.clock)
        ]

    def end(self, number: int) -> int:
        """Return the last instant of a window."""
        return number * self.slide + self.size - 1

    def content(self, key: PlainKey, number: int) -> list[int]:
        """Return the times of the tuples of a window so far."""
        return [t for t, _ in key.tuples if number * self.slide <= t <= self.end(number)]

    def serve(self) -> tuple[int, int] | None:
        """Return the key to serve and its next tuple, 0 if it has none; None if there is no key."""
        if not self.processing:
            free = [name for name in self.waiting if self.keys[name].committed < 0]
            if not free:
                return None
            name = free[0]
            self.waiting.remove(name)
            key = self.keys[name]
            key.states = {"READY"}
            key.committed, key.read_to = key.newest, 0
            self.processing.append(name)
        name = self.processing[0]
        return name, next(iter(self.unread(self.keys[name])), 0)

    def unread(self, key: PlainKey) -> list[int]:
        """Return the rest of the committed window."""
        if key.committed < 0:
            return []
        return [time for time in self.content(key, key.committed) if time > key.read_to]

    def read(self, name: int) -> None:
        """Move past the tuple that `serve` returned."""
        key = self.keys[name]
        key.read_to = self.unread(key)[0]

    def finish(self, name: int) -> bool:
        """Move a key on after its tuple was processed; return whether its window is done."""
        key = self.keys[name]
        if self.unread(key):
            return False
        self.processing.remove(name)
        key.states.discard("READY")
        if key.clock < self.end(key.committed):
            key.states.add("IDLE")
            return False
        key.committed = -1
        return True

    def live(self, name: int) -> tuple[set[int], set[int]]:
        """Return the times of the tuples a buffer needs: from the newest window on, and in all."""
        key = self.keys[name]
        pending = "WAIT" in key.states
        if pending:
            needed = key.newest * self.slide
        elif self.eager:
            needed = 2**62
        else:
            first = key.tuples[0][0] // self.slide
            needed = (max(key.newest, first - 1) + 1) * self.slide
        kept = {time for time, _ in key.tuples if time >= needed}
        return kept, kept | set(self.unread(key))
