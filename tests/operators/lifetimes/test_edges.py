from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.core.arrays import Slots
from icestream.core.errors import DefinitionError, InputError
from icestream.core.times import INFINITY, MINUS_INFINITY
from icestream.operators.lifetimes.changes import changes_schema
from icestream.operators.lifetimes.edges import END, INTERVAL, KIND, POINT, START, Edges
from icestream.state.groups.spec import GroupRows
from tests.fixtures import lifetime_events as scenarios
from tests.oracles.lifetimes import Bag, Event, Group, Payload, assert_same_bag, bag_of
from tests.oracles.plain_groups import PlainGroups
from tests.oracles.process import accepted

PAYLOAD = pa.schema([("key", pa.string()), ("value", pa.int64())])
G: Group = (7, 1)
Edge = tuple[int, Group, int, int, Payload]


def edges_from(edges: list[Edge]) -> pa.RecordBatch:
    rows = [(le, re, 1, *group, kind, *payload) for kind, group, le, re, payload in edges]
    schema = changes_schema(pa.schema([pa.field(KIND, pa.int8(), nullable=False), *PAYLOAD]))
    columns = [
        pa.array([row[place] for row in rows], type=field.type)
        for place, field in enumerate(schema)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def pushed(
    operator: Edges, groups: PlainGroups, edges: list[Edge], watermark: int = MINUS_INFINITY
) -> list[pa.RecordBatch]:
    groups.begin(watermark)
    return accepted(operator.on_changes(0, edges_from(edges), groups, watermark))


def meant(edges: list[Edge]) -> Bag:
    """End the k-th start of an instant and key by the k-th end."""
    ends: dict[tuple[Group, int, str], list[int]] = {}
    for kind, group, le, re, payload in edges:
        if kind == END:
            ends.setdefault((group, le, payload[0]), []).append(re)
    bag: Bag = Counter()
    for kind, group, le, re, payload in edges:
        mine = ends.get((group, le, payload[0]), [])
        if kind == START:
            end = mine.pop(0) if mine else INFINITY
        else:
            end = le + 1 if kind == POINT else re
        if kind != END and le < end:
            bag[Event(group, le, end, payload)] += 1
    return bag


def made_up(dice: Random, watermark: int, opened: list[Edge]) -> list[Edge]:
    """Make up edges that are not late; `opened` are starts without an end, until now."""
    edges: list[Edge] = []
    for _ in range(dice.randint(0, 9)):
        group = scenarios.GROUPS[dice.randrange(4)]
        le = max(watermark, 0) + dice.randint(0, 6)
        payload = (dice.choice(["a", "b", None]), dice.randint(0, 2))
        kind = dice.choice([START, START, START, POINT, INTERVAL])
        edges.append((kind, group, le, le + dice.randint(1, 9), payload))
        if kind == START:
            opened.append(edges[-1])
    for _ in range(dice.randint(0, 4)):
        if opened:
            _, group, le, _, payload = opened.pop(dice.randrange(len(opened)))
            end = max(le, watermark) + dice.randint(0, 5)
            edges.append((END, group, le, end, (payload[0], None)))
    dice.shuffle(edges)
    return edges


@given(dice=st.randoms())
def test_oracle_edges_in_any_chunks(dice: Random) -> None:
    operator = Edges(PAYLOAD, ["key"])
    groups = PlainGroups(operator.synopses)
    watermark, opened = MINUS_INFINITY, list[Edge]()
    emitted: list[Edge] = []
    made: list[pa.RecordBatch] = []
    for _ in range(4):
        edges = made_up(dice, watermark, opened)
        emitted += edges
        cut = dice.randint(0, len(edges))
        for part in (edges[:cut], edges[cut:]):
            made += pushed(operator, groups, part, watermark)
        watermark = max(watermark, 0) + dice.randint(0, 6)
        groups.begin(watermark)
        made += list(operator.on_watermark(groups, watermark))
        assert_same_bag(bag_of(*made), meant(emitted))
    assert operator.dropped == 0


def test_an_end_takes_the_endless_lifetime_out_and_puts_the_shorter_in() -> None:
    operator = Edges(PAYLOAD, ["key"])
    groups = PlainGroups(operator.synopses)
    (begun,) = pushed(operator, groups, [(START, G, 3, 0, ("a", 5))])
    assert bag_of(begun) == {Event(G, 3, INFINITY, ("a", 5)): 1}
    (ended,) = pushed(operator, groups, [(END, G, 3, 9, ("a", None))])
    assert bag_of(ended) == {
        Event(G, 3, INFINITY, ("a", 5)): -1,
        Event(G, 3, 9, ("a", 5)): 1,
    }


def test_an_end_at_the_start_takes_the_event_out_and_one_in_the_past_ends_now() -> None:
    operator = Edges(PAYLOAD, ["key"])
    groups = PlainGroups(operator.synopses)
    made = pushed(operator, groups, [(START, G, 3, 0, ("a", 5)), (START, G, 4, 0, ("b", 5))])
    made += pushed(operator, groups, [(END, G, 3, 3, ("a", None))])
    made += pushed(operator, groups, [(END, G, 4, 6, ("b", None))], watermark=8)
    assert bag_of(*made) == {Event(G, 4, 8, ("b", 5)): 1}


def test_an_end_without_a_start_is_counted() -> None:
    end: Edge = (END, G, 3, 9, ("a", None))
    for watermark, waits in ((3, True), (4, False)):
        operator = Edges(PAYLOAD, ["key"])
        groups = PlainGroups(operator.synopses)
        assert pushed(operator, groups, [end], watermark) == []
        groups.begin(watermark)
        assert list(operator.on_watermark(groups, watermark)) == []
        assert operator.dropped == int(not waits)
        assert list(operator.on_watermark(groups, 4)) == []
        assert operator.dropped == 1
        groups.begin(4)
        assert list(groups.due(INFINITY - 1)) == []


def test_bounded_nothing_is_kept_of_ended_events() -> None:
    operator = Edges(PAYLOAD, ["key"])
    groups = PlainGroups(operator.synopses)
    for round_ in range(5):
        pushed(operator, groups, [(END, G, round_, 9, ("a", None))])
        pushed(operator, groups, [(START, G, round_, 0, ("a", round_))])
        slots = groups.locate(*(np.array([part], dtype=np.uint64) for part in G))
        assert [groups.read(number, slots).rows.num_rows for number in range(2)] == [0, 0]
        assert list(groups.due(INFINITY - 1)) == []


def test_starts_alone_do_not_read_what_is_open() -> None:
    reads: list[int] = []

    class Watched(PlainGroups):
        def read(self, synopsis: int, slots: Slots) -> GroupRows:
            reads.append(synopsis)
            return super().read(synopsis, slots)

    operator = Edges(PAYLOAD, ["key"])
    pushed(operator, Watched(operator.synopses), [(START, G, 3, 0, ("a", 5))])
    assert reads == [1]


def test_edges_that_make_no_sense_are_refused_with_advice() -> None:
    operator = Edges(PAYLOAD, ["key"])
    groups = PlainGroups(operator.synopses)
    with pytest.raises(InputError, match="got \\[4\\]"):
        pushed(operator, groups, [(4, G, 3, 9, ("a", 5))])
    with pytest.raises(InputError, match="before it begins"):
        pushed(operator, groups, [(END, G, 3, 2, ("a", None))])
    edges = edges_from([(START, G, 3, 0, ("a", 5))])
    taken = edges.set_column(2, edges.schema.field(2), pa.array([-1], pa.int64()))
    with pytest.raises(InputError, match="cannot be retracted"):
        accepted(operator.on_changes(0, taken, groups, MINUS_INFINITY))
    with pytest.raises(DefinitionError, match="no columns other to be their keys"):
        Edges(PAYLOAD, ["other"])
