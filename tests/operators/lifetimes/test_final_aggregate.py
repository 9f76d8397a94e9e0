from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import fsum
from random import Random
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.core.arrays import Slots
from icestream.core.errors import DefinitionError
from icestream.core.times import INFINITY, MINUS_INFINITY
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.lifetimes.aggregate import lifetime_aggregate, only_final
from icestream.operators.lifetimes.answers import LifetimeAggregate
from icestream.operators.lifetimes.changes import DIFF, LE
from icestream.operators.lifetimes.lift import OF_LEFT
from icestream.operators.lifetimes.rows_by_group import END
from icestream.state.groups.spec import GroupRows, Groups
from tests.fixtures import lifetime_events as scenarios
from tests.fixtures.lifetime_kinds import KINDS
from tests.oracles import lifetimes as oracle
from tests.oracles.lifetimes import Bag, Event, Payload, bag_of, changes_from, heads
from tests.oracles.plain_groups import PlainGroups

PORT = scenarios.port()
DICE = st.randoms(use_true_random=False)
G = (7, 1)
NUMBERS = pa.schema([("x", pa.int64()), ("y", pa.float64())])
Functions = Sequence[Aggregate]
Answers = Sequence[Callable[[list[Payload]], Any]]

CASES: dict[str, tuple[Functions, Answers]] = {
    "exact": (
        [Aggregate("count", None, "events"), Aggregate("sum", "size", "total")],
        [oracle.count(), oracle.total(1)],
    ),
    "floats": (
        [Aggregate("avg", "score", "mean"), Aggregate("count", "name", "names")],
        [oracle.mean(2), oracle.count(0)],
    ),
    "choices": (
        [Aggregate("max", "score", "most"), Aggregate("min", "size", "least")],
        [oracle.most(2), oracle.least(1)],
    ),
    "objects": (
        [
            Aggregate("median", "size", "median", parameters=(0.5,)),
            Aggregate("sum", "size", "total"),
            Aggregate("collect_set", "name", "names"),
            Aggregate("max", "name", "most"),
        ],
        [
            lambda rows: median(values) if (values := oracle.values(1)(rows)) else None,
            oracle.total(1),
            lambda rows: sorted(set(oracle.values(0)(rows))),
            oracle.most(0),
        ],
    ),
}


def final(functions: Functions, *, grows: bool = False) -> LifetimeAggregate:
    return only_final(lifetime_aggregate(PORT.schema, functions), grows=grows)


def only_added(batches: Sequence[scenarios.Batch]) -> list[scenarios.Batch]:
    """Leave out what takes events out, and what would change the past without it."""

    def kept(batch: scenarios.Batch, part: pa.RecordBatch) -> pa.RecordBatch:
        added = pc.greater(part.column(DIFF), 0)
        return part.filter(pc.and_(added, pc.greater_equal(part.column(LE), batch.watermark)))

    return [
        replace(batch, chunks=[(0, kept(batch, part)) for _, part in batch.chunks])
        for batch in batches
    ]


def over_events(answers: Answers) -> Callable[[Bag], Bag]:
    return lambda events: oracle.aggregate(events, *answers)


def check(
    operator: LifetimeAggregate,
    batches: Sequence[scenarios.Batch],
    aggregated: Callable[[Bag], Bag],
    groups: Groups | None = None,
) -> None:
    """Compare what was said at each watermark: all that ended, nothing twice, nothing revised."""
    watermarks = [batch.watermark for batch in batches[1:]] + [INFINITY]
    said: Bag = Counter()
    for step in scenarios.play(operator, batches, groups):
        if not step.complete:
            assert step.output == said
            continue
        watermark = watermarks.pop(0)
        assert all(step.output[event] >= count > 0 for event, count in said.items())
        said = Counter(step.output)
        assert all(event.re <= watermark for event in said)
        lasting = oracle.altered(step.inputs[0], lambda le, re: (le, INFINITY if re == END else re))
        truth = aggregated(lasting)
        ended = {e: 1 for e in truth if e.re < watermark or watermark == INFINITY}
        assert_between(Counter(ended), said, truth, watermark)


def assert_between(ended: Bag, said: Bag, truth: Bag, watermark: int) -> None:
    """Fail unless what ended was said, and what was said is true and over."""
    past = oracle.altered(truth, lambda le, re: (le, min(re, watermark)))
    for less, more in ((ended, said), (said, past)):
        left = Counter(more)
        left.subtract(less)
        assert all(count > 0 for count in oracle.coalesced(left).values())


@pytest.mark.parametrize("name", CASES)
@given(dice=DICE, kind=KINDS)
@settings(max_examples=8)
def test_oracle_final_segments_come_once(
    name: str, dice: Random, kind: scenarios.ScenarioKind
) -> None:
    functions, answers = CASES[name]
    check(final(functions), scenarios.scenario(dice, [PORT], kind), over_events(answers))


@pytest.mark.parametrize("name", CASES)
def test_oracle_final_segments_of_events_that_stay(name: str) -> None:
    functions, answers = CASES[name]
    for seed in range(12):
        kind = scenarios.ScenarioKind(revisions=14, groups=1 + seed % 3, pace=4 * (seed % 4))
        batches = only_added(scenarios.scenario(Random(seed), [PORT], kind))
        check(final(functions, grows=True), batches, over_events(answers))


@pytest.mark.parametrize("name", CASES)
def test_oracle_large_groups_are_read_in_pieces(name: str) -> None:
    functions, answers = CASES[name]
    for seed in range(16):
        kind = scenarios.ScenarioKind(revisions=14, groups=1 + seed % 3, pace=4 * (seed % 4))
        batches = scenarios.scenario(Random(seed), [PORT], kind)
        grows = seed % 2 == 0
        operator = final(functions, grows=grows)
        groups = PlainGroups(operator.synopses, piece_rows=1 + seed % 4)
        batches = only_added(batches) if grows else batches
        check(operator, batches, over_events(answers), groups)


#: events of both sides of a join: a column of each, and a mark on the left
SIDES = pa.schema([("a", pa.int64()), ("b", pa.float64()), (OF_LEFT, pa.bool_())])
SUMS = [
    Aggregate("count", None, "n"),
    Aggregate("sum", "a", "total"),
    Aggregate("avg", "b", "mean"),
]
EXTREMES = [Aggregate("max", "a", "most"), Aggregate("min", "b", "least")]
SUMS_OF_PAIRS: Answers = [oracle.count(), oracle.total(0), oracle.mean(1)]
EXTREMES_OF_PAIRS: Answers = [oracle.most(0), oracle.least(1)]


def of_pairs(functions: Functions, *, grows: bool) -> LifetimeAggregate:
    aggregate = lifetime_aggregate(SIDES, functions, left=["a"])
    return only_final(aggregate, grows=grows)


def over_pairs(answers: Answers) -> Callable[[Bag], Bag]:
    """Return the aggregate over all pairs of an event of the left side and one of the right."""

    def relational(alive: Counter[Payload]) -> list[tuple[Payload, int]]:
        left, right = ([each for each in alive.elements() if each[2] is of] for of in (True, None))
        pairs = [(one[0], two[1]) for one in left for two in right]
        return [(tuple(function(pairs) for function in answers), 1)] if pairs else []

    return lambda events: oracle.piecewise(relational, events)


def sides(marks: Sequence[bool | None]) -> scenarios.Port:
    def payload(dice: Random) -> Payload:
        mark = dice.choice(marks)
        value = None if dice.random() < 0.2 else dice.randrange(-3, 3)
        return (value, None, True) if mark else (None, None if value is None else value / 2, None)

    return scenarios.Port(SIDES, payload)


@pytest.mark.parametrize(
    ("functions", "answers"), [(SUMS, SUMS_OF_PAIRS), (EXTREMES, EXTREMES_OF_PAIRS)]
)
@pytest.mark.parametrize("marks", [[True, None], [True, None, None, None, None]])
@given(dice=DICE, kind=KINDS, grows=st.booleans())
@settings(max_examples=12)
def test_oracle_final_answers_over_pairs(
    functions: Functions,
    answers: Answers,
    marks: Sequence[bool | None],
    dice: Random,
    kind: scenarios.ScenarioKind,
    grows: bool,
) -> None:
    batches = scenarios.scenario(dice, [sides(marks)], kind)
    batches = only_added(batches) if grows else batches
    check(of_pairs(functions, grows=grows), batches, over_pairs(answers))


def test_sums_of_doubles_have_room_in_many_pieces() -> None:
    operator = of_numbers("sum", "y")
    groups = PlainGroups(operator.synopses, piece_rows=2)
    values = [1e300, 3.0, 2.0**-60] * 40
    events = [(at, 1000 + at, 0, value, 1) for at, value in enumerate(values)]
    groups.begin(MINUS_INFINITY)
    list(operator.on_changes(0, numbers(*events), groups, MINUS_INFINITY))
    said = bag_of(*operator.on_watermark(groups, INFINITY))
    found = {at: event.payload[0] for event in said for at in range(event.le, event.re)}
    alive = (values[max(0, at - 999) : at + 1] for at in range(999 + len(values)))
    assert found == {at: fsum(some) for at, some in enumerate(alive)}


class Watched(PlainGroups):
    """Counts the rows that are read and added."""

    def __init__(self, operator: LifetimeAggregate) -> None:
        super().__init__(operator.synopses)
        self.reads = self.added = 0

    def read(self, synopsis: int, slots: Slots) -> GroupRows:
        found = super().read(synopsis, slots)
        self.reads += found.rows.num_rows
        return found

    def append(self, synopsis: int, slots: Slots, rows: pa.RecordBatch) -> None:
        self.added += rows.num_rows
        super().append(synopsis, slots, rows)


def numbers(*events: tuple[int, int, int | None, float | None, int]) -> pa.RecordBatch:
    return changes_from(
        [(Event(G, le, re, (x, y)), diff) for le, re, x, y, diff in events], NUMBERS
    )


def of_numbers(function: str, column: str = "x", *, grows: bool = True) -> LifetimeAggregate:
    functions = [Aggregate(function, column, "answer")]
    return only_final(lifetime_aggregate(NUMBERS, functions), grows=grows)


def played(
    operator: LifetimeAggregate, *steps: tuple[list[pa.RecordBatch], int]
) -> list[tuple[int, int, Any]]:
    """Return (le, re, answer) of what is told, given chunks and watermarks."""
    groups, before = PlainGroups(operator.synopses), MINUS_INFINITY
    said = []
    for chunks, watermark in steps:
        for chunk in chunks:
            groups.begin(before)
            assert list(operator.on_changes(0, chunk, groups, before)) == []
        groups.begin(before)
        for emitted in operator.on_watermark(groups, watermark):
            answers = emitted.column("answer").to_pylist()
            said += [(le, re, a) for (le, re, _), a in zip(heads(emitted), answers, strict=True)]
        before = watermark
    return said


def test_equal_answers_in_a_row_are_one() -> None:
    #     0    2    4    6    8
    # a   |=========|              watermarks at 1, 5 and 9: the sum is 3 all the time
    # b             |=========|
    parts = numbers((0, 4, 3, None, 1), (4, 8, 3, None, 1))
    for grows in (False, True):
        emitted = played(of_numbers("sum", grows=grows), ([parts], 1), ([], 5), ([], 9))
        assert emitted == [(0, 8, 3)]
    # at its own instant the watermark cannot know what else begins there, so answers wait
    one, other = numbers((0, 4, 3, None, 1)), numbers((4, 8, 3, None, 1))
    for steps in ([([parts], 4), ([], 9)], [([one], 4), ([other], 8), ([], 9)]):
        assert played(of_numbers("sum"), *steps) == [(0, 8, 3)]


def test_an_event_that_is_shortened_in_time_counts_as_long_as_it_lived() -> None:
    #     0    2    4    6    8
    # a   |===================|   1e40, later only up to 5, and up to the watermark at 3 at least
    # b   |===================|   1.0
    long = numbers((0, 8, 7, 1e40, 1), (0, 8, 1, 1.0, 1))
    shorter = numbers((0, 8, 7, 1e40, -1), (0, 5, 7, 1e40, 1))
    operator = of_numbers("sum", "y", grows=False)
    emitted = played(operator, ([long], 3), ([shorter], 6), ([], 9))
    assert emitted == [(0, 5, 1e40), (5, 8, 1.0)]
    largest = of_numbers("max", grows=False)
    assert played(largest, ([long], 3), ([shorter], 6), ([], 9)) == [(0, 5, 7), (5, 8, 1)]


def test_values_are_collected_in_the_order_of_time() -> None:
    #     0    2    4    6    8
    # 5   |=========|              told at 3, and again after the rows of 7 and 9 that end together
    # 7        |==============|    were looked at
    # 9     |=================|
    events = numbers((2, 8, 7, None, 1), (1, 8, 9, None, 1), (0, 4, 5, None, 2))
    operator = of_numbers("collect_list")
    emitted = played(operator, ([events], 3), ([], 5), ([], 9))
    assert emitted == [(0, 1, [5, 5]), (1, 2, [5, 5, 9]), (2, 4, [5, 5, 9, 7]), (4, 8, [9, 7])]


def test_values_that_may_be_taken_out_have_no_order() -> None:
    with pytest.raises(DefinitionError, match="depends on the order of events"):
        of_numbers("collect_list", grows=False)


def test_bounded_a_change_is_added_without_a_read() -> None:
    operator = of_numbers("sum")
    groups = Watched(operator)
    for instant in range(50):
        groups.begin(0)
        list(operator.on_changes(0, numbers((instant, instant + 30, 1, None, 1)), groups, 0))
    assert (groups.reads, groups.added) == (0, 50)
    at_once = numbers(*((3, 9, x, None, 1) for x in range(20)))
    list(operator.on_changes(0, at_once, groups, 0))
    assert (groups.reads, groups.added) == (0, 51)


@pytest.mark.parametrize("function", ["sum", "max"])
@pytest.mark.parametrize("grows", [False, True])
def test_bounded_events_that_end_together_become_one_row(function: str, grows: bool) -> None:
    operator = of_numbers(function, grows=grows)
    groups = Watched(operator)
    for instant in range(100):
        groups.begin(instant)
        new = numbers((instant, INFINITY, 1 + instant % 2, None, 1))
        list(operator.on_changes(0, new, groups, instant))
        before = groups.reads
        list(operator.on_watermark(groups, instant + 1))
        assert groups.reads - before <= 12
    (last,) = operator.on_watermark(groups, INFINITY)
    assert last.column("answer").to_pylist() == [{"sum": 150, "max": 2}[function]]


def test_bounded_events_without_a_partner_are_read_once() -> None:
    #         0         10    12         20        (watermarks at every instant)
    # left    |==============================...
    # right             |======|
    operator = of_pairs([Aggregate("count", None, "n")], grows=True)
    groups, said = Watched(operator), []
    arriving = {0: (0, 1000, (1, None, True)), 10: (10, 12, (None, 0.5, None))}
    reads = []
    for instant in range(20):
        groups.begin(instant)
        if instant in arriving:
            le, re, payload = arriving[instant]
            changes = changes_from([(Event(G, le, re, payload), 1)], SIDES)
            list(operator.on_changes(0, changes, groups, instant))
        said += [bag_of(each) for each in operator.on_watermark(groups, instant + 1)]
        reads.append(groups.reads)
    # when it begins; when the partner begins, and when it has ended
    assert reads[:11] == [1] * 10 + [3]
    assert reads[13:] == [reads[12]] * 7
    assert sum(said, Counter()) == Counter({Event(G, 10, 12, (1,)): 1})


def test_keys_are_shown_beside_final_answers() -> None:
    operator = lifetime_aggregate(NUMBERS, [Aggregate("count", None, "n")], ["x"])
    operator = only_final(operator, grows=True)
    groups = PlainGroups(operator.synopses)
    groups.begin(MINUS_INFINITY)
    changes = numbers((0, 4, 3, None, 1), (0, 4, 3, 2.0, 1))
    assert list(operator.on_changes(0, changes, groups, MINUS_INFINITY)) == []
    assert list(operator.on_watermark(groups, 4)) == []
    (emitted,) = operator.on_watermark(groups, 5)
    assert emitted.select(["x", "n"]).to_pylist() == [{"x": 3, "n": 2}]
    assert list(operator.on_watermark(groups, INFINITY)) == []
