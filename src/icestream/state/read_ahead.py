"""A thread that reads blocks before they are needed, while earlier ones are processed.

Invariants:
1. Blocks come in order, and an error comes in place of its block
   (`test_blocks_come_in_order_and_errors_in_their_place`).
2. At most `pool` blocks are read and not finished (`test_bounded_a_pool_of_blocks`).
3. A consumer that stops early ends the thread and closes the source
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
    """Yield blocks that a thread reads ahead; one is finished when the next is requested.

    Args:
        blocks: reads a block on each request; it runs in the thread.
        pool: blocks in memory, including the one being processed; at least two.
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
