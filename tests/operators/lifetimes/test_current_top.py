from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.core.times import INFINITY
from icestream.operators.lifetimes.changes import identities_of, payload_of
from icestream.operators.lifetimes.ordering import Order
from icestream.operators.lifetimes.top import TopK
from tests.operators.lifetimes.test_top import DICE, ORDERS, PORT
from tests.oracles.lifetimes import Bag, Event, bag_of, changes_from
from tests.oracles.plain_groups import PlainGroups

Table = dict[tuple[int, int], list[tuple[Any, ...]]]


def event(dice: Random) -> tuple[Event, int]:
    group = dice.choice([(3, 1), (7, 1), (7, 2)])
    return Event(group, 0, INFINITY, PORT.payload(dice)), dice.choice([1, 1, 1, 3])


def applied(table: Table, made: Sequence[pa.RecordBatch]) -> None:
    """Replace the rows of each group that a chunk emitted."""
    fresh: Table = {}
    for batch in made:
        rows = [tuple(row.values()) for row in payload_of(batch).to_pylist()]
        for high, low, row in zip(*identities_of(batch), rows, strict=True):
            fresh.setdefault((int(high), int(low)), []).append(row)
    table.update(fresh)


def rows_of(bag: Bag) -> Counter[Any]:
    return Counter(
        (each.group, repr(each.payload)) for each, count in bag.items() for _ in range(count)
    )


@given(DICE, st.sampled_from([1, 2, 5]), ORDERS, st.sampled_from([None, "place"]))
@settings(max_examples=80)
def test_oracle_current_rows_are_those_of_the_general_top_k(
    dice: Random, k: int, by: Sequence[Order], rank: str | None
) -> None:
    general = TopK(PORT.schema, k, by, rank=rank).growing()
    current = general.current()
    stores = [PlainGroups(each.synopses) for each in (general, current)]
    table: Table = {}
    shown: Bag = Counter()
    for _ in range(dice.choice([1, 4])):
        changes = changes_from([event(dice) for _ in range(dice.choice([1, 30]))], PORT.schema)
        for groups in stores:
            groups.begin(0)
        for made in general.on_changes(0, changes, stores[0], 0):
            shown.update(bag_of(made))
        applied(table, list(current.on_changes(0, changes, stores[1], 0)))
        held = Counter((group, repr(row)) for group, rows in table.items() for row in rows)
        assert held == rows_of(shown)


def test_bounded_events_behind_the_best_write_nothing() -> None:
    operator = TopK(PORT.schema, 2, [Order("size")]).growing().current()
    groups = PlainGroups(operator.synopses)

    def made(*sizes: int) -> int:
        groups.begin(0)
        events = [(Event((7, 1), 0, INFINITY, ("a", size, 0.5)), 1) for size in sizes]
        changes = changes_from(events, PORT.schema)
        found: int = sum(each.num_rows for each in operator.on_changes(0, changes, groups, 0))
        assert groups.read(0, groups.locate(*identities_of(changes))[:1]).rows.num_rows <= 2
        return found

    assert made(5, 9, 4) == 2
    assert made(1, 2, 3, 4) == 0
    # equal to the worst of the best
    assert made(5) == 0
    assert made(6) == 2
