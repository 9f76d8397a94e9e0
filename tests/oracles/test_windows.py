from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import pyarrow as pa
import pytest

from icestream.operators.aggregates.aggregate import Aggregate
from icestream.testing.sources import SECOND, StreamShape, batches_of, generate
from tests.fixtures.plans import window_plan
from tests.oracles.arrivals import Row
from tests.oracles.grid import ObviousWindows, differences, windows_by_sql


def test_oracle_the_obvious_computation_equals_sql_where_nothing_is_late() -> None:
    plan = window_plan(
        "7 seconds",
        "3 seconds",
        offset="-1 second",
        slack="100 seconds",
        inputs=pa.schema([("value", pa.float64()), ("whole", pa.int32())]),
    )
    items = generate(
        plan, StreamShape(events=300, start=-20 * SECOND, nulls=0.2, disorder=SECOND), 1
    )
    oracle = ObviousWindows(plan)
    rows = [row for splits in batches_of(items) for row in oracle.feed(splits)] + oracle.flush()
    batches = [b for splits in batches_of(items) for split in splits for b in split]
    assert oracle.late == 0
    assert not differences(windows_by_sql(plan, batches), rows, 1, tolerance=1e-9)


def test_obvious_windows_by_hand() -> None:
    # range 4, slide 2, slack 1; events at 0, 3, then 7 (watermark 6), then 1 (late), 5 and 20
    plan = window_plan(
        "4 seconds", "2 seconds", slack="1 second", aggregates=[Aggregate("count", None, "n")]
    )
    oracle = ObviousWindows(plan)

    def feed(*seconds: int) -> list[tuple[int, int]]:
        batch = pa.record_batch(
            [
                pa.array([s * SECOND for s in seconds], pa.int64()).cast(plan.time),
                pa.array([0] * len(seconds), pa.int32()),
                pa.array([1] * len(seconds), pa.int64()),
                pa.array([None] * len(seconds), pa.float64()),
            ],
            schema=plan.batch_schema,
        )
        return sorted((row[0] // SECOND, row[3]) for row in oracle.feed([[batch]]))

    assert feed(0, 3) == [(-2, 1)]
    assert feed(7) == [(0, 2), (2, 1)]
    assert feed(1, 5, 20) == [(4, 2), (6, 1)]
    assert oracle.late == 1
    assert sorted(row[0] // SECOND for row in oracle.flush()) == [18, 20]


@pytest.mark.parametrize(
    ("found", "agree"),
    [
        ((0, 1, "a", 1.0 + 1e-14), True),
        ((0, 1, "a", 1.0 + 1e-9), False),
        ((0, 1, "a", math.nan), False),
        ((0, 1, "a", None), False),
        ((0, 1, "b", 1.0), False),
        ((0, 2, "a", 1.0), False),
    ],
)
def test_differences_notices_what_differs(found: Row, agree: bool) -> None:
    assert bool(differences([found], [(0, 1, "a", 1.0)], 1)) is not agree


def test_differences_knows_decimals_nan_and_repetition() -> None:
    assert not differences([(0, 1, Decimal("1.50"))], [(0, 1, Fraction(3, 2))], 0)
    assert differences([(0, 1, Decimal("1.51"))], [(0, 1, Fraction(3, 2))], 0)
    assert not differences([(0, 1, math.nan, math.nan)], [(0, 1, -math.nan, math.nan)], 1)
    assert differences([(0, 1, 5), (0, 1, 5)], [(0, 1, 5)], 0) == ["twice: (0, 1)"]
    assert differences([], [(0, 1, 5)], 0) == ["missing: (0, 1, 5)"]
    assert differences([(0, 1, True)], [(0, 1, 1)], 0)
