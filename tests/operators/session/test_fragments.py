from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.folding.exact_rows import ExactRows
from icestream.operators.session.fragments import LAST_ID_HIGH, Fragments
from icestream.operators.session.rows import Sessions, united
from icestream.operators.session.spec import SessionSpec
from icestream.plan.windows.session import Session

SPEC = SessionSpec(
    (Aggregate("count", None, "n"),),
    pa.schema([("name", pa.string())]),
    pa.schema([]),
    Session(10),
)


def random_run(dice: np.random.Generator, rows: int) -> Sessions:
    table = np.ones((rows, 5), dtype=np.int64)
    table[:, :2] = dice.choice(2**60, size=(rows, 1))
    table[:, 2] = dice.integers(0, 100, rows)
    table[:, 3] = table[:, 2] + 10
    names = pa.array([f"key {id_high}" for id_high in table[:, 0].tolist()])
    return united(
        [
            Sessions(ExactRows(SPEC.layout, table), pa.record_batch([names], SPEC.keys)),
            Sessions.none(SPEC),
        ],
        SPEC,
    )


@pytest.mark.parametrize("seed", range(6))
def test_oracle_fragments_of_many_runs_equal_one(tmp_path: Path, seed: int) -> None:
    dice = np.random.default_rng(seed)
    runs = [random_run(dice, int(dice.integers(1, 200))) for _ in range(4)]
    expected = united(runs, SPEC)
    fragments = Fragments(SPEC, str(tmp_path / "runs"), int(dice.choice([100, 2000, 10**6])))
    spilled = int(dice.integers(0, 4))
    for run in runs[:spilled]:
        fragments.spill(run)
    fragments.newest = united(runs[spilled:], SPEC)
    lasts = np.sort(dice.choice(2**60, size=7).astype(np.uint64)).tolist()
    with fragments.ahead() as ahead:
        found, before = [], -1
        for last in [*map(np.uint64, lasts), LAST_ID_HIGH]:
            for reached, portion in ahead.up_to(last):
                assert (portion.id_high <= reached).all()
                assert all(before < id_high for id_high in portion.id_high.tolist())
                before = int(reached)
                found.append(portion)
            assert before == last
    whole = Sessions.concatenated(found)
    assert whole.rows.tolist() == expected.rows.tolist()
    assert whole.keys.equals(expected.keys)
    fragments.clear()
    assert os.listdir(tmp_path) == []


def test_ranges_without_fragments_are_not_touched(tmp_path: Path) -> None:
    fragments = Fragments(SPEC, str(tmp_path / "runs"), 100)
    rows = np.array([[5, 5, 0, 10, 1], [20, 20, 0, 10, 1]])
    keys = pa.record_batch([pa.array(["a", "b"])], SPEC.keys)
    fragments.newest = Sessions(ExactRows(SPEC.layout, rows), keys)
    lows = np.array([0, 5, 6, 20], dtype=np.uint64)
    assert fragments.touched(lows).tolist() == [False, True, False, True]
