"""Answers over pairs from the events of both sides, beside the answers over all pairs."""

from __future__ import annotations

from random import Random

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.lifetimes.answers import EventSpans, SpanAnswers
from icestream.operators.lifetimes.changes import changes_of
from icestream.operators.lifetimes.lift import OF_LEFT

LEFT = pa.schema([("a", pa.int64()), ("x", pa.float64())])
RIGHT = pa.schema([("b", pa.decimal128(12, 2)), ("y", pa.float64())])
FUNCTIONS = [
    Aggregate("count", None, "n"),
    *(Aggregate("count", name, f"valid {name}") for name in "axby"),
    *(Aggregate("sum", name, f"sum {name}") for name in "axby"),
    *(Aggregate("avg", name, f"avg {name}") for name in "axy"),
    *(Aggregate("min", name, f"min {name}") for name in "axby"),
    *(Aggregate("max", name, f"max {name}") for name in "axby"),
    *(Aggregate("var_samp", name, f"var {name}") for name in "axy"),
]
PAYLOAD = pa.schema([*LEFT, *RIGHT, pa.field(OF_LEFT, pa.bool_())])
Row = tuple[object, ...]
DOUBLES = (0.1, -2.5, 1e300, 1e-300, 3.0, None)


@given(dice=st.randoms(use_true_random=False))
def test_oracle_aggregates_of_pairs(dice: Random) -> None:
    left = [(_maybe(dice, 9), dice.choice(DOUBLES)) for _ in range(dice.randrange(5))]
    right = [(_maybe(dice, 99), dice.choice(DOUBLES)) for _ in range(dice.randrange(5))]
    if dice.random() < 0.2:
        left += [(1, float("inf")), (2, float("nan"))][: dice.randrange(3)]
    sides: list[Row] = [(*each, None, None, True) for each in left]
    sides += [(None, None, *each, None) for each in right]
    dice.shuffle(sides)
    pairs: list[Row] = [(*one, *two) for one in left for two in right]
    found = _answers(SpanAnswers(PAYLOAD, FUNCTIONS, grows=True, left=["a", "x"]), sides)
    wanted = _answers(SpanAnswers(pa.schema([*LEFT, *RIGHT]), FUNCTIONS, grows=True), pairs)
    assert repr(found) == repr(wanted)


def _maybe(dice: Random, most: int) -> int | None:
    return None if dice.random() < 0.2 else dice.randrange(-most, most)


def _answers(answers: SpanAnswers, rows: list[Row]) -> list[dict[str, object]]:
    """Return the answers of one segment that all rows span."""
    columns = list(zip(*rows, strict=True)) or [()] * len(answers.payload)
    payload = pa.RecordBatch.from_arrays(
        [pa.array(each, f.type) for each, f in zip(columns, answers.payload, strict=True)],
        schema=answers.payload,
    )
    zeros = np.zeros(len(rows), dtype=np.int64)
    ids = zeros.astype(np.uint64)
    changes = changes_of(payload, zeros, zeros + 1, 1, ids, ids)
    words = answers.lifting.lifted(changes, max(1, len(rows)))
    nothing = pa.RecordBatch.from_pylist([{}] * len(rows))
    spans = EventSpans(zeros, zeros + 1, zeros + 1, zeros, nothing)
    _, _, found = answers.over(words, spans, 1)
    return list(found.to_pylist())
