"""The behaviour of windows over blocks, the slow and obvious way.

Idea: `boundaries` goes through a stream tuple by tuple and yields where blocks end, so that a pool
can be tested without any block; `least_reads` tries every possible choice of victims and returns
the fewest reads; `inside` lists the tuples of a window at an event; `walk` reads a repository as
the kernels do, in plain Python, and yields the tuples that left each window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

from bench.research.window_blocks.repository import Repository


class Window(NamedTuple):
    """The length of a window: in time, or in tuples."""

    length: int
    rows: bool = False


class Roll(NamedTuple):
    """The recent block is full; its last tuple has this time and number."""

    time: int
    number: int


class Cross(NamedTuple):
    """A window used up its block."""

    window: int


def boundaries(
    times: Sequence[int], windows: Sequence[Window], factor: int
) -> Iterator[Roll | Cross]:
    """Yield where blocks end, in the order of the stream."""
    oldest = [0] * len(windows)
    block = [0] * len(windows)
    for number, now in enumerate(times):
        for w, window in enumerate(windows):
            while oldest[w] < number:
                if window.rows and number - oldest[w] < window.length:
                    break
                if oldest[w] == (block[w] + 1) * factor:
                    block[w] += 1
                    yield Cross(w)
                if not window.rows and now - times[oldest[w]] < window.length:
                    break
                oldest[w] += 1
        if number and number % factor == 0:
            yield Roll(times[number - 1], number - 1)


def least_reads(steps: Sequence[Roll | Cross], windows: int, capacity: int) -> int:
    """Return the fewest reads of any choice of victims."""

    @cache
    def fewest(at: int, ancient: tuple[int, ...], recent: int, kept: frozenset[int]) -> int:
        if at == len(steps):
            return 0
        step = steps[at]
        if isinstance(step, Roll):
            kept |= {recent}
            choices = [kept]
            if len(kept) == capacity:
                choices = [kept - {victim} for victim in kept - set(ancient)]
            return min(fewest(at + 1, ancient, recent + 1, choice) for choice in choices)
        left = ancient[step.window]
        wanted = left + 1
        after = (*ancient[: step.window], wanted, *ancient[step.window + 1 :])
        if left < min(after):
            kept -= {left}
        if wanted == recent or wanted in kept:
            return fewest(at + 1, after, recent, kept)
        choices = [kept]
        if len(kept) + 1 == capacity:
            choices = [kept - {victim} for victim in kept - set(after)]
        return 1 + min(fewest(at + 1, after, recent, choice | {wanted}) for choice in choices)

    return fewest(0, (0,) * windows, 0, frozenset())


def inside(times: Sequence[int], number: int, window: Window) -> range:
    """Return the numbers of the tuples in a window after a tuple has arrived."""
    first = number
    while first > 0 and (
        number - first + 1 < window.length
        if window.rows
        else times[number] - times[first - 1] < window.length
    ):
        first -= 1
    return range(first, number + 1)


def walk(
    repository: Repository, times: Sequence[int], windows: Sequence[Window]
) -> Iterator[list[list[int]]]:
    """Put tuples (time, number) into a repository; yield the numbers that left each window."""
    factor = repository.layout.factor
    clocks, numbers = repository.columns
    tail, cursors = repository.tail, repository.cursors
    for number, now in enumerate(times):
        gone: list[list[int]] = [[] for _ in windows]
        for w, window in enumerate(windows):
            while cursors[w, 1] < tail[1]:
                if window.rows and tail[1] - cursors[w, 1] < window.length:
                    break
                if cursors[w, 1] == cursors[w, 2]:
                    repository.cross(w)
                frame, row = cursors[w, 0], cursors[w, 1] - cursors[w, 2] + factor
                if not window.rows and now - clocks[frame, row] < window.length:
                    break
                gone[w].append(int(numbers[frame, row]))
                cursors[w, 1] += 1
        if tail[1] == tail[2]:
            repository.roll()
        frame, row = tail[0], tail[1] - tail[2] + factor
        clocks[frame, row], numbers[frame, row] = now, number
        tail[1] += 1
        yield gone
