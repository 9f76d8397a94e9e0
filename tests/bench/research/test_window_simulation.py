"""Runs of windows in virtual time, and how stale their answers are."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.research.window_simulation import Input, WindowQueueRun, run_append, run_updates
from icestream.state.queue.windows.spec import Semantics, UpdateWindows
from tests.oracles.queue import last_instant

SPECS = st.builds(
    lambda a, b, semantics: UpdateWindows(max(a, b), min(a, b), semantics),
    st.integers(1, 5),
    st.integers(1, 5),
    st.sampled_from(["lazy", "eager"]),
)
KEYS = st.lists(st.integers(0, 2), min_size=1, max_size=40).map(
    lambda keys: np.array(keys, dtype=np.int64)
)


def numbers_of(windows: UpdateWindows, times: list[int], now: int) -> list[int]:
    """Windows with tuples that are full."""
    return [
        number
        for number in range(times[0] // windows.slide, now // windows.slide + 1)
        if last_instant(windows, number) <= now
        and any(number * windows.slide <= time <= last_instant(windows, number) for time in times)
    ]


def plain_area(run: WindowQueueRun, key: int) -> Fraction:
    """Add up staleness at the middle of every unit of time: exact, as all happens at whole ones."""
    given = run.given
    mine = [
        (int(time), int(at))
        for time, at, of in zip(given.times, given.arrived, given.keys, strict=True)
        if of == key
    ]
    area = Fraction(0)
    for begin in range(given.until):
        middle = begin + Fraction(1, 2)
        seen = [time for time, at in mine if at <= begin]
        delivered = [w for of, w, at in run.deliveries.tolist() if of == key and at <= begin]
        if not seen:
            continue
        pending = [
            number
            for number in numbers_of(run.windows, seen, seen[-1])
            if number > max(delivered, default=-1)
        ]
        if pending:
            full = min(
                next(at for time, at in mine if time >= last_instant(run.windows, number))
                for number in pending
            )
            area += middle - full
    return area


@given(spec=SPECS, keys=KEYS, own_time=st.booleans(), cost=st.integers(1, 3))
@settings(max_examples=60)
def test_oracle_staleness_beside_every_instant(
    spec: UpdateWindows, keys: np.ndarray, own_time: bool, cost: int
) -> None:
    given_input = Input.of(keys, own_time=own_time)
    shed = run_append(spec, given_input, cost, keep=0.6)
    for run in (run_updates(spec, given_input, cost), shed):
        for key in np.unique(keys).tolist():
            assert run.application(key).area == plain_area(run, key)


def plain_append(spec: UpdateWindows, given_input: Input, cost: int) -> list[list[int]]:
    now, out = 0, []
    opened: dict[int, list[int]] = {}
    delivered: dict[int, int] = {}
    rows = zip(
        given_input.keys.tolist(),
        given_input.times.tolist(),
        given_input.arrived.tolist(),
        strict=True,
    )
    for key, time, arrived in rows:
        times = opened.setdefault(key, [])
        times.append(time)
        first = times[0] // spec.slide
        inside = [n for n in range(first, time // spec.slide + 1) if time <= last_instant(spec, n)]
        now = max(now, arrived) + cost * len(inside)
        for number in numbers_of(spec, times, time):
            if number > delivered.get(key, -1):
                out.append([key, number, now])
                delivered[key] = number
    return sorted(out, key=lambda each: (each[2], each[1]))


@given(spec=SPECS, keys=KEYS, own_time=st.booleans(), cost=st.integers(1, 3))
@settings(max_examples=60)
def test_oracle_append_windows_beside_a_queue_of_tuples(
    spec: UpdateWindows, keys: np.ndarray, own_time: bool, cost: int
) -> None:
    given_input = Input.of(keys, own_time=own_time)
    found = run_append(spec, given_input, cost).deliveries.tolist()
    assert found == plain_append(spec, given_input, cost)


@pytest.mark.parametrize("semantics", ["lazy", "eager"])
def test_runs_repeat(semantics: Semantics) -> None:
    keys = np.random.default_rng(3).integers(0, 5, 500)
    given_input = Input.of(keys, own_time=True)
    spec = UpdateWindows(6, 2, semantics)
    one, two = (run_updates(spec, given_input, 2).deliveries.tolist() for _ in range(2))
    assert one == two
    shed = [run_append(spec, given_input, 2, keep=0.3, seed=7).deliveries.tolist() for _ in "ab"]
    assert shed[0] == shed[1]


def test_tumbling_windows_as_computed_by_hand() -> None:
    """Cost 1, a tuple at every instant: LAZY answers one window late, EAGER one tuple late."""
    for size in (2, 5, 10):
        given_input = Input.of(np.zeros(size * 400, dtype=np.int64), own_time=True)
        lazy = run_updates(UpdateWindows(size, size, "lazy"), given_input, 1)
        eager = run_updates(UpdateWindows(size, size, "eager"), given_input, 1)
        assert lazy.staleness == pytest.approx(size / 2, rel=0.02)
        assert eager.staleness == pytest.approx(1 / (2 * size), rel=0.02)


def test_windows_over_the_time_of_arrival_have_gaps() -> None:
    given_input = Input.of(np.array([0, 1, 0, 1, 1], dtype=np.int64), own_time=False)
    assert given_input.times.tolist() == [1, 2, 3, 4, 5]
    own = Input.of(np.array([0, 1, 0, 1, 1], dtype=np.int64), own_time=True)
    assert own.times.tolist() == [1, 1, 2, 2, 3]
