from __future__ import annotations

import pytest

from bench.updates.pacing import AT_ONCE, send_at_once, send_when_due


def test_a_stall_counts_for_every_event_that_was_due() -> None:
    # 10 events a second; feeding takes no time but for event 3, which takes a second
    now = [0.0]

    def feed(until: int) -> None:
        now[0] += 1.0 if until == 4 else 0.0

    def sleep(_: float) -> None:
        now[0] += 0.01

    waits = send_when_due(0, 10, 2.0, feed, lambda: now[0], sleep)
    assert waits.events == 20
    assert waits.longest == pytest.approx(1.0, abs=0.02)
    # event 3 waits a second, events 4 to 12 were due during it and wait 0.9 to 0.1
    assert waits.total == pytest.approx(1.0 + sum(n / 10 for n in range(1, 10)), abs=0.3)
    assert waits.serving == pytest.approx(1.0, abs=0.02)


def test_without_a_rate_events_are_fed_one_batch_after_the_other() -> None:
    fed: list[int] = []
    waits = send_at_once(5, 0.002, fed.append)
    assert fed == [5 + AT_ONCE * (i + 1) for i in range(len(fed))]
    assert waits.events == AT_ONCE * len(fed)
    assert 0 < waits.longest <= waits.serving
