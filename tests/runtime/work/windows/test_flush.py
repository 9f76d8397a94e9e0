"""A flush of several views gives each the rows that it gives a view alone."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from icestream.operators.aggregates.aggregate import Aggregate
from icestream.plan.nodes.queries import Plan, View, WindowKind
from icestream.plan.windows.frame import Frame
from icestream.plan.windows.grid import Cumulative, Windows
from icestream.plan.windows.session import Session
from icestream.runtime.driver import Delivery
from icestream.testing.sources import SECOND, StreamShape, random_events
from tests.fixtures.plans import open_query, window_plan
from tests.oracles.grid import rows_of

COUNT = (Aggregate("count", None, "n"), Aggregate("max", "value", "most"))
PLAN = window_plan("4 seconds", "2 seconds", slack=SECOND, aggregates=COUNT)
KINDS: tuple[WindowKind, ...] = (
    Windows(4 * SECOND, 2 * SECOND),
    Windows(2 * SECOND, 2 * SECOND),
    Windows(10 * SECOND, 10 * SECOND),
    Windows(3 * SECOND, SECOND),
    Cumulative(6 * SECOND, 2 * SECOND),
    Frame(rows=3, slide=5 * SECOND),
    Session(7 * SECOND),
)


def _view(windows: WindowKind, mode: str) -> View:
    on_grid = isinstance(windows, Windows | Cumulative)
    return replace(PLAN.views[0], windows=windows, mode=mode if on_grid else "append")


def _rows(
    plan: Plan, batches: Sequence[pa.RecordBatch], folder: Path, *, loses_arenas: bool
) -> list[list[list[str]]]:
    """Return the rows of each view, version by version: batches, a flush, one more batch."""
    query = open_query(plan, str(folder))
    found: list[list[list[str]]] = [[] for _ in plan.views]

    def note(deliveries: Sequence[Delivery]) -> None:
        for view, noted in enumerate(found):
            noted.append(sorted(map(str, rows_of(query.rows(deliveries, view)))))

    for batch in batches:
        note(query.driver.batch(query.next_batch, [[batch]]))
    note(query.driver.flush())
    if loses_arenas:
        query.close()
        shutil.rmtree(folder / "local", ignore_errors=True)
        query = open_query(plan, str(folder))
    # what comes after a flush is about the same windows, whoever was flushed
    later = batches[-1].set_column(
        0,
        plan.batch_schema.field(0),
        pa.array(np.full(batches[-1].num_rows, 400 * SECOND)).cast(plan.time),
    )
    note(query.driver.batch(query.next_batch, [[later]]))
    query.close()
    return found


@pytest.mark.parametrize(
    ("first", "second"), [(0, 1), (0, 6), (1, 3), (1, 5), (2, 4), (3, 6), (4, 6)]
)
def test_oracle_views_that_are_flushed_together_equal_each_alone(
    tmp_path: Path, first: int, second: int
) -> None:
    seed = len(KINDS) * first + second
    dice = np.random.default_rng(seed)
    # the latest event is at second 28.5: windows of 2 seconds end at 30, those of 4 at 32
    events = random_events(
        PLAN, StreamShape(events=60, span=28 * SECOND + SECOND // 2, groups=3), dice
    )
    batches = [events.slice(at, 15) for at in range(0, events.num_rows, 15)]
    modes = dice.choice(["changes", "append"], 2, p=[0.8, 0.2])
    views = (_view(KINDS[first], str(modes[0])), _view(KINDS[second], str(modes[1])))
    on_grid = all(isinstance(each.windows, Windows | Cumulative) for each in views)
    store = str(dice.choice(["panes", "tuples", "auto"])) if on_grid else "panes"
    plan, loses = replace(PLAN, store=store, views=views), bool(seed % 2)
    together = _rows(plan, batches, tmp_path / "both", loses_arenas=loses)
    for number, view in enumerate(views):
        alone = replace(plan, views=(view,))
        (expected,) = _rows(alone, batches, tmp_path / str(number), loses_arenas=loses)
        assert together[number] == expected
