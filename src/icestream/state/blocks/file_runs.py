"""Where blocks lie in a file: as runs, because neighbours in time are neighbours on disk.

Idea: one window writes its blocks one after the other, so that "block 7 and the 131,071 after it
lie from place 3 on" says it all in three numbers. A map of runs costs what the disorder costs:
nothing for one window, a few dozen bytes for each break where several write blocks out of order.

Invariants:
1. `Places` answers as a dict would, `Vacancies` as a queue would
   (`test_oracle_places_answer_as_a_dict`, `test_oracle_vacancies_answer_as_a_queue`).
2. Blocks written in order are one run however many they are (`test_bounded_order_costs_one_run`).

Cost: O(log runs) to find, O(runs) list moves to change.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque

#: bytes a run takes in memory: three numbers in lists
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
        """Bytes that the map takes in memory."""
        return RUN_BYTES * len(self._first)

    def get(self, block: int) -> int | None:
        """Return the place of a block, or None."""
        run = bisect_right(self._first, block) - 1
        if run < 0 or block - self._first[run] >= self._length[run]:
            return None
        return self._place[run] + block - self._first[run]

    def put(self, block: int, place: int) -> None:
        """Add a block that is not there."""
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
        """Take a block out and return its place; KeyError if it is not there."""
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
    """Places that were given back, taken again in that order."""

    def __init__(self) -> None:
        """Start empty."""
        #: runs of places: first and length
        self._runs: deque[tuple[int, int]] = deque()

    @property
    def bytes(self) -> int:
        """Bytes that the queue takes in memory."""
        return RUN_BYTES * len(self._runs)

    def put(self, place: int) -> None:
        """Give a place back."""
        if self._runs:
            first, length = self._runs[-1]
            if place == first + length:
                self._runs[-1] = (first, length + 1)
                return
        self._runs.append((place, 1))

    def take(self) -> int | None:
        """Take the place that was given back first, or None."""
        if not self._runs:
            return None
        first, length = self._runs.popleft()
        if length > 1:
            self._runs.appendleft((first + 1, length - 1))
        return first
