"""Blocks read before they are needed, by a thread, while those before them are worked on.

Invariants:
1. Blocks come in their order, and an error where its block would have come
   (`test_blocks_come_in_order_and_errors_in_their_place`).
2. No more than `pool` blocks are read and not done with (`test_bounded_a_pool_of_blocks`).
3. Whoever stops early ends the thread and closes what is read from
   (`test_stopping_early_closes_what_is_read_from`).

Cost: two wake-ups for each block.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import Final, TypeVar

from icestream.state.worker_thread import WorkerThread

T = TypeVar("T")

_END: Final = object()


def read_ahead(blocks: Generator[T], pool: int) -> Generator[T]:
    """Yield blocks; a block is done with when the next one is asked for.

    Args:
        blocks: reads a block each time it is asked for one; it runs in the thread.
        pool: blocks in memory, that which is worked on included; at least two.
    """
    lane = WorkerThread("block-reader")
    ready: deque[T | object] = deque()

    def read() -> None:
        ready.append(next(blocks, _END))

    try:
        for _ in range(max(1, pool - 1)):
            lane.give(read)
        while True:
            lane.collect()
            block = ready.popleft()
            if block is _END:
                return
            lane.give(read)
            yield block  # type: ignore[misc]
            del block
    finally:
        lane.close()
        blocks.close()
