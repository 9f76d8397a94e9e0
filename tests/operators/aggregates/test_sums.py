from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.core.errors import InputError
from icestream.operators.aggregates.aggregate import Aggregate
from tests.fixtures.folding import folded
from tests.fixtures.plans import INSTANT, open_query, window_plan


def answer(function: str, values: pa.Array) -> Any:
    return folded(Aggregate(function, "x", "answer"), {"x": values})


@pytest.mark.parametrize(
    ("kind", "total", "mean"),
    [
        (pa.int8(), pa.int64(), pa.float64()),
        (pa.int64(), pa.int64(), pa.float64()),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.decimal128(10, 2), pa.decimal128(20, 2), pa.decimal128(14, 6)),
        (pa.decimal128(28, 3), pa.decimal128(38, 3), pa.decimal128(32, 7)),
    ],
)
def test_results_have_the_types_spark_gives(
    kind: pa.DataType, total: pa.DataType, mean: pa.DataType
) -> None:
    types = {"x": kind}
    assert Aggregate("sum", "x", "a").result_type(types) == total
    assert Aggregate("avg", "x", "a").result_type(types) == mean


@given(st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=6))
@settings(max_examples=60)
def test_oracle_averages_of_big_integers_are_exact(values: list[int]) -> None:
    assert answer("avg", pa.array(values)) == pytest.approx(sum(values) / len(values), rel=1e-15)


@pytest.mark.parametrize("values", [[-5], [-3, -4], [2**62] * 5, [-(2**62)] * 5])
def test_averages_of_negative_and_of_huge_sums(values: list[int]) -> None:
    assert answer("avg", pa.array(values, pa.int64())) == sum(values) / len(values)


def test_sum_that_overflows_bigint_is_an_error(tmp_path: Path) -> None:
    most = 2**63 - 1
    assert answer("sum", pa.array([most, 1, -1])) == most
    assert answer("sum", pa.array([-most, -1])) == -most - 1
    with pytest.raises(InputError, match=r"'answer' does not fit into a bigint; cast .*decimal"):
        answer("sum", pa.array([most, 1]))
    plan = window_plan(inputs=pa.schema([("x", pa.int64())]))
    query = open_query(plan, str(tmp_path))
    batch = pa.record_batch(
        [
            pa.array([0, 1], INSTANT),
            pa.array([0, 0], pa.int32()),
            pa.array([1, 1]),
            pa.array([most, 1]),
        ],
        schema=plan.batch_schema,
    )
    query.feed([[batch]])
    with pytest.raises(InputError, match="does not fit into a bigint"):
        query.flush()


@pytest.mark.parametrize(
    ("values", "mean"),
    [
        (["0.01", "0.02"], "0.015000"),
        (["0.01", "0.01", "0.00"], "0.006667"),
        (["-0.01", "-0.01", "0.00"], "-0.006667"),
        (["0.00", "0.00", "0.01"] * 21 + ["0.00"], "0.003281"),
        (["-0.01"] + ["0.00"] * 31, "-0.000313"),
        (["0.01"] + ["0.00"] * 31, "0.000313"),
        (["99999999.99"] * 7, "99999999.990000"),
    ],
)
def test_averages_of_decimals_round_halves_away_from_zero(values: list[str], mean: str) -> None:
    # 0.01 / 32 = 0.0003125, a half in the seventh place
    column = pa.array([Decimal(v) for v in values], pa.decimal128(10, 2))
    assert answer("avg", column) == Decimal(mean)


def test_sums_of_decimals_pass_sixty_four_bits() -> None:
    column = pa.array([Decimal("-9999999999999999999999999.999")] * 3, pa.decimal128(28, 3))
    assert answer("sum", column) == Decimal("-29999999999999999999999999.997")
