"""Running rows that slide inside whole queries: what each version reads, and what it emits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from icestream.operators.aggregates.aggregate import Aggregate
from icestream.plan.nodes.queries import Plan
from icestream.runtime.local import LocalQuery
from icestream.testing.sources import SECOND
from tests.fixtures.plans import open_query, window_plan
from tests.oracles.grid import ObviousWindows, differences, rows_of
from tests.suites.window_conformance import small_sizes

FUNCTIONS = ("sum", "max", "first")


def plan_of(reach: int, slide: int, slack: int = 0, mode: str = "append") -> Plan:
    """Return windows of so many seconds over floats, with fields without an inverse."""
    aggregates = [Aggregate(function, "value", function) for function in FUNCTIONS]
    return window_plan(
        reach * SECOND, slide * SECOND, slack=slack * SECOND, aggregates=aggregates, mode=mode
    )


def events(plan: Plan, seconds: list[int], dice: np.random.Generator) -> list[list[pa.RecordBatch]]:
    """Return a batch with an event of one of five keys at each of the given seconds."""
    count = len(seconds)
    batch = pa.record_batch(
        [
            pa.array(np.array(seconds, dtype=np.int64) * SECOND).cast(plan.time),
            pa.array(np.zeros(count, dtype=np.int32)),
            pa.array(dice.integers(0, 5, size=count)),
            pa.array(dice.normal(size=count)),
        ],
        schema=plan.batch_schema,
    )
    return [[batch]]


def panes_read(query: LocalQuery, batch: list[list[pa.RecordBatch]]) -> tuple[int, int]:
    """Feed a batch; return the panes that were read, and the windows that closed."""
    (delivery,) = query.driver.batch(query.next_batch, batch)
    closed = {row[0] for row in rows_of(query.rows([delivery]))}
    return delivery.progress["icestream"]["panesRead"], len(closed)


@pytest.mark.sample(8)
@pytest.mark.parametrize("mode", ["append", "changes"])
@pytest.mark.parametrize("disorder", [0, 4])
@pytest.mark.parametrize(("reach", "slide"), [(2, 1), (9, 1), (30, 1), (15, 6), (24, 4), (20, 8)])
def test_bounded_every_version_reads_a_few_panes_for_each_slide(
    tmp_path: Path, reach: int, slide: int, disorder: int, mode: str
) -> None:
    # an event each second and some up to the slack before it; a slide has `slide` / pane panes
    plan, dice = plan_of(reach, slide, disorder, mode), np.random.default_rng(1)
    query = open_query(plan, str(tmp_path), shards=1)
    panes = slide // np.gcd(reach, slide)
    most = 0.0
    for second in range(0, 2 * reach + 3 * slide + disorder, slide):
        behind = dice.integers(0, disorder + 1, size=3).tolist() if disorder else []
        seconds = [*range(second, second + slide), *(second - each for each in behind)]
        read, windows = panes_read(query, events(plan, seconds, dice))
        most = max(most, read / max(1, windows))
    assert 0 < most <= 4 * panes
    assert most <= 3 * panes or reach % slide


def test_bounded_the_end_of_a_window_that_tumbles_adds_only_its_own_batch(tmp_path: Path) -> None:
    # windows   [0             8)              [8
    # batches    0-3  4-7  0-7, and 8 ahead    12
    plan, dice = plan_of(8, 8, slack=4), np.random.default_rng(4)
    query = open_query(plan, str(tmp_path), shards=1)
    added, closed = [], []
    for seconds in ([*range(4)], [*range(4, 8)], [*range(9)], [12]):
        (delivery,) = query.driver.batch(query.next_batch, events(plan, seconds, dice))
        closed.append(query.rows([delivery]).num_rows)
        added.append(delivery.progress["icestream"]["consolidatedRows"])
    assert closed == [0, 0, 0, 5]
    # an entry for each key that a batch has in the window; the first waits for a watermark
    assert added[0] + added[1] > 5
    assert added[2] == 5
    # the two that are in the next window
    assert added[3] <= 2


@pytest.mark.sample(4)
@pytest.mark.parametrize("mode", ["append", "changes"])
@pytest.mark.parametrize(("reach", "slide"), [(2, 1), (7, 1), (7, 3), (10, 2), (15, 6), (5, 4)])
def test_oracle_windows_of_many_lengths_with_late_events(
    tmp_path: Path, reach: int, slide: int, mode: str
) -> None:
    # events come behind the watermark into every part of the stacks, seconds are left out, and the
    # query is opened anew
    plan, dice = plan_of(reach, slide, 0, mode), np.random.default_rng(reach)
    oracle, query = ObviousWindows(plan), open_query(plan, str(tmp_path), shards=1)
    with small_sizes(snapshot=7):
        for number in range(60):
            behind = dice.integers(0, reach + 2, size=int(dice.integers(0, 3)))
            ahead = [] if number % 29 > 24 else [number]
            batch = events(plan, [*ahead, *(number - int(each) for each in behind)], dice)
            assert not differences(rows_of(query.feed(batch)), oracle.feed(batch), 1), number
            if number % 10 == 9:
                query = open_query(plan, str(tmp_path), shards=1)
        assert not differences(rows_of(query.flush()), oracle.flush(), 1)
