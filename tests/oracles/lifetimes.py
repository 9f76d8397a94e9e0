"""Queries over events with lifetimes, the slow and obvious way: snapshot by snapshot.

Idea: a stream is a `Bag`, a counter of events that may be negative in between. The meaning of a
    query
is its relational result at every time; `piecewise` computes that between any two times at which
something changes. `snapshots` ignores how lifetimes are cut, `bag_of` does not.

Invariants (`tests/oracles/test_temporal.py`):
1. `at(answer, t)` is the relational result over `at(input, t)`, for every time t.
2. `snapshots` of two bags are equal if and only if `at` is, at every time.

`tests.fixtures.lifetime_events` makes random changes and plays them to operators.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa

from icestream.core.times import INFINITY, Micros
from icestream.operators.lifetimes.changes import DIFF, HEAD, LE, RE, changes_schema

#: the id of a group: id_high, id_low
Group = tuple[int, int]
#: values of the payload's columns, in order; comparable as `plain` makes them
Payload = tuple[Any, ...]

#: one object, so that all NaN are one value for a counter
NAN = math.nan


class Event(NamedTuple):
    """A payload of a group, alive from `le` on and before `re`."""

    group: Group
    le: Micros
    re: Micros
    payload: Payload


Bag = Counter[Event]
#: the payloads alive at one time, and how often
Snapshot = Counter[tuple[Group, Payload]]


def plain(value: Any) -> Any:
    """Map values that are equal for a query to values equal for a counter."""
    if isinstance(value, float) and math.isnan(value):
        return NAN
    if isinstance(value, dict):
        return tuple((name, plain(inner)) for name, inner in value.items())
    if isinstance(value, list):
        return tuple(plain(inner) for inner in value)
    return value


def without_zeros(bag: Counter[Any]) -> Counter[Any]:
    """Remove entries with a count of 0."""
    return Counter({each: count for each, count in bag.items() if count})


def events_of(changes: pa.RecordBatch) -> list[tuple[Event, int]]:
    """Return changes as events with their diff, in order."""
    columns = [column.to_pylist() for column in changes.columns]
    found = []
    for le, re, diff, id_high, id_low, *values in zip(*columns, strict=True):
        found.append(
            (Event((id_high, id_low), le, re, tuple(plain(value) for value in values)), diff)
        )
    return found


def bag_of(*batches: pa.RecordBatch) -> Bag:
    """Return the bag that changes add up to."""
    bag: Bag = Counter()
    for changes in batches:
        for event, diff in events_of(changes):
            bag[event] += diff
    return without_zeros(bag)


def changes_from(events: Iterable[tuple[Event, int]], payload: pa.Schema) -> pa.RecordBatch:
    """Return changes to events of a payload, in order."""
    rows = [(e.le, e.re, diff, *e.group, *e.payload) for e, diff in events]
    schema = changes_schema(payload)
    arrays = [
        pa.array([row[place] for row in rows], type=field.type)
        for place, field in enumerate(schema)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def at(bag: Bag, instant: Micros) -> Snapshot:
    """Return what is alive at a time."""
    alive: Snapshot = Counter()
    for event, count in bag.items():
        if event.le <= instant < event.re:
            alive[event.group, event.payload] += count
    return without_zeros(alive)


def instants_of(*bags: Bag) -> list[Micros]:
    """Return all times at which a snapshot of these bags may differ from the one before."""
    return sorted({edge for bag in bags for event in bag for edge in (event.le, event.re)})


def snapshots(bag: Bag) -> dict[tuple[Group, Payload], list[tuple[Micros, Micros, int]]]:
    """Return (from, to, count) of every payload, over the longest stretches without a change."""
    steps: dict[tuple[Group, Payload], Counter[Micros]] = {}
    for event, count in bag.items():
        if event.le < event.re:
            edges = steps.setdefault((event.group, event.payload), Counter())
            edges[event.le] += count
            edges[event.re] -= count
    found = {}
    for key, edges in steps.items():
        level, stretches = 0, []
        for start, end in pairwise(sorted(without_zeros(edges))):
            level += edges[start]
            if level:
                stretches.append((start, end, level))
        if stretches:
            found[key] = stretches
    return found


def coalesced(bag: Bag) -> Bag:
    """Return the bag with the same snapshots whose events are as long as they can be."""
    return Counter(
        {
            Event(group, start, end, payload): count
            for (group, payload), stretches in snapshots(bag).items()
            for start, end, count in stretches
        }
    )


def piecewise(
    relational: Callable[..., Iterable[tuple[Payload, int]]], *inputs: Bag, groups: bool = True
) -> Bag:
    """Compute a query given as a function of snapshots.

    `relational` gets a counter of payloads alive for each input, in one group at one time, and
    returns payloads and how often each is in the result. It is called wherever any input has
    something alive in the group. With `groups` false all events belong to one group, (0, 0).
    """
    by_group: dict[Group, list[Bag]] = {}
    for place, bag in enumerate(inputs):
        for event, count in bag.items():
            group = event.group if groups else (0, 0)
            mine = by_group.setdefault(group, [Counter() for _ in inputs])
            mine[place][event] += count
    answer: Bag = Counter()
    for group, bags in by_group.items():
        for start, end in pairwise(instants_of(*bags)):
            alive = [_payloads(bag, start) for bag in bags]
            if any(alive):
                for payload, count in relational(*alive):
                    answer[Event(group, start, end, payload)] += count
    return coalesced(answer)


def _payloads(bag: Bag, instant: Micros) -> Counter[Payload]:
    found: Counter[Payload] = Counter()
    for (_, payload), count in at(bag, instant).items():
        found[payload] += count
    return without_zeros(found)


def join(
    left: Bag, right: Bag, keep: Callable[[Payload, Payload], bool] = lambda _left, _right: True
) -> Bag:
    """Return every pair of events of a group that overlap, with the exact cuts of lifetimes."""
    answer: Bag = Counter()
    for one, count in left.items():
        for two, times in right.items():
            le, re = max(one.le, two.le), min(one.re, two.re)
            if one.group == two.group and le < re and keep(one.payload, two.payload):
                answer[Event(one.group, le, re, one.payload + two.payload)] += count * times
    return without_zeros(answer)


def difference(left: Bag, right: Bag) -> Bag:
    """Return the left events at the times at which no right event of their group is alive."""

    def relational(mine: Counter[Payload], other: Counter[Payload]) -> list[tuple[Payload, int]]:
        return [] if sum(other.values()) > 0 else list(mine.items())

    return piecewise(relational, left, right)


def accompanied(left: Bag, right: Bag) -> Bag:
    """Return the left events at the times at which some right event of their group is alive."""

    def relational(mine: Counter[Payload], other: Counter[Payload]) -> list[tuple[Payload, int]]:
        return list(mine.items()) if sum(other.values()) > 0 else []

    return piecewise(relational, left, right)


def aggregate(bag: Bag, *functions: Callable[[list[Payload]], Any]) -> Bag:
    """Return one event with the values of functions of the payloads alive, where there are any.

    A payload that is alive twice is listed twice. `count`, `total`, `least`, `most` and `mean`
    make functions of a column.
    """

    def relational(alive: Counter[Payload]) -> list[tuple[Payload, int]]:
        rows = list(alive.elements())
        return [(tuple(plain(function(rows)) for function in functions), 1)] if rows else []

    return piecewise(relational, bag)


def top(
    bag: Bag,
    k: int,
    best_first: Callable[[Payload], Any],
    shown: Callable[[Payload, int], Payload] = lambda payload, _rank: payload,
) -> Bag:
    """Return the k events alive that sort first, each as `shown` with its rank from 1.

    `best_first` must distinguish any two different payloads.
    """

    def relational(alive: Counter[Payload]) -> list[tuple[Payload, int]]:
        rows = sorted(alive.elements(), key=best_first)[:k]
        return [(shown(row, rank), 1) for rank, row in enumerate(rows, start=1)]

    return piecewise(relational, bag)


def altered(
    bag: Bag, lifetime: Callable[[Micros, Micros], tuple[Micros, Micros]], *, clip: bool = True
) -> Bag:
    """Return events with other lifetimes, no later than INFINITY; `clip` drops empty ones."""
    answer: Bag = Counter()
    for event, count in bag.items():
        le, re = (min(edge, INFINITY) for edge in lifetime(event.le, event.re))
        if le < re or not clip:
            answer[event._replace(le=le, re=re)] += count
    return without_zeros(answer)


def values(column: int) -> Callable[[list[Payload]], list[Any]]:
    """Return a function that lists a column without its nulls."""
    return lambda rows: [row[column] for row in rows if row[column] is not None]


def count(column: int | None = None) -> Callable[[list[Payload]], int]:
    """Return a function that counts rows, or values of a column that are not null."""
    return len if column is None else lambda rows: len(values(column)(rows))


def total(column: int) -> Callable[[list[Payload]], Any]:
    """Return a function that adds the values of a column; null if there are none."""
    return _of_values(column, sum)


def least(column: int) -> Callable[[list[Payload]], Any]:
    """Return a function that finds the smallest value of a column, NaN last."""
    return _of_values(column, lambda found: min(found, key=_nan_last))


def most(column: int) -> Callable[[list[Payload]], Any]:
    """Return a function that finds the largest value of a column, NaN above all."""
    return _of_values(column, lambda found: max(found, key=_nan_last))


def mean(column: int) -> Callable[[list[Payload]], Any]:
    """Return a function that averages the values of a column; null if there are none."""
    return _of_values(column, lambda found: sum(found) / len(found))


def _of_values(column: int, reduce: Callable[[list[Any]], Any]) -> Callable[[list[Payload]], Any]:
    def function(rows: list[Payload]) -> Any:
        found = values(column)(rows)
        return reduce(found) if found else None

    return function


def _nan_last(value: Any) -> tuple[bool, Any]:
    return (True, 0.0) if value is NAN else (False, value)


def assert_same_bag(found: Bag, expected: Bag) -> None:
    """Fail, with the differences, unless two bags are equal, including cuts of lifetimes."""
    surplus = without_zeros(Counter({e: found[e] - expected[e] for e in {*found, *expected}}))
    assert not surplus, f"too many (or, below zero, missing): {dict(surplus)}"


def assert_same_snapshots(found: Bag, expected: Bag) -> None:
    """Fail, with the differences, unless two bags agree at every time."""
    mine, theirs = snapshots(found), snapshots(expected)
    wrong = {key: (mine.get(key), theirs.get(key)) for key in mine.keys() | theirs.keys()}
    wrong = {key: pair for key, pair in wrong.items() if pair[0] != pair[1]}
    assert not wrong, f"(found, expected) stretches: {wrong}"


def assert_past_is_kept(before: Bag, after: Bag, watermark: Micros) -> None:
    """Fail unless two bags agree at every time before the watermark."""

    def past(bag: Bag) -> Bag:
        return altered(bag, lambda le, re: (le, min(re, watermark)))

    assert_same_snapshots(past(after), past(before))


def from_instant(bag: Bag, instant: Micros) -> Bag:
    """Return what is alive at or after a time."""
    return altered(bag, lambda le, re: (max(le, instant), re))


def heads(changes: pa.RecordBatch) -> list[tuple[Micros, Micros, int]]:
    """Return (le, re, diff) of changes, in order: short to write in a test."""
    parts: Sequence[list[int]] = [changes.column(name).to_pylist() for name in (LE, RE, DIFF)]
    assert changes.schema.names[: len(HEAD)] == [field.name for field in HEAD]
    return list(zip(*parts, strict=True))
