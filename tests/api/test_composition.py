"""Results go on as streams: windows, joins and aggregates of each other, in every mode."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession

from tests.suites.composition import (
    AGGREGATES,
    BEHINDS,
    FRONTS,
    MODES,
    WINDOWS,
    Cell,
    Run,
    answer,
    events,
)

pytestmark = pytest.mark.spark

CELLS = [
    Cell(front, window, aggregate, behind, mode)
    for front in FRONTS
    for window in WINDOWS
    for aggregate in AGGREGATES
    for behind in BEHINDS
    for mode in MODES
]


def named(cell: Cell) -> str:
    return ", ".join((cell.front, cell.window, cell.aggregate, cell.behind, cell.mode))


@pytest.mark.sample(8)
@pytest.mark.parametrize("cell", CELLS, ids=named)
def test_oracle_every_kind_of_window_composes_as_in_sql(
    cell: Cell, spark: SparkSession, tmp_path: Path
) -> None:
    number = CELLS.index(cell)
    a, b = events(number), events(number + 1_000_000, 40)
    run = Run(spark, cell, a, b, tmp_path)
    run.play((1, 9, 90)[number % 3], np.random.default_rng(number))
    run.flush()
    found, wanted = run.rows(), answer(cell.sql, a, b)
    if cell.of_closed_windows:
        # groups that became empty are there as well, and groups that did not change are not
        assert {row for row in found - wanted if row[2]} == set()
        assert cell.window != "tumbling" or not wanted - found
        return
    assert found == wanted
    assert len(wanted) > 0
