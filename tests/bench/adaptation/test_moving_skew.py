from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from bench.adaptation import moving_skew
from bench.adaptation.moving_skew import Adaptation, Case, Gauge, SkewedStream, SkewRun, VirtualPace
from bench.research.migration import Way

TINY = Case(2, 2, 40, 60, 3, 1, 1)


OTHERS = (None, Way.DISRUPTIVE, Way.HANDOVER)


@pytest.mark.parametrize(
    "way", [Way.INSTANT, *(pytest.param(way, marks=pytest.mark.slow) for way in OTHERS)]
)
def test_every_row_is_counted_once(
    tmp_path: Path, way: Way | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def turned(_: object, places: tuple[int, ...], nodes: int, **__: object) -> list[int]:
        return [(place + 1) % nodes for place in places]

    monkeypatch.setattr(moving_skew, "rebalanced", turned)
    keys = moving_skew.keys_by_group(TINY)
    found = moving_skew.run(TINY, keys, Adaptation(way), VirtualPace(1e3, 100.0), tmp_path, Gauge())
    assert found.wrong == 0
    # every group after every minute but the calm one and the last
    assert found.moves == (0 if way is None else 4 * 4)
    assert all(delay >= took > 0 for _, took, delay in found.batches)


def test_batches_begin_one_after_the_other(tmp_path: Path) -> None:
    keys = moving_skew.keys_by_group(TINY)
    found = moving_skew.run(TINY, keys, moving_skew.NONE, VirtualPace(1e3, 0.0), tmp_path, Gauge())
    # a trigger is longer than any batch: each takes the rows of one
    assert [round(3 * minute) for minute, _, _ in found.batches] == list(range(TINY.steps))
    assert all(first[0] < second[0] for first, second in pairwise(found.batches))


def test_groups_may_move_after_every_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[float]] = []

    def watched(loads: list[float], places: tuple[int, ...], *_: object, **__: object) -> list[int]:
        seen.append(loads)
        return list(places)

    monkeypatch.setattr(moving_skew, "rebalanced", watched)
    keys = moving_skew.keys_by_group(TINY)
    every = Adaptation(Way.INSTANT, 0)
    found = moving_skew.run(TINY, keys, every, VirtualPace(1e3, 0.0), tmp_path, Gauge())
    assert every.name == "instant, every batch"
    # from the end of the calm minute on
    assert len(seen) == len(found.batches) - TINY.triggers
    assert all(min(loads) > 0 for loads in seen)


def test_times_are_those_of_one_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    gauge = Gauge()
    work = moving_skew.present_value

    def slow(rows: pa.RecordBatch) -> pa.RecordBatch:
        return [work(rows) for _ in range(20)][-1]

    monkeypatch.setattr(moving_skew, "present_value", slow)
    odd, same, slower = (gauge.slowness() for _ in range(3))
    # one odd time changes little
    assert odd < 5
    assert max(same, slower) > 5


def test_load_rises_on_the_groups_of_one_node_only() -> None:
    case = Case(2, 2, 40, 60, 10, 1, 2)
    stream = SkewedStream(case, moving_skew.keys_by_group(case), 100.0)
    places = (0, 1, 0, 1)
    calm = stream.rows(0, 1, places).num_rows
    risen = [stream.rows(step, step + 1, places).num_rows for step in range(10, 60)]
    assert calm == 4 * 60
    assert risen[0] == calm
    assert max(risen) == calm + 100
    assert np.diff(risen[:30]).min() >= 0
    # the next round begins with the groups of the other node, and from nothing
    assert stream.rows(60, 61, places).num_rows == calm


def test_keys_are_in_the_group_that_they_are_listed_in() -> None:
    keys = moving_skew.keys_by_group(TINY)
    assert sorted(np.concatenate(keys).tolist()) == list(range(4 * 40))


def test_a_third_is_wanted_of_the_time_without_adaptation() -> None:
    names = [way.name for way in moving_skew.WAYS]
    ways = {name: {"p99_s": 1.0} for name in names} | {"none": {"p99_s": 3.0}}
    balanced = {"p99_s": 1.0, "moves": 10, "lost_or_twice": 0}
    fixed = {"p99_s": 2.0, "moves": 0, "lost_or_twice": 0}
    real = {"rounds": 5, "with balancing": balanced, "without balancing": fixed}
    assert all(bar.holds for bar in moving_skew.bars({"ways": ways, "cluster": real}, 0))
    ways["none"]["p99_s"] = 2.9
    balanced |= {"p99_s": 1.1, "moves": 9, "lost_or_twice": -1}
    assert not any(bar.holds for bar in moving_skew.bars({"ways": ways, "cluster": real}, 1))


def test_delays_are_drawn(tmp_path: Path) -> None:
    run = SkewRun(batches=[(0.0, 1.0, 2.0), (0.5, 1.0, 2.0)])
    moving_skew.plot({"ways": {"none": {"timeline": run.batches}}}, tmp_path / "skew.png")
    assert (tmp_path / "skew.png").stat().st_size > 0
