from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from icestream.operators.lifetimes.consolidate import identities
from icestream.operators.lifetimes.ordering import Order, Ordering

SCHEMA = pa.schema([("n", pa.int32()), ("f", pa.float64()), ("t", pa.string())])
ROWS = st.lists(
    st.tuples(
        st.none() | st.integers(-3, 3),
        st.none() | st.sampled_from([math.nan, math.inf, -math.inf, -0.5, 2.0]),
        st.none() | st.text("ab\u00e9\u20ac", max_size=10),
    ),
    min_size=1,
    unique_by=repr,
)


def sort_key(value: Any, *, descending: bool) -> tuple[Any, ...]:
    if value is None:
        return (descending,)
    if isinstance(value, str):
        letters = [*value.encode(), -1]
        return (not descending, [-each for each in letters] if descending else letters)
    number = (math.isnan(value), 0.0 if math.isnan(value) else value)
    return (not descending, *((-each for each in number) if descending else number))


@given(ROWS, st.permutations(SCHEMA.names), st.lists(st.booleans(), min_size=3, max_size=3))
def test_oracle_places_are_those_of_a_sort(
    rows: list[tuple[Any, ...]], names: list[str], descending: list[bool]
) -> None:
    payload = pa.RecordBatch.from_pylist(
        [dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA
    )
    by = [Order(name, descending=down) for name, down in zip(names[:2], descending, strict=False)]
    ordering = Ordering(SCHEMA, by)
    id_high, id_low = identities(payload)

    def key(at: int) -> tuple[Any, ...]:
        columns = [
            sort_key(rows[at][SCHEMA.get_field_index(each.column)], descending=each.descending)
            for each in by
        ]
        return (*columns, int(id_high[at]), int(id_low[at]))

    places = ordering.places(payload)
    order = np.argsort(places)
    assert order.tolist() == sorted(range(len(rows)), key=key)
    ranks = ordering.ranks(payload)[order]
    assert (ranks[1:] <= ranks[:-1]).all()
