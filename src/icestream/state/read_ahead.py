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
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")

_END: Final = object()


def read_ahead(blocks: Generator[T], pool: int) -> Generator[T]:
    """Yield blocks that a thread reads ahead; one is finished when the next is requested.

    Args:
        blocks: reads a block on each request; it runs in the thread.
        pool: blocks in memory, including the one being processed; at least two.
    """
    ready: deque[Future[T | object]] = deque()
    try:
        with ThreadPoolExecutor(1, "block-reader") as lane:
            try:
                for _ in range(max(1, pool - 1)):
                    ready.append(lane.submit(next, blocks, _END))
                while (block := ready.popleft().result()) is not _END:
                    ready.append(lane.submit(next, blocks, _END))
                    yield block  # type: ignore[misc]
                    del block
            finally:
                for each in ready:
                    each.cancel()
    finally:
        blocks.close()
