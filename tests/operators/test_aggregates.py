from __future__ import annotations

import math
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.core.errors import DefinitionError, InputError
from icestream.operators.aggregates import FUNCTIONS, Aggregate
from icestream.operators.columns import Column
from icestream.operators.fields import Layout
from icestream.operators.fold import EntryTable
from icestream.state.keys import KeyCodec
from icestream.testing.plans import EVERY_INPUT, INSTANT, open_query, window_plan


def answer(function: str, values: pa.Array) -> pa.Array:
    """Fold one column into one group and read the answer off."""
    aggregate = Aggregate(function, "x", "answer")
    types = {"x": values.type}
    layout = Layout.of(aggregate.fields(types))
    table = EntryTable(layout, KeyCodec(pa.schema([])), 8)
    none = pa.RecordBatch.from_struct_array(
        pa.StructArray.from_buffers(pa.struct([]), len(values), [None])
    )
    panes = np.zeros(len(values), dtype=np.int64)
    assert not list(table.fold(none, panes, {"x": Column(values)}))
    result = aggregate.lower(table.take().entries[:, 2:], layout, types)
    assert result.type == aggregate.result_type(types)
    result.validate(full=True)
    return result[0].as_py()


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
    assert Aggregate("max", "x", "a").result_type({"x": pa.int16()}) == pa.int16()
    assert Aggregate("var_pop", "x", "a").result_type(types) == pa.float64()
    assert Aggregate("count", "x", "a").result_type(types) == pa.int64()


@pytest.mark.parametrize("column", EVERY_INPUT.names)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_only_nulls_are_counted_as_none_and_answered_by_null(column: str, function: str) -> None:
    kind = EVERY_INPUT.field(column).type
    try:
        Aggregate(function, column, "a").check(kind)
    except DefinitionError:
        return
    assert answer(function, pa.nulls(3, kind)) == (0 if function == "count" else None)


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
    with pytest.raises(InputError, match=r"'answer' does not fit a bigint; cast .*decimal"):
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
    with pytest.raises(InputError, match="does not fit a bigint"):
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


@pytest.mark.parametrize("function", ["var_pop", "var_samp", "stddev_pop", "stddev_samp"])
def test_moments_far_from_zero_keep_their_digits(function: str) -> None:
    values = [1e9 + 0.25, 1e9 + 0.5, 1e9 + 0.75]
    spread = 0.125 / (2 if function.endswith("samp") else 3)
    expected = math.sqrt(spread) if function.startswith("stddev") else spread
    assert answer(function, pa.array(values)) == pytest.approx(expected, rel=1e-12)
    assert answer(function, pa.array([0.1] * 10)) == pytest.approx(0.0, abs=1e-15)


@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
def test_moments_of_special_values_are_not_a_number(special: float) -> None:
    assert math.isnan(answer("var_pop", pa.array([1.0, special])))
    assert math.isnan(answer("stddev_samp", pa.array([1.0, special])))


def test_moments_of_one_value() -> None:
    assert answer("var_pop", pa.array([5.0])) == 0.0
    assert answer("var_samp", pa.array([5.0])) is None
    assert answer("stddev_samp", pa.array([5.0, None])) is None


def test_nan_is_the_greatest_float() -> None:
    values = pa.array([1.0, math.nan, -math.inf, math.inf])
    assert math.isnan(answer("max", values))
    assert answer("min", values) == -math.inf
    assert answer("min", pa.array([math.nan, 2.0], pa.float32())) == 2.0
    assert math.isnan(answer("min", pa.array([math.nan])))


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32(), pa.int64()])
def test_extremes_of_integers_keep_the_ends_of_their_range(kind: pa.DataType) -> None:
    least, most = -(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1
    values = pa.array([0, least, most, None], kind)
    assert (answer("min", values), answer("max", values)) == (least, most)
    assert answer("min", pa.array([most], kind)) == most
    assert answer("max", pa.array([least], kind)) == least


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        ("sum", pa.string()),
        ("avg", pa.date32()),
        ("stddev_samp", pa.bool_()),
        ("max", pa.string()),
        ("min", pa.decimal128(19, 0)),
        ("sum", pa.decimal128(29, 0)),
    ],
)
def test_types_without_meaning_or_room_are_refused_with_advice(
    function: str, kind: pa.DataType
) -> None:
    with pytest.raises(DefinitionError, match=r"'alias'\): (cast|use)"):
        Aggregate(function, "x", "alias").fields({"x": kind})


def test_functions_of_one_column_share_fields() -> None:
    types = {"x": pa.float64()}
    fields = [f for name in FUNCTIONS for f in Aggregate(name, "x", name).fields(types)]
    kinds = [field.kind for field in Layout.of(fields).fields]
    assert kinds == ["rows", "valid", "sum_f64", "min", "max", "squares_f64"]
