"""Windows made of windows, inside whole queries and on their own."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.grid.composed_windows import FROM_PANES, PaneTiling, Tiled
from icestream.plan.grid import lower
from icestream.plan.grid.cost import KeyCounts
from icestream.plan.nodes.queries import Plan, View
from icestream.plan.windows.grid import Cumulative, Grid, Windows
from icestream.runtime.driver import Delivery
from icestream.runtime.work.windows import work as window_work
from icestream.testing.sources import (
    SECOND,
    Item,
    Marker,
    StreamShape,
    batches_of,
    generate,
    shapes,
)
from tests.fixtures.plans import every_aggregate, open_query, window_plan
from tests.oracles.grid import ObviousWindows, differences, rows_of
from tests.suites.window_conformance import QueryConformance, small_sizes

TWO = pa.schema([("value", pa.float64()), ("whole", pa.int64())])
WORDS = pa.schema([("name", pa.string()), ("number", pa.float64())])


def tumbling(length: int, offset: int = 0) -> Windows:
    return Windows(length * SECOND, length * SECOND, offset * SECOND)


def plan_of(*windows: Windows | Cumulative, modes: dict[int, str] | None = None) -> Plan:
    """Return a plan with a view for each kind of window, over keys of two columns."""
    alone = window_plan(keys=WORDS, inputs=TWO, slack="1 second")
    every = every_aggregate(TWO)
    views = tuple(
        View(
            each,
            every[number % 3 :: 3],
            (((0, 1),), ((1,), ()))[number % 2],
            (0, 1),
            tells_grouping=number % 2 == 1,
            mode=(modes or {}).get(number, "append"),
        )
        for number, each in enumerate(windows)
    )
    return replace(alone, views=views)


def alike(count: float = 1.0) -> Any:
    """Let queries take every pane and window for equally many groups, so that composing pays."""
    chosen = lower.composition
    keys = KeyCounts(((1, count),))
    return mock.patch.object(lower, "composition", lambda plan, _: chosen(plan, keys))


def run(
    plan: Plan, folder: Path, items: Sequence[Item], budget: str = "16 MB"
) -> tuple[list[list[pa.Table]], list[Delivery]]:
    """Return the rows of every view, batch by batch, and all that was delivered."""
    found: list[list[pa.Table]] = [[] for _ in plan.views]
    delivered: list[Delivery] = []
    query = open_query(plan, str(folder), budget=budget)
    for item in [*items, None]:
        if isinstance(item, Marker):
            query = open_query(plan, str(folder), budget=budget)
            continue
        driver = query.driver
        deliveries = driver.flush() if item is None else driver.batch(query.next_batch, item)
        for view, tables in enumerate(found):
            tables.append(query.rows(deliveries, view))
        delivered += deliveries
    return found, delivered


def check(plan: Plan, found: list[list[pa.Table]], items: Sequence[Item]) -> list[int]:
    """Compare every view with the oracle; return the events that were late for each."""
    late = []
    for number, view in enumerate(plan.views):
        oracle = ObviousWindows(plan, number)
        expected = [oracle.feed(batch) for batch in batches_of(items)] + [oracle.flush()]
        for at, (table, rows) in enumerate(zip(found[number], expected, strict=True)):
            wrong = differences(rows_of(table), rows, len(view.keys) + view.tells_grouping)
            assert not wrong, f"view {number}, batch {at}: {wrong[:3]}"
        late.append(oracle.late)
    return late


SETS: dict[str, list[Windows | Cumulative]] = {
    "shorter windows are tiles": [tumbling(length) for length in (1, 5, 10, 15, 20)],
    "a factor window is a tile": [tumbling(length) for length in (1, 20, 30)],
    "panes lie between tiles": [tumbling(length) for length in (1, 5, 7)],
    "others slide or grow": [
        tumbling(30, 2),
        Windows(7 * SECOND, SECOND),
        tumbling(12, 2),
        tumbling(6, 2),
        Cumulative(9 * SECOND, 3 * SECOND),
        tumbling(12, 2),
    ],
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("windows", SETS.values(), ids=SETS)
@pytest.mark.parametrize("tiny", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_oracle_windows_made_of_windows_equal_those_of_panes(
    tmp_path: Path, windows: list[Windows | Cumulative], tiny: bool
) -> None:
    plan = plan_of(*windows, modes={2: "changes"})
    shape = StreamShape(
        events=2000,
        groups=1500,
        batches=12,
        span=130 * SECOND,
        disorder=14 * SECOND,
        nulls=0.1,
        empty=0.2,
        gaps=1,
        aborts=0.4,
    )
    items = generate(plan, shape, 7)
    budget = ("400 KB" if len(windows) > 3 else "320 KB") if tiny else "16 MB"
    with small_sizes(slice_bytes=4096), alike():
        found, delivered = run(plan, tmp_path, items, budget)
    late = check(plan, found, items)
    assert max(late) > min(late) + 20, "events must come behind a tile and before a window"
    made = [Tiled.from_json(each) for each in delivered[-1].commit.decisions["composition"]]
    assert any(each.sources for each in made)
    most = max(each.progress["icestream"]["partitions"] for each in delivered)
    assert most > 3 * len(windows) or not tiny, f"only {most} partitions"


class TestWindowsMadeOfWindows(QueryConformance):
    plan = replace(
        window_plan("20 seconds", inputs=TWO, slack="1 second"),
        views=tuple(
            window_plan(length * SECOND, inputs=TWO).views[0] for length in (20, 1, 5, 10, 15)
        ),
    )
    tiny_budget = 768 * 1024

    @pytest.fixture(autouse=True)
    def composed(self) -> Iterator[None]:
        with alike():
            yield


@given(
    lengths=st.sets(st.sampled_from((2, 3, 4, 6, 8, 10, 12, 15)), min_size=2, max_size=4),
    offset=st.integers(-1, 1),
    shape=shapes(span=60 * SECOND),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=12)
def test_oracle_random_sets_of_windows(
    lengths: set[int], offset: int, shape: StreamShape, seed: int
) -> None:
    plan = plan_of(tumbling(1), *(tumbling(length, offset) for length in sorted(lengths)))
    items = generate(plan, shape, seed)
    with tempfile.TemporaryDirectory() as folder, small_sizes(), alike():
        check(plan, run(plan, Path(folder), items)[0], items)


MANY = StreamShape(
    events=700,
    groups=60,
    batches=9,
    span=130 * SECOND,
    disorder=14 * SECOND,
    nulls=0.1,
    empty=0.1,
    gaps=1,
    aborts=0.4,
)
HOP = Windows(10 * SECOND, 5 * SECOND)


def test_oracle_windows_that_slide_are_tiles(tmp_path: Path) -> None:
    plan = plan_of(Windows(3 * SECOND, SECOND), HOP, tumbling(20), tumbling(30))
    items = generate(plan, MANY, 3)
    with small_sizes(), alike():
        found, delivered = run(plan, tmp_path, items)
    check(plan, found, items)
    made = [Tiled.from_json(each) for each in delivered[-1].commit.decisions["composition"]]
    assert {each.window for each in made} == {tumbling(20), tumbling(30)}
    assert frozenset({HOP}) in {each.sources for each in made}


def test_windows_that_slide_and_emit_changes_are_no_tiles() -> None:
    windows = (Windows(3 * SECOND, SECOND), HOP, tumbling(20), tumbling(30))
    keys = KeyCounts(((1, 1.0),))
    for mode, taken in (("append", True), ("changes", False)):
        made = lower.tiled(lower.composition(plan_of(*windows, modes={1: mode}), keys))
        assert (HOP in frozenset().union(*(each.sources for each in made))) == taken


WAYS = (
    (
        Tiled(tumbling(20), ((HOP, 2),)),
        Tiled(tumbling(30), ((tumbling(15), 1), (None, 15))),
    ),
    (
        Tiled(tumbling(15), ((tumbling(5), 3),)),
        Tiled(tumbling(20), ((tumbling(5), 4),)),
        Tiled(tumbling(30), ((tumbling(15), 2),)),
    ),
)


@pytest.mark.parametrize(("way", "seed", "version"), [(0, 1, 3), (1, 2, 5)])
def test_oracle_windows_may_be_made_of_tiles_from_any_version_on(
    tmp_path: Path, way: int, seed: int, version: int
) -> None:
    plan = plan_of(tumbling(1), tumbling(5), HOP, tumbling(15), tumbling(20), tumbling(30))
    items = generate(plan, MANY, seed)

    def composition(*given: object, factors: bool = True) -> object:
        return None if factors else WAYS[way]

    with (
        small_sizes(),
        mock.patch.object(window_work, "COMPOSED_EVERY", version),
        mock.patch.object(lower, "composition", composition),
        mock.patch.object(lower, "tiled", side_effect=lambda chosen: chosen or ()),
    ):
        found, delivered = run(plan, tmp_path, items)
    check(plan, found, items)
    made = [len(each.commit.decisions["composition"] or ()) for each in delivered]
    assert sorted(set(made)) == [0, len(WAYS[way])]
    assert made == sorted(made)


def test_windows_are_made_otherwise_when_other_groups_come(tmp_path: Path) -> None:
    #  each event in a group of its own, so that windows of panes are as good; then few groups
    plan = minutes_of(1, 5, 10, 20)
    alone = []
    for number, item in enumerate(an_hour(plan, 3)[:1] + an_hour(plan, 3)):
        (batch,) = batches_of([item])[0][0]
        if number == 0:
            batch = batch.set_column(2, "k0", pa.array(np.arange(batch.num_rows) + 100))
        alone.append([[batch]])
    with mock.patch.object(window_work, "COMPOSED_EVERY", 2):
        found, delivered = run(plan, tmp_path, alone)
    check(plan, found, alone)
    chosen = [each.commit.decisions["composition"] for each in delivered]
    assert chosen[0] == []
    assert chosen[1]
    assert all(each == chosen[1] for each in chosen[2:])


def test_windows_that_nobody_asked_for_are_not_begun_later() -> None:
    plan = minutes_of(1, 20, 30)
    few = KeyCounts(((60 * SECOND, 5.0),))
    asked = lower.window_spec(plan).windows
    first = lower.tiled(lower.composition(plan, few))
    assert any(each.window not in asked for each in first)
    assert all(
        each.window in asked for each in lower.tiled(lower.composition(plan, few, factors=False))
    )


def an_hour(plan: Plan, groups: int) -> list[Item]:
    """Return batches of seven minutes, in which every group has an event each minute."""
    batches: list[Item] = []
    for first in range(0, 60, 7):
        minutes = np.repeat(np.arange(first, min(first + 7, 60)), groups)
        batch = pa.record_batch(
            [
                pa.array(minutes * 60 * SECOND).cast(plan.time),
                pa.array(np.zeros(len(minutes), dtype=np.int32)),
                pa.array(np.arange(len(minutes)) % groups),
                pa.array(np.ones(len(minutes))),
            ],
            schema=plan.batch_schema,
        )
        batches.append([[batch]])
    return batches


def minutes_of(*lengths: int) -> Plan:
    alone = window_plan("1 minute", slack=0, aggregates=[Aggregate("sum", "value", "s")])
    (view,) = alone.views
    views = [replace(view, windows=tumbling(60 * length)) for length in lengths]
    return replace(alone, views=tuple(views))


def test_an_hour_of_four_windows_adds_86_rows_for_each_group_instead_of_240(tmp_path: Path) -> None:
    #    5 min: 12 windows of 5 panes                  60
    #   10 min:  6 windows of 2 x 5 min                12
    #   15 min:  4 windows of 10 min and 5 min          8
    #   20 min:  3 windows of 2 x 10 min                6        and 60 for the view of one minute
    groups = 5
    plan = minutes_of(1, 5, 10, 15, 20)
    items = an_hour(plan, groups)

    def consolidated(folder: str) -> int:
        found, delivered = run(plan, tmp_path / folder, items)
        check(plan, found, items)
        return sum(each.progress["icestream"]["consolidatedRows"] for each in delivered)

    assert consolidated("composed") == groups * (60 + 86)
    with mock.patch.object(lower, "composition", return_value=None):
        assert consolidated("from panes") == groups * (60 + 240)


def test_windows_are_made_of_panes_where_groups_are_seldom_met_again(tmp_path: Path) -> None:
    plan = minutes_of(1, 5, 10, 15, 20)
    items = an_hour(plan, 1)
    splits = batches_of(items)[0]
    (batch,) = splits[0]
    own = pa.array(np.arange(batch.num_rows))
    _, (delivery, _) = run(plan, tmp_path, [[[batch.set_column(2, "k0", own)]]])
    assert delivery.commit.decisions["composition"] == []


def test_the_first_events_decide_while_nothing_changes(tmp_path: Path) -> None:
    plan = minutes_of(1, 5, 10)
    items: list[Item] = [[], *an_hour(plan, 3)]
    _, delivered = run(plan, tmp_path, items)
    chosen = [each.commit.decisions["composition"] for each in delivered]
    assert chosen[0] is None
    assert chosen[1]
    assert all(each == chosen[1] for each in chosen[1:])


def test_panes_leave_the_log_with_the_windows_that_take_them(tmp_path: Path) -> None:
    plan = minutes_of(1, 5, 60)
    items = an_hour(plan, 50)
    with small_sizes():
        _, composed = run(plan, tmp_path / "composed", items)
        with mock.patch.object(lower, "composition", return_value=None):
            _, panes = run(plan, tmp_path / "panes", items)
    sizes = [each[-2].progress["icestream"]["logBytes"] for each in (composed, panes)]
    assert 2 * sizes[0] < sizes[1]


@given(
    parts=st.lists(st.tuples(st.sampled_from((0, 2, 3, 5)), st.integers(1, 3)), min_size=1),
    phase=st.integers(-7, 7),
)
def test_oracle_tiles_cover_every_pane_once(parts: list[tuple[int, int]], phase: int) -> None:
    # tiles are laid out one by one, twice; sources are numbered by their lengths
    period = sum(max(length, 1) * count for length, count in parts)
    window = Windows(period, period, phase % period)
    tiles = tuple((Windows(n, n) if n else None, count) for n, count in parts)
    numbers: dict[Windows | Cumulative, int] = {Windows(n, n): n for n in (2, 3, 5)}
    tiling = PaneTiling(Tiled(window, tiles), Grid(1), numbers)
    expected, at = [], phase % period
    for length, count in parts * 2:
        for _ in range(count):
            expected.append((at, at + max(length, 1), length or FROM_PANES))
            at += max(length, 1)
    panes = np.arange(phase % period, at)
    for source in (FROM_PANES, 2, 3, 5):
        taken = panes[tiling.takes(source, panes)].tolist()
        assert taken == [first for first, _, each in expected if each == source]
    for pane in panes.tolist():
        closed = [end for _, end, _ in expected if end <= pane]
        assert tiling.reached(pane) == max(closed, default=phase % period)


def test_tiled_windows_come_back_from_json() -> None:
    hop = Windows(10 * SECOND, 5 * SECOND, 2 * SECOND)
    for source in (tumbling(10, 2), hop):
        tiled = Tiled(tumbling(15, 2), ((source, 1), (None, 5)))
        assert Tiled.from_json(json.loads(json.dumps(tiled.to_json()))) == tiled
