from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.core.arrays import Slots
from icestream.core.errors import DefinitionError
from icestream.core.times import INFINITY, MINUS_INFINITY
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.bad_rows import BadRows
from icestream.operators.dataflow.transient_groups import TransientGroups
from icestream.operators.lifetimes import changes, non_invertible_aggregate, pieces
from icestream.operators.lifetimes.aggregate import Mode, lifetime_aggregate, of_growing
from icestream.operators.lifetimes.answers import LifetimeAggregate
from icestream.operators.lifetimes.changes import DIFF, LE, RE, PromptOperator
from icestream.operators.object_aggregates.user_aggregates import UserAggregate
from icestream.state.groups.spec import GroupRows, Groups
from tests.fixtures import lifetime_events as scenarios
from tests.fixtures.lifetime_kinds import KINDS
from tests.oracles import lifetimes as oracle
from tests.oracles.kernels.double_sums import nearest_reference
from tests.oracles.lifetimes import Bag, Event, Payload, changes_from, heads
from tests.oracles.plain_groups import PlainGroups

PORT = scenarios.port()
DICE = st.randoms(use_true_random=False)
G = (7, 1)
NUMBERS = pa.schema([("x", pa.int64()), ("y", pa.float64())])

SUMS = (
    Aggregate("count", None, "events"),
    Aggregate("count", "name", "names"),
    Aggregate("sum", "size", "total"),
    Aggregate("avg", "score", "mean"),
    Aggregate("sum", "score", "sum"),
)
SUMS_OF = (
    oracle.count(),
    oracle.count(0),
    oracle.total(1),
    oracle.mean(2),
    oracle.total(2),
)
CHOICES = (
    Aggregate("max", "score", "most"),
    Aggregate("min", "size", "least"),
    Aggregate("count", "size", "sizes"),
    Aggregate("sum", "score", "sum"),
)
CHOICES_OF = (oracle.most(2), oracle.least(1), oracle.count(1), oracle.total(2))


def aggregate(functions: Sequence[Aggregate], mode: Mode = "changes") -> LifetimeAggregate:
    return lifetime_aggregate(PORT.schema, functions, mode=mode)


def check(
    operator: LifetimeAggregate,
    batches: Sequence[scenarios.Batch],
    answer: Callable[[Bag], Bag],
    groups: Groups | None = None,
) -> None:
    """Compare after every chunk in which nothing counts below zero; nothing is taken out unsaid."""
    for step in scenarios.play(operator, batches, groups):
        if step.complete or min(step.inputs[0].values(), default=0) >= 0:
            step.check(answer(step.inputs[0]))
        assert not step.complete or min(step.output.values(), default=1) > 0


@given(DICE, KINDS)
@settings(max_examples=40)
def test_oracle_aggregates_that_can_be_taken_back(
    dice: Random, kind: scenarios.ScenarioKind
) -> None:
    batches = scenarios.scenario(dice, [PORT], kind)
    check(aggregate(SUMS), batches, lambda bag: oracle.aggregate(bag, *SUMS_OF))


def test_oracle_large_groups_are_swept_in_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(12):
        monkeypatch.setattr(pieces, "AT_ONCE", 1 + 7 * (seed % 2))
        kind = scenarios.ScenarioKind(revisions=20, groups=1 + seed % 2, pace=4 * (seed % 4))
        batches = scenarios.scenario(Random(seed), [PORT], kind)
        operator = aggregate(SUMS)
        groups = PlainGroups(operator.synopses, piece_rows=1 + seed % 3)
        check(operator, batches, lambda bag: oracle.aggregate(bag, *SUMS_OF), groups)


@given(DICE, KINDS)
@settings(max_examples=40)
def test_oracle_aggregates_that_keep_events(dice: Random, kind: scenarios.ScenarioKind) -> None:
    batches = scenarios.scenario(dice, [PORT], kind)
    check(aggregate(CHOICES), batches, lambda bag: oracle.aggregate(bag, *CHOICES_OF))


@given(DICE, KINDS)
@settings(max_examples=40)
def test_oracle_choices_of_events_that_stay(dice: Random, kind: scenarios.ScenarioKind) -> None:
    batches = scenarios.scenario(dice, [PORT], replace(kind, retractions=False, holes=False))
    check(of_growing(aggregate(CHOICES)), batches, lambda bag: oracle.aggregate(bag, *CHOICES_OF))


def test_oracle_choices_of_large_groups_are_revised_in_ranges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for seed in range(16):
        monkeypatch.setattr(pieces, "AT_ONCE", 1 + 7 * (seed % 2))
        kind = scenarios.ScenarioKind(revisions=20, groups=1 + seed % 2, pace=4 * (seed % 4))
        operator = aggregate(CHOICES)
        if seed % 4 < 2:
            kind = replace(kind, retractions=False, holes=False)
            operator = of_growing(operator)
        batches = scenarios.scenario(Random(seed), [PORT], kind)
        groups = PlainGroups(operator.synopses, piece_rows=1 + seed % 3)
        check(operator, batches, lambda bag: oracle.aggregate(bag, *CHOICES_OF), groups)


def test_bounded_choices_of_events_that_stay_are_one_row() -> None:
    operator = of_growing(lifetime_aggregate(NUMBERS, [Aggregate("max", "x", "answer")]))
    groups = PlainGroups(operator.synopses)
    for at in range(100):
        change = changes_from([(Event(G, at, INFINITY, (at * 37 % 100, 0.0)), 1)], NUMBERS)
        groups.begin(at)
        list(operator.on_changes(0, change, groups, at))
        slots = groups.locate(np.array([G[0]], np.uint64), np.array([G[1]], np.uint64))
        assert groups.read(0, slots).rows.num_rows <= 2


def test_bounded_events_of_one_lifetime_are_merged_before_anything_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    functions = [Aggregate("max", "x", "most"), Aggregate("count", None, "n")]
    operator = of_growing(lifetime_aggregate(NUMBERS, functions))
    groups, compared = PlainGroups(operator.synopses), list[int]()

    def identities(rows: pa.RecordBatch) -> Any:
        compared.append(rows.num_rows)
        return changes.identities(rows)

    monkeypatch.setattr(non_invertible_aggregate, "identities", identities)
    events = [(Event(G, 5, INFINITY, (number, 0.0)), 1 + number % 2) for number in range(100)]
    groups.begin(5)
    [answer] = operator.on_changes(0, changes_from(events, NUMBERS), groups, 5)
    assert answer.column("most").to_pylist() == [99]
    assert answer.column("n").to_pylist() == [150]
    assert max(compared) == 1


def test_bounded_choices_alone_store_their_answers() -> None:
    functions = [Aggregate("max", "x", "most"), Aggregate("min", "x", "least")]
    operator = of_growing(lifetime_aggregate(NUMBERS, functions))
    groups = PlainGroups(operator.synopses)
    dice = Random(4)
    for at in range(100):
        some = [
            (Event(G, at, at + 1000 + i, (dice.randrange(10**6), 0.0)), 1) for i in range(0, 50, 5)
        ]
        groups.begin(at)
        list(operator.on_changes(0, changes_from(some, NUMBERS), groups, at))
    slots = groups.locate(np.array([G[0]], np.uint64), np.array([G[1]], np.uint64))
    answers = groups.read(1, slots).rows.num_rows
    assert groups.read(0, slots).rows.num_rows <= 2 * answers + 10 < 200


def timed(batches: Sequence[scenarios.Batch]) -> list[scenarios.Batch]:
    """Show operators and oracle the beginning of each lifetime as a column of the payload."""
    return [
        replace(
            batch,
            chunks=[(0, part.append_column("at", part.column(LE))) for _, part in batch.chunks],
        )
        for batch in batches
    ]


def chosen(
    column: int, *, by: Callable[[Payload], Any], among: int | None = None
) -> Callable[[list[Payload]], Any]:
    """Make a function that takes a column of the row that comes first."""

    def function(rows: list[Payload]) -> Any:
        rows = [row for row in rows if among is None or row[among] is not None]
        if not rows:
            return None
        return min(rows, key=lambda row: (by(row), row[column] is None, row[column] or 0))[column]

    return function


def nan_last(value: float) -> tuple[bool, float]:
    return (True, 0.0) if math.isnan(value) else (False, value)


def backwards(value: float) -> tuple[bool, float]:
    return (False, 0.0) if math.isnan(value) else (True, -value)


@given(DICE, KINDS)
@settings(max_examples=40)
def test_oracle_choices_by_time_and_by_another_column(
    dice: Random, kind: scenarios.ScenarioKind
) -> None:
    functions = (
        Aggregate("first", "size", "first"),
        Aggregate("last", "size", "last"),
        Aggregate("first", "size", "first_there", parameters=(True,)),
        Aggregate("min_by", "size", "of_least", ("score",)),
        Aggregate("max_by", "size", "of_most", ("score",)),
    )
    operator = lifetime_aggregate(PORT.schema.append(pa.field("at", pa.int64())), functions)
    answers = (
        chosen(1, by=lambda row: row[3]),
        chosen(1, by=lambda row: -row[3]),
        chosen(1, by=lambda row: row[3], among=1),
        chosen(1, by=lambda row: (nan_last(row[2]), row[3]), among=2),
        chosen(1, by=lambda row: (backwards(row[2]), row[3]), among=2),
    )
    # a cut lifetime begins anew: not even the past would stay as it is
    batches = timed(scenarios.scenario(dice, [PORT], replace(kind, cuts=False, holes=False)))
    check(operator, batches, lambda bag: oracle.aggregate(bag, *answers))


class Watched(PlainGroups):
    """Counts the rows that are read."""

    def __init__(self, operator: LifetimeAggregate) -> None:
        super().__init__(operator.synopses)
        self.rows = 0

    def read(self, synopsis: int, slots: Slots) -> GroupRows:
        found = super().read(synopsis, slots)
        self.rows += found.rows.num_rows
        return found


def numbers(*events: tuple[int, int, int | None, float | None, int]) -> pa.RecordBatch:
    return changes_from(
        [(Event(G, le, re, (x, y)), diff) for le, re, x, y, diff in events], NUMBERS
    )


def _lifted(x: int) -> int:
    if x == 13:
        msg = "an unlucky number"
        raise ValueError(msg)
    return x


def test_events_on_which_a_users_function_fails_are_refused_where_answers_are_revised() -> None:
    total = UserAggregate(_lifted, lambda a, b: a + b, lambda state: state, pa.int64())
    functions = [Aggregate("user", "x", "total", parameters=(total,))]
    operator = lifetime_aggregate(NUMBERS, functions)
    groups = PlainGroups(operator.synopses)
    groups.begin(MINUS_INFINITY)
    changes = numbers((0, 4, 1, None, 1), (0, 4, 13, None, 1), (0, 4, 2, None, 1))
    refused, answer = operator.on_changes(0, changes, groups, MINUS_INFINITY)
    assert isinstance(refused, BadRows)
    assert refused.rows is not None
    assert refused.rows.column("x").to_pylist() == [13]
    assert answer.column("total").to_pylist() == [3]


def emitted(operator: LifetimeAggregate, *chunks: pa.RecordBatch) -> list[pa.RecordBatch]:
    groups = PlainGroups(operator.synopses)
    found = []
    for chunk in chunks:
        groups.begin(MINUS_INFINITY)
        found.append(list(operator.on_changes(0, chunk, groups, MINUS_INFINITY)))
    return [pa.concat_batches(each) for each in found if each]


def test_bounded_running_aggregates_read_few_edges() -> None:
    operator = lifetime_aggregate(NUMBERS, [Aggregate("sum", "x", "total")])
    groups = Watched(operator)
    for instant in range(200):
        groups.begin(instant)
        before = groups.rows
        list(operator.on_changes(0, numbers((instant, INFINITY, 1, None, 1)), groups, instant))
        assert groups.rows - before <= 3


@pytest.mark.parametrize("mode", ["changes", "final"])
@pytest.mark.parametrize("function", ["sum", "max"])
def test_bounded_groups_that_are_over_are_gone(function: str, mode: Mode) -> None:
    operator = lifetime_aggregate(NUMBERS, [Aggregate(function, "x", "answer")], mode=mode)
    groups = PlainGroups(operator.synopses)
    for number in range(20):
        events = [(Event((number, 0), 5 * number + i, 5 * number + 7, (i, 0.5)), 1) for i in (0, 3)]
        groups.begin(5 * number)
        list(operator.on_changes(0, changes_from(events, NUMBERS), groups, 5 * number))
        list(operator.on_watermark(groups, 5 * number + 5))
    groups.begin(200)
    list(operator.on_watermark(groups, 200))
    ids = np.arange(20, dtype=np.uint64)
    slots = groups.locate(ids, np.zeros(20, dtype=np.uint64))
    assert all(groups.read(n, slots).rows.num_rows == 0 for n in range(len(operator.synopses)))


def test_only_what_differs_is_reported() -> None:
    #       0    2    4    6    8
    # a     |=========|                     sum   1    6    5         the third event touches
    # b          |=========|                    |====|====|====|      one segment only
    # c          |====|                             13
    operator = lifetime_aggregate(NUMBERS, [Aggregate("sum", "x", "total")])
    first = numbers((0, 4, 1, None, 1), (2, 6, 5, None, 1))
    _, second = emitted(operator, first, numbers((2, 4, 7, None, 1)))
    assert heads(second) == [(2, 4, -1), (2, 4, 1)]
    assert second.column("total").to_pylist() == [6, 13]


def test_answers_that_stay_are_not_told() -> None:
    operator = lifetime_aggregate(NUMBERS, [Aggregate("avg", "x", "mean")])
    same = numbers((0, 4, 3, None, 1))
    assert len(emitted(operator, same, same)) == 1
    largest = lifetime_aggregate(NUMBERS, [Aggregate("max", "x", "most")])
    assert len(emitted(largest, same, numbers((1, 3, 2, None, 1)))) == 1


def test_infinities_and_nan_show_while_they_are_alive() -> None:
    #       0    1    2    3    4    5    6
    # 1.5   |=============================|
    # inf        |=========|
    # -inf            |=========|
    # nan                       |====|
    events = [
        (0, 6, 1.5),
        (1, 3, math.inf),
        (2, 4, -math.inf),
        (4, 5, math.nan),
    ]
    functions = [Aggregate("sum", "y", "sum"), Aggregate("var_pop", "y", "variance")]
    operator = lifetime_aggregate(NUMBERS, functions)
    (found,) = emitted(operator, numbers(*((le, re, None, y, 1) for le, re, y in events)))
    shown = dict(zip(found.column(LE).to_pylist(), found.column("sum").to_pylist(), strict=True))
    assert {at: str(total) for at, total in shown.items()} == {
        0: "1.5",
        1: "inf",
        2: "nan",
        3: "-inf",
        4: "nan",
        5: "1.5",
    }
    variances = found.column("variance").to_pylist()
    assert (variances[0], variances[-1]) == (0.0, 0.0)


def test_keys_are_shown_beside_the_aggregates() -> None:
    functions = [Aggregate("count", None, "n")]
    changes = numbers((0, 4, 3, None, 1), (0, 4, 3, 2.0, 1))
    (found,) = emitted(lifetime_aggregate(NUMBERS, functions, ["x"]), changes)
    assert found.select(["x", "n"]).to_pylist() == [{"x": 3, "n": 2}]


@pytest.mark.parametrize("transient", [False, True])
@pytest.mark.parametrize("mode", ["changes", "final"])
@pytest.mark.parametrize("function", ["count", "max", "collect_set"])
def test_keys_are_shown_without_the_sign_of_zero(
    function: str, mode: Mode, transient: bool
) -> None:
    pair = pa.struct([("f", pa.float32())])
    schema = pa.schema([("d", pa.float64()), ("p", pair), ("x", pa.int64())])
    operator = lifetime_aggregate(schema, [Aggregate(function, "x", "n")], ["d", "p"], mode=mode)
    changes = changes_from([(Event(G, 0, 9, (-0.0, {"f": -0.0}, 1)), 1)], schema)
    groups: Groups = PlainGroups(operator.synopses)
    if transient and isinstance(operator, PromptOperator):
        groups = TransientGroups(changes, operator.synopses)
    groups.begin(MINUS_INFINITY)
    shown = [
        *operator.on_last_changes(0, changes, groups, MINUS_INFINITY, INFINITY - 1),
        *operator.on_watermark(groups, 20),
    ]
    assert [str(row["d"]) + str(row["p"]["f"]) for row in shown[0].to_pylist()] == ["0.00.0"]


def test_a_column_called_time_is_no_trouble() -> None:
    schema = pa.schema([("time", pa.int64())])
    operator = lifetime_aggregate(schema, [Aggregate("first", "time", "first")])
    events = [(Event(G, 0, 9, (5,)), 1), (Event(G, 1, 9, (4,)), 1)]
    (found,) = emitted(operator, changes_from(events, schema))
    assert found.column("first").to_pylist() == [5]


@pytest.mark.parametrize("count", [2, 5, -3])
def test_a_change_of_many_is_as_many_changes(count: int) -> None:
    functions = [Aggregate("sum", "x", "total"), Aggregate("sum", "y", "sum")]
    operator = lifetime_aggregate(NUMBERS, functions)
    base = numbers((0, 9, 1, 0.1, 7))
    one = emitted(operator, base, numbers((2, 5, 2**60 // 9, 0.25, count)))
    sign = count // abs(count)
    many = emitted(operator, base, numbers(*[(2, 5, 2**60 // 9, 0.25, sign)] * abs(count)))
    assert oracle.bag_of(*one) == oracle.bag_of(*many)


def test_definitions_that_make_no_sense_are_refused() -> None:
    count = Aggregate("count", None, "n")
    with pytest.raises(DefinitionError, match="distinct names"):
        lifetime_aggregate(NUMBERS, [count, count])
    with pytest.raises(DefinitionError, match="choose 'changes' or 'final'"):
        lifetime_aggregate(NUMBERS, [count], mode="complete")  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["changes", "final"])
@pytest.mark.parametrize("also", ["count", "max"])
@pytest.mark.parametrize("seed", range(4))
def test_oracle_float_aggregates_are_those_of_fractions(seed: int, also: str, mode: Mode) -> None:
    # values of all magnitudes come and go, in chunks of any size, and some are retracted
    dice = np.random.default_rng(seed)
    magnitudes = dice.choice([-300, -20, 0, 0, 0, 18, 36, 300], 60).astype(float)
    values = np.round(dice.normal(size=60), 3) * 10.0**magnitudes
    values[dice.integers(0, 60, 3)] = [math.inf, -math.inf, math.nan]
    start = np.sort(dice.integers(0, 50, 60))
    end = start + dice.integers(1, 12, 60)
    functions = [
        Aggregate("sum", "y", "sum"),
        Aggregate("avg", "y", "avg"),
        Aggregate("var_samp", "y", "var"),
        Aggregate(also, "x", "also"),
    ]
    operator = lifetime_aggregate(NUMBERS, functions, mode=mode)
    groups = PlainGroups(operator.synopses)
    events = [
        (le, re, None, value, 1)
        for le, re, value in zip(start.tolist(), end.tolist(), values.tolist(), strict=True)
    ]
    retracted = [(le, re, x, value, -1) for le, re, x, value, _ in events[::7]]
    bounds = [0, *sorted(dice.integers(0, 60, 3).tolist()), 60]
    chunks = [numbers(*events[a:b]) for a, b in pairwise(bounds) if a < b]
    found: list[pa.RecordBatch] = []
    for chunk in [*chunks, numbers(*retracted)]:
        groups.begin(MINUS_INFINITY)
        found += operator.on_changes(0, chunk, groups, MINUS_INFINITY)
    found += operator.on_watermark(groups, 200)
    alive = [event for place, event in enumerate(events) if place % 7]
    totals: Counter[tuple[int, str]] = Counter()
    for batch in found:
        for row in batch.to_pylist():
            for at in range(max(0, row[LE]), min(80, row[RE])):
                totals[at, repr((row["sum"], row["avg"], row["var"]))] += row[DIFF]
    shown = {at: answer for (at, answer), count in totals.items() if count}
    expected = {}
    for at in range(80):
        there = [value for le, re, _, value, _ in alive if le <= at < re]
        if there:
            expected[at] = repr(_exact_answers(there))
    assert shown == expected


def _exact_answers(values: list[float]) -> tuple[float, float, float | None]:
    if not all(map(math.isfinite, values)):
        special = sum(value for value in values if not math.isfinite(value))
        return special, special, math.nan if len(values) > 1 else None
    exact = [Fraction(value) for value in values]
    n, total = len(exact), sum(exact, Fraction(0))
    squares = sum((x * x for x in exact), Fraction(0))
    variance = nearest_reference((squares - total * total / n) / (n - 1)) if n > 1 else None
    return nearest_reference(total), nearest_reference(total / n), variance


def test_words_of_float_sums_do_not_grow_old() -> None:
    operator = lifetime_aggregate(NUMBERS, [Aggregate("sum", "y", "sum")])
    dice = np.random.default_rng(5)
    values = (dice.normal(size=50) * 10.0 ** dice.integers(-6, 6, 50)).tolist()
    changes = [(le, le + 5, None, value, 1) for le, value in enumerate(values)]
    changes += [(100, 101, None, 0.1, 1)]
    (found,) = emitted(operator, numbers(*changes))
    rows = dict(zip(*(found.column(name).to_pylist() for name in (LE, "sum")), strict=True))
    assert rows[100] == 0.1
    for at in range(4, 50):
        assert rows[at] == math.fsum(values[at - 4 : at + 1])
