from __future__ import annotations

import math
from decimal import Decimal

import numpy as np
import pyarrow as pa

from icestream.kernels import field_words
from icestream.kernels.field_words import merge_field
from icestream.kernels.lifetimes.sweep import scale_rows
from icestream.operators.aggregates.aggregate import applicable
from icestream.operators.lifetimes.lift import Lifting
from tests.oracles.lifetimes import Event, changes_from

PAYLOAD = pa.schema(
    [
        ("flag", pa.bool_()),
        ("small", pa.int32()),
        ("big", pa.int64()),
        ("real", pa.float64()),
        ("money", pa.decimal128(12, 2)),
        ("day", pa.date32()),
    ]
)
VALUES = [
    (True, 7, 2**62, 0.1, Decimal("12.34"), 18_000),
    (None, None, None, None, None, None),
    (False, -7, -(2**62), math.nan, Decimal("-0.01"), 0),
    (False, 0, 1, -math.inf, Decimal("0.00"), -1),
]


def changes() -> pa.RecordBatch:
    return changes_from([(Event((0, 0), 5, 9, value), 1) for value in VALUES], PAYLOAD)


def test_a_row_and_its_negative_add_up_to_nothing() -> None:
    sums = [
        each
        for each in applicable(PAYLOAD)
        if all(
            field_words.is_invertible(field.op)
            for field in each.fields({field.name: field.type for field in PAYLOAD})
        )
    ]
    lifting = Lifting(PAYLOAD, sums)
    assert lifting.inverts
    rows = lifting.lifted(changes(), copies=2)
    ops, places = rows.layout.at.ops, rows.layout.at.places
    negative = rows.table.copy()
    scale_rows(negative, np.full(len(rows), -1), ops, places)
    for row in range(len(rows)):
        for op, place in zip(ops.tolist(), places.tolist(), strict=True):
            merge_field(negative, row, place, rows.table, row, place, op)
    assert not negative.any()


def test_every_function_over_words_is_lowered_from_lifted_rows() -> None:
    functions = list(applicable(PAYLOAD))
    lifting = Lifting(PAYLOAD, functions)
    answers = lifting.lower(lifting.lifted(changes()))
    assert [answer.type for answer in answers] == lifting.result.types
    shown = {
        each.alias: answer.to_pylist() for each, answer in zip(functions, answers, strict=True)
    }
    assert shown["sum_money"] == [Decimal("12.34"), None, Decimal("-0.01"), Decimal("0.00")]
    assert shown["max_big"] == [2**62, None, -(2**62), 1]
    assert repr(shown["sum_real"]) == "[0.1, None, nan, -inf]"
    assert shown["count_real"] == [1, 0, 1, 1]
