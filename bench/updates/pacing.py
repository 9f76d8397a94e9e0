"""Sends events at a rate and measures how long they waited for their results.

Idea: at a rate of R, event `i` is due `i / R` seconds after the start. All events that are due are
fed at once, and their results are there when the call returns; the clock is read then, once for
all. An event's latency is the time from when it was due, not from when it was sent: a stall counts
for every event that had to wait for it.

Invariants:
1. Events wait from when they were due (`test_a_stall_counts_for_every_event_that_was_due`).

Limits: nothing is due more often than the clock is read; between events the sender sleeps, for some
0.1 ms on Linux.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

#: maximum number of events fed at once; and without a rate
MOST = 100_000
AT_ONCE = 1_000
#: seconds to sleep if no event is due
PAUSE = 50e-6


@dataclass(slots=True)
class Waits:
    """How long events waited for their results, in seconds."""

    events: int = 0
    #: of all events together, from when they were due
    total: float = 0.0
    longest: float = 0.0
    #: spent in the operator
    serving: float = 0.0


def send_when_due(
    first: int,
    rate: int,
    seconds: float,
    feed: Callable[[int], None],
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> Waits:
    """Feed events as they fall due, evenly; those that are due at once are fed together."""
    waits = Waits()
    wanted = int(rate * seconds)
    start = clock()
    while waits.events < wanted:
        now = clock()
        # event i is due at start + i / rate
        due = min(int((now - start) * rate) + 1, wanted, waits.events + MOST)
        if due <= waits.events:
            sleep(PAUSE)
            continue
        feed(first + due)
        done = clock() - start
        sent = due - waits.events
        # the sum of i / rate over the events fed
        due_times = (waits.events + due - 1) * sent / 2 / rate
        waits.total += sent * done - due_times
        waits.longest = max(waits.longest, done - waits.events / rate)
        waits.serving += done - (now - start)
        waits.events = due
    return waits


def send_at_once(first: int, seconds: float, feed: Callable[[int], None]) -> Waits:
    """Feed events as fast as they are accepted; an event waits while its batch is processed."""
    waits = Waits()
    started = before = time.perf_counter()
    while before - started < seconds:
        feed(first + waits.events + AT_ONCE)
        now = time.perf_counter()
        waits.events += AT_ONCE
        waits.total += (now - before) * AT_ONCE
        waits.longest = max(waits.longest, now - before)
        before = now
    waits.serving = before - started
    return waits
