from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable, Sequence
from functools import lru_cache
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.core.errors import DefinitionError
from icestream.core.times import INFINITY, MINUS_INFINITY
from icestream.operators.lifetimes import top
from icestream.operators.lifetimes.changes import changes_of, identities
from icestream.operators.lifetimes.ordering import Order
from icestream.operators.lifetimes.top import TopK
from tests.fixtures import lifetime_events as scenarios
from tests.oracles import lifetimes as oracle
from tests.oracles.lifetimes import Event, Payload, bag_of, changes_from, heads
from tests.oracles.plain_groups import PlainGroups

PORT = scenarios.port()
ORDERS = st.sampled_from(
    [
        (Order("size"),),
        (Order("score", descending=False),),
        (Order("name"), Order("size", descending=False)),
        (Order("name", descending=False),),
        (Order("score"), Order("name")),
    ]
)
DICE = st.randoms(use_true_random=False)
G = (7, 1)
NUMBERS = pa.schema([("x", pa.int64())])


@lru_cache
def identity(payload: Payload) -> tuple[int, int]:
    arrays = [
        pa.array([value], field.type) for value, field in zip(payload, PORT.schema, strict=True)
    ]
    id_high, id_low = identities(pa.RecordBatch.from_arrays(arrays, schema=PORT.schema))
    return int(id_high[0]), int(id_low[0])


def key_of(value: Any, *, descending: bool) -> tuple[Any, ...]:
    """Return what sorts as Spark's ORDER BY does, nulls last where the greatest come first."""
    if value is None:
        return (descending,)
    if isinstance(value, str):
        letters = [*value.encode(), -1]
        return (not descending, [-each for each in letters] if descending else letters)
    number = (math.isnan(value), 0.0 if math.isnan(value) else value)
    return (not descending, *((-each for each in number) if descending else number))


def best_first(by: Sequence[Order]) -> Callable[[Payload], Any]:
    places = [(PORT.schema.get_field_index(each.column), each.descending) for each in by]

    def key(payload: Payload) -> Any:
        columns = [key_of(payload[place], descending=descending) for place, descending in places]
        return (*columns, identity(payload))

    return key


def check(
    dice: Random,
    k: int,
    by: Sequence[Order],
    kind: scenarios.ScenarioKind,
    *,
    partial: bool,
    piece_rows: int = 0,
) -> None:
    operator = TopK(PORT.schema, k, by, partial=partial)
    groups = PlainGroups(operator.synopses, piece_rows)
    for step in scenarios.play(operator, scenarios.scenario(dice, [PORT], kind), groups):
        if step.complete or not (kind.shuffled or kind.holes):
            step.check(oracle.top(step.inputs[0], k, best_first(by)))
        assert not step.complete or min(step.output.values(), default=1) > 0


@given(DICE, st.sampled_from([1, 2, 3, 7]), ORDERS, st.booleans(), st.sampled_from([0, 4, 12]))
@settings(max_examples=80)
def test_oracle_top_k_of_random_changes(
    dice: Random, k: int, by: Sequence[Order], cuts: bool, pace: int
) -> None:
    kind = scenarios.ScenarioKind(
        groups=2, revisions=14, batches=5, cuts=cuts, holes=cuts, pace=pace
    )
    check(dice, k, by, kind, partial=True)


@given(DICE, st.sampled_from([1, 2, 3]), ORDERS, st.booleans(), st.sampled_from([0, 12]))
@settings(max_examples=60)
def test_oracle_top_k_of_shuffled_changes(
    dice: Random, k: int, by: Sequence[Order], cuts: bool, pace: int
) -> None:
    kind = scenarios.ScenarioKind(3, 14, groups=2, cuts=cuts, holes=cuts, pace=pace, shuffled=True)
    check(dice, k, by, kind, partial=True)


@given(DICE, st.sampled_from([1, 3]), ORDERS, st.sampled_from([None, "place"]))
@settings(max_examples=60)
def test_oracle_top_k_of_events_that_stay(
    dice: Random, k: int, by: Sequence[Order], rank: str | None
) -> None:
    kind = scenarios.ScenarioKind(5, 14, 2, pace=dice.choice([0, 4, 12]), retractions=False)
    operator = TopK(PORT.schema, k, by, rank=rank).growing()
    for step in scenarios.play(operator, scenarios.scenario(dice, [PORT], kind)):
        wanted = oracle.top(
            step.inputs[0], k, best_first(by), lambda row, place: (*row, place) if rank else row
        )
        step.check(wanted)
    assert [each.name for each in operator.synopses] == ["shown"]


@given(DICE, st.sampled_from([1, 2, 5]), ORDERS)
@settings(max_examples=25)
def test_selected_events_have_the_best_of_each_group(
    dice: Random, k: int, by: Sequence[Order]
) -> None:
    groups = [(dice.choice([3, 7]), 1) for _ in range(dice.choice([0, 1, 40]))]
    events = [(Event(group, 0, INFINITY, PORT.payload(dice)), 1) for group in groups]
    changes = changes_from(events, PORT.schema)
    found = TopK(PORT.schema, k, by).growing().selected(changes)
    assert found.num_rows <= changes.num_rows
    best = (oracle.top(bag_of(each), k, best_first(by)) for each in (changes, found))
    assert next(best) == next(best)


def test_no_event_is_selected_that_others_always_hide() -> None:
    sizes = [5, 9, 9, 2, 7]
    events = [(Event(G, 0, INFINITY, ("a", size, 0.5)), 1) for size in sizes]
    operator = TopK(PORT.schema, 2, [Order("size")]).growing()
    found = operator.selected(changes_from(events, PORT.schema))
    assert found.column("size").to_pylist() == [9, 9]


@given(DICE, st.sampled_from([1, 3]), ORDERS)
@settings(max_examples=12)
def test_reading_everything_changes_nothing(dice: Random, k: int, by: Sequence[Order]) -> None:
    check(dice, k, by, scenarios.ScenarioKind(groups=2, revisions=14), partial=False)


@given(DICE, st.sampled_from([1, 3]), ORDERS, st.booleans(), st.sampled_from([1, 2, 5]))
@settings(max_examples=25)
def test_oracle_top_k_of_large_groups(
    dice: Random, k: int, by: Sequence[Order], cuts: bool, piece_rows: int
) -> None:
    kind = scenarios.ScenarioKind(
        3, 14, groups=2, cuts=cuts, holes=cuts, pace=dice.choice([0, 12]), shuffled=cuts
    )
    check(dice, k, by, kind, partial=dice.random() < 0.2, piece_rows=piece_rows)


@pytest.mark.parametrize("patience", [0, 2])
@pytest.mark.parametrize("seed", range(10))
def test_oracle_events_that_are_owed_are_cleared_up(
    seed: int, patience: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(top, "_PATIENCE", patience)
    kind = scenarios.ScenarioKind(groups=1, revisions=20, shuffled=seed % 2 == 0)
    check(Random(seed), 2, [Order("size")], kind, partial=True)


def numbers(*events: tuple[int, int, int, int]) -> pa.RecordBatch:
    return changes_from([(Event(G, le, re, (x,)), diff) for le, re, x, diff in events], NUMBERS)


def fed(
    operator: TopK, groups: PlainGroups, changes: pa.RecordBatch, watermark: int = MINUS_INFINITY
) -> list[pa.RecordBatch]:
    groups.begin(watermark)
    return list(operator.on_changes(0, changes, groups, watermark))


def test_bounded_new_events_read_what_is_shown_only() -> None:
    operator = TopK(NUMBERS, 3, [Order("x")])
    groups = PlainGroups(operator.synopses)
    for x in np.random.default_rng(1).permutation(200).tolist():
        shown = operator.reads.shown
        fed(operator, groups, numbers((0, INFINITY, x, 1)))
        assert operator.reads.shown - shown <= 3
    assert operator.reads.events == 0


def test_bounded_an_event_taken_out_reads_few() -> None:
    operator = TopK(NUMBERS, 3, [Order("x")])
    groups = PlainGroups(operator.synopses)
    fed(operator, groups, numbers(*((0, INFINITY, x, 1) for x in range(200))))
    (emitted,) = fed(operator, groups, numbers((0, INFINITY, 199, -1)))
    assert operator.reads.events == 5
    assert (heads(emitted), emitted.column("x").to_pylist()) == (
        [(0, INFINITY, -1), (0, INFINITY, 1)],
        [199, 196],
    )
    # one that is not shown is taken out without a look at the others
    assert fed(operator, groups, numbers((0, INFINITY, 7, -1))) == []
    assert operator.reads.events == 5
    # one that gets better needs none of those behind it
    fed(operator, groups, numbers((0, INFINITY, 198, -1), (0, INFINITY, 300, 1)))
    assert operator.reads.events == 5


def test_bounded_events_taken_out_again_and_again_read_few_in_all() -> None:
    operator = TopK(NUMBERS, 2, [Order("x")])
    groups = PlainGroups(operator.synopses)
    fed(operator, groups, numbers(*((0, INFINITY, x, 1) for x in range(300))))
    for x in range(299, 199, -1):
        fed(operator, groups, numbers((0, INFINITY, x, -1)))
    assert operator.reads.events < 100 * 300 / 3


@given(DICE, st.sampled_from([1, 3]), ORDERS, st.sampled_from([4, 12]))
@settings(max_examples=40)
def test_oracle_top_k_of_last_changes(dice: Random, k: int, by: Sequence[Order], pace: int) -> None:
    operator = TopK(PORT.schema, k, by)
    groups = PlainGroups(operator.synopses)
    batches = scenarios.scenario(
        dice, [PORT], scenarios.ScenarioKind(groups=2, revisions=14, pace=pace)
    )
    came: list[pa.RecordBatch] = []
    emitted: list[pa.RecordBatch] = []
    for batch, over in zip(batches, [*(b.watermark for b in batches[1:]), INFINITY], strict=True):
        if not batch.chunks:
            continue
        groups.begin(batch.watermark)
        came.append(pa.concat_batches([changes for _, changes in batch.chunks]))
        emitted += operator.on_last_changes(0, came[-1], groups, batch.watermark, over)
    oracle.assert_same_snapshots(bag_of(*emitted), oracle.top(bag_of(*came), k, best_first(by)))


def test_bounded_nothing_is_kept_of_last_changes_that_end() -> None:
    operator = TopK(NUMBERS, 1, [Order("x")])
    groups = PlainGroups(operator.synopses)
    changes = numbers((0, 4, 9, 1), (0, 4, 7, 1), (2, 8, 5, 1))
    (emitted,) = operator.on_last_changes(0, changes, groups, 0, 5)
    assert bag_of(emitted) == {Event(G, 0, 4, (9,)): 1, Event(G, 4, 8, (5,)): 1}
    slots = groups.locate(np.array([G[0]], np.uint64), np.array([G[1]], np.uint64))
    for synopsis in (0, 1):
        assert groups.read(synopsis, slots).rows.column("x").to_pylist() == [5]


def test_a_hidden_event_that_is_better_than_a_new_one_is_found() -> None:
    # 10 and 5 are alive, 10 shows; 10 goes and 1 comes in the same chunk: 5 it is
    operator = TopK(NUMBERS, 1, [Order("x")])
    groups = PlainGroups(operator.synopses)
    first = fed(operator, groups, numbers((0, 9, 10, 1), (0, 9, 5, 1)))
    second = fed(operator, groups, numbers((0, 9, 10, -1), (0, 9, 1, 1)))
    assert bag_of(*first, *second) == {Event(G, 0, 9, (5,)): 1}


def test_what_is_shown_knows_what_comes_when_lifetimes_end() -> None:
    #        0    2    4    6    8
    # 9      |=========|                 best of one:  9 until 4, then 5 until 8
    # 5           |==============|       3 only before 5 begins, were it not for 9
    # 3      |==============|
    operator = TopK(NUMBERS, 1, [Order("x")])
    groups = PlainGroups(operator.synopses)
    (emitted,) = fed(operator, groups, numbers((0, 4, 9, 1), (2, 8, 5, 1), (0, 6, 3, 1)))
    assert bag_of(emitted) == {Event(G, 0, 4, (9,)): 1, Event(G, 4, 8, (5,)): 1}
    # at 3 the 9 turns out to have ended: 5 takes over, what was shown before stays
    (revised,) = fed(operator, groups, numbers((0, 4, 9, -1), (0, 3, 9, 1)), 3)
    assert bag_of(emitted, revised) == {Event(G, 0, 3, (9,)): 1, Event(G, 3, 8, (5,)): 1}
    assert operator.reads.events <= 6


def test_definitions_that_make_no_sense_are_refused() -> None:
    with pytest.raises(DefinitionError, match="k >= 1"):
        TopK(NUMBERS, 0, [Order("x")])
    with pytest.raises(DefinitionError, match="name at least one"):
        TopK(NUMBERS, 1, [])
    with pytest.raises(DefinitionError, match="choose among"):
        TopK(NUMBERS, 1, [Order("z")])
    with pytest.raises(DefinitionError, match="cannot order by 'l'"):
        TopK(pa.schema([("l", pa.list_(pa.int64()))]), 1, [Order("l")])


@given(DICE, st.sampled_from([1, 2, 3]), ORDERS, st.booleans())
@settings(max_examples=40)
def test_oracle_ranks_of_random_changes(
    dice: Random, k: int, by: Sequence[Order], cuts: bool
) -> None:
    kind = scenarios.ScenarioKind(groups=2, revisions=14, batches=4, cuts=cuts, holes=cuts)
    operator = TopK(PORT.schema, k, by, rank="place")
    for step in scenarios.play(operator, scenarios.scenario(dice, [PORT], kind)):
        if step.complete or not kind.holes:
            numbered = oracle.top(
                step.inputs[0], k, best_first(by), lambda payload, place: (*payload, place)
            )
            step.check(numbered)


@pytest.mark.parametrize("k", [3, 1_000_000])
def test_bounded_events_that_live_together_take_memory_for_themselves(k: int) -> None:
    def shown(count: int) -> int:
        operator, starts = TopK(NUMBERS, k, (Order("x"),)), np.arange(count) * 10
        values = pa.record_batch([np.random.default_rng(1).permutation(count)], NUMBERS)
        ids = (np.full(count, 7, np.uint64),) * 2
        given = changes_of(values, starts, starts + 1_000_000, 1, *ids)
        groups = PlainGroups(operator.synopses)
        return sum(each.num_rows for each in operator.on_changes(0, given, groups, MINUS_INFINITY))

    shown(10)  # loads kernels
    tracemalloc.start()
    try:
        rows = shown(3_000)
        # each of them spans thousands of segments, which were 32 bytes each
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
    assert rows == 3_000 if k > 3_000 else k <= rows < 1_000
