"""Equal events: changes add up to the same, with a row for all that are equal."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from icestream.core.times import INFINITY
from icestream.operators.dataflow import equal_events
from icestream.operators.dataflow.equal_events import EqualEvents, are_told_apart
from icestream.operators.folding.fold import ID_HIGH_COLUMN
from icestream.operators.lifetimes.changes import DIFF, RE, changes_of, column_of, with_column
from icestream.state.keys import identified
from tests.oracles.lifetimes import bag_of

STEP = 3
TEXTS = [None, "a", "b", ""]


def drawn(seed: int, rows: int = 2_000, numbers: int = 3) -> pa.RecordBatch:
    """Return changes of a few groups, most of which equal others, in the order of groups."""
    dice = np.random.default_rng(seed)
    payload = pa.record_batch(
        {
            "key": pa.array(np.sort(dice.integers(0, 5, rows))),
            "text": [TEXTS[place] for place in dice.integers(0, len(TEXTS), rows)],
            "number": pa.array(dice.integers(0, numbers, rows), mask=dice.random(rows) < 0.2),
            "flag": pa.array(dice.random(rows) < 0.5),
        }
    )
    le = dice.integers(0, 2, rows)
    re = np.where(dice.random(rows) < 0.5, INFINITY, le + 5)
    diff = dice.choice([-1, 1, 2], rows)
    changes = changes_of(payload, le, re, diff, *identified(payload, ("key",)))
    return changes.take(pa.array(np.argsort(changes[ID_HIGH_COLUMN].to_numpy(), kind="stable")))


@pytest.mark.parametrize("seed", range(8))
def test_equal_events_are_taken_as_one_that_counts_as_often(seed: int) -> None:
    changes = drawn(seed)
    found = EqualEvents([STEP]).counted(STEP, changes)
    assert bag_of(found) == bag_of(changes)
    assert found[DIFF].to_numpy().all()
    plain = [tuple(row.values()) for row in found.drop_columns([DIFF]).to_pylist()]
    assert len(set(plain)) == len(plain) < changes.num_rows
    assert (np.diff(found[ID_HIGH_COLUMN].to_numpy().astype(np.float64)) >= 0).all()


def test_steps_that_make_few_equal_events_are_left_alone() -> None:
    equal, apart = EqualEvents([STEP]), drawn(0, numbers=1 << 40)
    assert equal.counted(STEP, apart) is apart
    changes = drawn(0)
    assert equal.counted(STEP, changes) is changes


def test_a_few_rows_are_tried_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equal_events, "TRIED", 8)
    different = drawn(0, rows=8, numbers=1 << 40)
    changes = pa.concat_batches([different, *[drawn(1)] * 2])
    equal = EqualEvents([STEP])
    assert equal.counted(STEP, changes) is changes


def test_other_steps_and_no_changes_are_left_alone() -> None:
    equal, changes = EqualEvents([STEP]), drawn(0)
    assert equal.counted(STEP + 1, changes) is changes
    assert equal.counted(STEP, changes.slice(0, 0)).num_rows == 0


def test_events_that_end_at_other_times_stay_apart() -> None:
    changes = drawn(0, rows=40)
    later = with_column(changes, RE, column_of(changes, RE) - 1)
    found = EqualEvents([STEP]).counted(STEP, pa.concat_batches([changes, later]))
    assert bag_of(found) == bag_of(changes, later)


@pytest.mark.parametrize(
    "kind", [pa.float64(), pa.list_(pa.int64()), pa.map_(pa.int64(), pa.int64())]
)
def test_columns_whose_equal_values_may_differ_are_not_compared(kind: pa.DataType) -> None:
    same = pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.bool_())])
    assert are_told_apart(same)
    assert not are_told_apart(same.append(pa.field("d", kind)))
