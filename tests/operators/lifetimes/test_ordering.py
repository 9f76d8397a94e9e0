from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.operators.lifetimes import ordering as module
from icestream.operators.lifetimes.changes import changes_of, identities
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


@pytest.mark.parametrize("high", ["own", "shared"])
@pytest.mark.parametrize("together", [True, False])
def test_the_best_of_events_that_live_together_are_selected(
    monkeypatch: pytest.MonkeyPatch, *, together: bool, high: str
) -> None:
    monkeypatch.setattr(module, "_LARGE", 8)
    ordering, k = Ordering(SCHEMA, [Order("f"), Order("n")]), 3
    # the second group is small, the best of the others tie
    owners = np.repeat(np.arange(3, dtype=np.uint64), [30, 5, 12])
    values = [(None, float(row % 7), str(row)) for row in range(len(owners))]
    payload = pa.RecordBatch.from_pylist(
        [dict(zip(SCHEMA.names, row, strict=True)) for row in values], schema=SCHEMA
    )
    le = owners.astype(np.int64)
    le[-1] -= not together
    if high == "shared":
        # groups inside a group may have the same high word
        le[:], together = 0, False
    highs = owners if high == "own" else np.zeros_like(owners)
    found = ordering.selected_at_once(changes_of(payload, le, le + 9, 1, highs, owners), k)
    ranks, kept = ordering.ranks(payload), set(found.column("t").to_pylist())
    for owner in range(3):
        mine = np.flatnonzero(owners == owner)
        best = np.sort(ranks[mine])[-k]
        wanted = mine if owner == 1 or not together else mine[ranks[mine] >= best]
        assert kept >= {str(row) for row in mine[ranks[mine] >= best]}
        assert {str(row) for row in mine} & kept == {str(row) for row in wanted}
