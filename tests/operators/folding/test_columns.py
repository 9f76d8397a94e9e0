from __future__ import annotations

import datetime
import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from icestream.core.errors import InputError
from icestream.kernels.fold import ALL_VALID
from icestream.operators.folding.columns import PLACE_BITS, ROW_BITS, ArrivalNumbers, InputColumn
from icestream.testing.sources import StreamShape, random_column
from tests.fixtures.plans import EVERY_INPUT, INSTANT


@pytest.mark.parametrize("field", list(EVERY_INPUT), ids=EVERY_INPUT.names)
def test_a_slice_of_a_column_is_the_slice_of_its_numbers(field: pa.Field) -> None:
    values = random_column(field.type, 20, StreamShape(nulls=0.4), np.random.default_rng(1))
    whole, part = InputColumn(values), InputColumn(values.slice(7, 9))
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    assert whole.valid.tolist() == valid.tolist()
    assert part.valid.tolist() == valid[7:16].tolist()
    inside = valid[7:16]
    assert (whole.ordered[7:16] == part.ordered)[inside].all()
    if pa.types.is_decimal(field.type) or pa.types.is_integer(field.type):
        for one, other in zip(whole.pair, part.pair, strict=True):
            assert (one[7:16] == other)[inside].all()


def test_a_column_without_nulls_has_no_mask() -> None:
    assert InputColumn(pa.array([1, 2])).valid is ALL_VALID


def test_chunks_are_joined() -> None:
    assert InputColumn(pa.chunked_array([[1, 2], [], [3]])).integers.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pa.array([datetime.date(1969, 12, 31), None]), [-1, 0]),
        (pa.array([-5, None], INSTANT), [-5, 0]),
        (pa.array([True, False, None]), [1, 0, 0]),
        (pa.array([-128, 127], pa.int8()), [-128, 127]),
        (pa.array([7, None], pa.duration("us")), [7, 0]),
        (pa.array([Decimal("-1.25")], pa.decimal128(10, 2)), [-125]),
    ],
)
def test_ordered_words_of_each_type(values: pa.Array, expected: list[int]) -> None:
    assert InputColumn(values).ordered.tolist() == expected


def test_wide_decimals_are_two_words() -> None:
    unscaled = [-(10**25), 10**25, -1]
    column = InputColumn(pa.array([Decimal(n).scaleb(-3) for n in unscaled], pa.decimal128(28, 3)))
    low, high = column.pair
    words = zip(low.tolist(), high.tolist(), strict=True)
    assert [(h << 64) + b % 2**64 for b, h in words] == unscaled
    assert column.floats.tolist() == [-1e22, 1e22, -0.001]


def test_negative_integers_carry_their_sign_into_the_high_word() -> None:
    low, high = InputColumn(pa.array([-3, 4])).pair
    assert (low.tolist(), high.tolist()) == ([-3, 4], [-1, 0])


def test_zeros_of_both_signs_rank_alike() -> None:
    column = InputColumn(pa.array([-0.0, 0.0, math.nan, -math.inf, None]))
    first, second, third, fourth, _ = column.ranked.tolist()
    assert first == second
    assert fourth < first < third
    assert column.ordered[0] < column.ordered[1]
    assert InputColumn(pa.array([3, -1])).ranked.tolist() == [3, -1]


def test_arrival_numbers_grow_with_the_stream() -> None:
    numbers = []
    for version in (0, 1, 2**26, 2**40):
        for place in (0, 1, 2**12, 2**PLACE_BITS - 1):
            arrivals = ArrivalNumbers(version, place)
            for rows in (3, 5, 2):
                reported = arrivals.next(rows)
                few = [each.take(pa.array([0, 1, rows - 1])) for each in reported.values()]
                numbers += list(zip(*(each.to_pylist() for each in few), strict=True))
    assert numbers == sorted(numbers)
    assert len(set(numbers)) == len(numbers) - 4 * 4
    assert min(min(pair) for pair in numbers) >= 0
    assert max(arrival for _, arrival in numbers) < 2**62


def test_more_parts_or_rows_than_there_are_numbers_are_refused() -> None:
    with pytest.raises(InputError, match="maxFilesPerTrigger"):
        ArrivalNumbers(1, 2**PLACE_BITS)
    long = ArrivalNumbers(1, 0)
    long._rows = 2**ROW_BITS
    with pytest.raises(InputError, match="smaller files"):
        long.next(1)
