"""Where blocks are in a file: stored as runs, because neighbours in time are neighbours on disk.

Idea: one window writes its blocks one after the other, so three numbers describe them all: "block 7
and the 131,071 after it start at place 3". The map costs only what disorder costs: nothing for one
window, a few dozen bytes for each break where several windows write blocks out of order.

Invariants:
1. `Places` behaves like a dict, `Vacancies` like a queue
   (`test_oracle_places_answer_as_a_dict`, `test_oracle_vacancies_answer_as_a_queue`).
2. Blocks written in order form one run, however many there are
   (`test_bounded_order_costs_one_run`).

Cost: O(log runs) per lookup, O(runs) list moves per change.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque

#: bytes of a run in memory: three numbers in lists
RUN_BYTES = 3 * (8 + 32)


class Places:
    """Numbers of places by block."""

    def __init__(self) -> None:
        """Start empty."""
        self._first: list[int] = []
        self._place: list[int] = []
        self._length: list[int] = []
        self._blocks = 0

    def __len__(self) -> int:
        """Count the blocks."""
        return self._blocks

    @property
    def bytes(self) -> int:
        """Bytes of the map in memory."""
        return RUN_BYTES * len(self._first)

    def get(self, block: int) -> int | None:
        """Return the place of a block, or None."""
        run = bisect_right(self._first, block) - 1
        if run < 0 or block - self._first[run] >= self._length[run]:
            return None
        return self._place[run] + block - self._first[run]

    def put(self, block: int, place: int) -> None:
        """Add a block that is not in the map."""
        run = bisect_right(self._first, block)
        self._blocks += 1
        if run and self._follows(run - 1, block, place):
            self._length[run - 1] += 1
            if run < len(self._first) and self._follows(
                run - 1, self._first[run], self._place[run]
            ):
                self._length[run - 1] += self._length[run]
                self._delete(run)
        elif (
            run < len(self._first)
            and self._first[run] == block + 1
            and self._place[run] == place + 1
        ):
            self._first[run], self._place[run] = block, place
            self._length[run] += 1
        else:
            self._insert(run, block, place, 1)

    def pop(self, block: int) -> int:
        """Remove a block and return its place; KeyError if it is not in the map."""
        place = self.get(block)
        if place is None:
            raise KeyError(block)
        run = bisect_right(self._first, block) - 1
        before = block - self._first[run]
        after = self._length[run] - before - 1
        self._blocks -= 1
        if before and after:
            self._length[run] = before
            self._insert(run + 1, block + 1, place + 1, after)
        elif before:
            self._length[run] = before
        elif after:
            self._first[run], self._place[run] = block + 1, place + 1
            self._length[run] = after
        else:
            self._delete(run)
        return place

    def _follows(self, run: int, block: int, place: int) -> bool:
        length = self._length[run]
        return block == self._first[run] + length and place == self._place[run] + length

    def _insert(self, run: int, first: int, place: int, length: int) -> None:
        self._first.insert(run, first)
        self._place.insert(run, place)
        self._length.insert(run, length)

    def _delete(self, run: int) -> None:
        del self._first[run], self._place[run], self._length[run]


class Vacancies:
    """Free places, reused in the order in which they were freed."""

    def __init__(self) -> None:
        """Start empty."""
        #: runs of places: first and length
        self._runs: deque[tuple[int, int]] = deque()

    @property
    def bytes(self) -> int:
        """Bytes of the queue in memory."""
        return RUN_BYTES * len(self._runs)

    def put(self, place: int) -> None:
        """Add a free place."""
        if self._runs:
            first, length = self._runs[-1]
            if place == first + length:
                self._runs[-1] = (first, length + 1)
                return
        self._runs.append((place, 1))

    def take(self) -> int | None:
        """Remove and return the place that was freed first, or None."""
        if not self._runs:
            return None
        first, length = self._runs.popleft()
        if length > 1:
            self._runs.appendleft((first + 1, length - 1))
        return first
