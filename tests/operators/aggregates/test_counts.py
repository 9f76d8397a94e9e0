from __future__ import annotations

import pyarrow as pa

from icestream.operators.aggregates.aggregate import Aggregate
from tests.fixtures.folding import folded


def test_events_values_and_conditions_are_counted() -> None:
    flags = {"x": pa.array([True, None, False, True])}
    assert folded(Aggregate("count", None, "n"), {}, times=[1, 2, 3]) == 3
    assert folded(Aggregate("count", "x", "n"), flags) == 3
    assert folded(Aggregate("count_if", "x", "n"), flags, cuts=[1, 2]) == 2
    assert folded(Aggregate("count_if", "x", "n"), {"x": pa.nulls(2, pa.bool_())}) == 0
