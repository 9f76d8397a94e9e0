from __future__ import annotations

import threading
from collections.abc import Generator

import pytest

from icestream.state.read_ahead import read_ahead


class Reading:
    """Reads numbers, and remembers how far ahead and where."""

    def __init__(self, count: int, fails_at: int | None = None) -> None:
        self.count = count
        self.fails_at = fails_at
        self.read = 0
        self.closed = False
        self.threads: set[int] = set()

    def blocks(self) -> Generator[int]:
        try:
            for number in range(self.count):
                self.threads.add(threading.get_ident())
                if number == self.fails_at:
                    msg = "unreadable"
                    raise OSError(msg)
                self.read += 1
                yield number
        finally:
            self.closed = True


def test_blocks_come_in_order_and_errors_in_their_place() -> None:
    whole = Reading(50)
    assert list(read_ahead(whole.blocks(), 3)) == list(range(50))
    assert whole.closed
    assert threading.get_ident() not in whole.threads
    broken = read_ahead(Reading(50, fails_at=7).blocks(), 5)
    assert [next(broken) for _ in range(7)] == list(range(7))
    with pytest.raises(OSError, match="unreadable"):
        next(broken)


@pytest.mark.parametrize("pool", [2, 3, 9])
def test_bounded_a_pool_of_blocks(pool: int) -> None:
    reading, most = Reading(200), 0
    for done, _ in enumerate(read_ahead(reading.blocks(), pool)):
        most = max(most, reading.read - done)
    assert 1 <= most <= pool


def test_stopping_early_closes_what_is_read_from() -> None:
    reading = Reading(200)
    before = threading.active_count()
    blocks = read_ahead(reading.blocks(), 4)
    assert next(blocks) == 0
    blocks.close()
    assert reading.closed
    assert threading.active_count() == before
