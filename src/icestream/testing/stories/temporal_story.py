"""Random changes to events with lifetimes, and a stage on which operators meet them.

Idea: a story is a list of batches, each with the watermark before it and chunks of changes for the
ports of an operator. Changes leave the instants before the watermark alone, batch by batch; all
else goes: disorder, duplicates, skewed groups, nulls and NaN, retractions, end edges that shorten
or lengthen, events that come and go, chunks without rows. `play` feeds a story to an operator and
stops after every chunk, so that a test can compare.

All choices come from a `random.Random`: a seeded one, or hypothesis' `st.randoms()`, which shrinks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import pyarrow as pa

from icestream.core.times import INFINITY, MINUS_INFINITY, Micros
from icestream.operators.temporal.changes import TemporalOperator
from icestream.state.synopses.spec import Groups
from icestream.testing.oracles.plain_groups import PlainGroups
from icestream.testing.oracles.temporal import (
    Bag,
    Event,
    Group,
    Payload,
    assert_same_bag,
    assert_same_snapshots,
    bag_of,
    changes_from,
    from_instant,
    heads,
    plain,
    snapshots,
    without_zeros,
)

Change = tuple[Event, int]
#: groups that a story is about, the first more often than the second and so on
GROUPS: tuple[Group, ...] = ((2**64 - 1, 7), (0, 0), (5, 2**63), (5, 1), (9, 9))


@dataclass(frozen=True)
class Port:
    """What kind of events comes in on a port."""

    schema: pa.Schema
    payload: Callable[[Random], Payload]


def port(prefix: str = "") -> Port:
    """Make a port of few distinct payloads: a string, an integer and a float, each may be null."""
    schema = pa.schema(
        [
            (f"{prefix}name", pa.string()),
            (f"{prefix}size", pa.int64()),
            (f"{prefix}score", pa.float64()),
        ]
    )

    def payload(dice: Random) -> Payload:
        return (
            dice.choice(["a", "b", "", None]),
            dice.choice([0, 1, 2, -3, None]),
            plain(dice.choice([0.5, -2.0, 4.25, math.nan, None])),
        )

    return Port(schema, payload)


@dataclass(frozen=True)
class Batch:
    """Chunks of changes, each for a port, and the watermark before the first."""

    watermark: Micros
    chunks: Sequence[tuple[int, pa.RecordBatch]]


@dataclass(frozen=True)
class Kind:
    """What may happen in a story."""

    batches: int = 4
    #: revisions of the bag in a batch, of one or more changes each
    revisions: int = 8
    groups: int = 3
    #: instants that the watermark may move on by, from batch to batch
    pace: int = 12
    #: events may be taken out, shortened and lengthened again
    retractions: bool = True
    #: changes of a batch come in any order: an event may be taken out before it is there
    shuffled: bool = False
    #: lifetimes may be cut in two where nothing changes: compare snapshots, not bags
    cuts: bool = False
    #: events may be taken out for a part of their lifetime: counts of snapshots stay above zero,
    #: those of the bag do not
    holes: bool = False


def story(dice: Random, ports: Sequence[Port], kind: Kind | None = None) -> list[Batch]:
    """Make up batches of changes; after each of them no snapshot counts anything below zero."""
    kind = kind or Kind()
    bags: list[Bag] = [Counter() for _ in ports]
    watermark = MINUS_INFINITY
    batches = []
    for number in range(kind.batches):
        chunks: list[list[tuple[int, pa.RecordBatch]]] = []
        for place, each in enumerate(ports):
            changes: list[Change] = []
            for _ in range(dice.randint(0, kind.revisions)):
                revision = _revision(dice, each, bags[place], watermark, kind)
                revised = Counter(bags[place])
                for event, diff in revision:
                    revised[event] += diff
                if kind.holes and not _is_possible(revised):
                    continue
                bags[place] = without_zeros(revised)
                changes += revision
            if kind.shuffled:
                dice.shuffle(changes)
            chunks.append([(place, part) for part in _cut(dice, changes, each.schema)])
        batches.append(Batch(watermark, _interleaved(dice, chunks)))
        watermark = dice.randint(0, kind.pace) + (watermark if number else -kind.pace // 2)
    return batches


def _revision(dice: Random, port: Port, bag: Bag, watermark: Micros, kind: Kind) -> list[Change]:
    """Make up a few changes that leave the past alone."""
    known = [event for event in bag if bag[event] > 0]
    if kind.holes and known and dice.random() < 0.2:
        return _hole(dice, bag, watermark)
    first = max(watermark, -20)
    if not known or not kind.retractions or dice.random() < 0.5:
        if known and dice.random() < 0.25:
            event = dice.choice(known)
            if event.le >= watermark:
                return [(event, dice.randint(1, 2))]
        return [(_event(dice, port, first, kind), 1 if dice.random() < 0.9 else 3)]
    if dice.random() < 0.1:
        event = _event(dice, port, first - dice.choice([0, 9]), kind)
        return [(event, 1), (event, -1)]
    event = dice.choice(known)
    if event.le >= watermark and dice.random() < 0.4:
        return [(event, -dice.randint(1, bag[event]))]
    end = event.re
    if event.re >= watermark:
        end = max(first, event.le + 1) + dice.randint(0, 9)
        end = INFINITY if dice.random() < 0.1 else end
    if not kind.cuts or end - event.le < 2:
        return [] if end == event.re else [(event, -1), (event._replace(re=end), 1)]
    cut = event.le + dice.randint(1, min(end - event.le - 1, 20))
    return [(event, -1), (event._replace(re=cut), 1), (event._replace(le=cut, re=end), 1)]


def _is_possible(bag: Bag) -> bool:
    counts = (count for found in snapshots(bag).values() for _, _, count in found)
    return all(count > 0 for count in counts)


def _hole(dice: Random, bag: Bag, watermark: Micros) -> list[Change]:
    """Take a part of a lifetime out where it is alive."""
    stretches = [
        (group, payload, max(start, watermark), end)
        for (group, payload), found in snapshots(bag).items()
        for start, end, _ in found
        if end > watermark
    ]
    if not stretches:
        return []
    group, payload, start, end = dice.choice(stretches)
    le = start + dice.randint(0, min(end - start - 1, 9))
    re = dice.choice([end, le + 1])
    return [(Event(group, le, re, payload), -1)]


def _event(dice: Random, port: Port, first: Micros, kind: Kind) -> Event:
    group = GROUPS[min(dice.randrange(kind.groups), dice.randrange(kind.groups))]
    le = first + dice.randint(0, 15)
    lasts = dice.choice([1, 1, 2, dice.randint(1, 12), dice.randint(1, 30), INFINITY])
    return Event(group, le, min(le + lasts, INFINITY), port.payload(dice))


def _cut(dice: Random, changes: list[Change], schema: pa.Schema) -> list[pa.RecordBatch]:
    edges = sorted(dice.randint(0, len(changes)) for _ in range(dice.randint(0, 3)))
    starts, ends = [0, *edges], [*edges, len(changes)]
    return [changes_from(changes[a:b], schema) for a, b in zip(starts, ends, strict=True)]


def _interleaved(
    dice: Random, chunks: list[list[tuple[int, pa.RecordBatch]]]
) -> list[tuple[int, pa.RecordBatch]]:
    """Take chunks of all ports in any order, those of one port in theirs."""
    left = [part for part in chunks if part]
    found = []
    while left:
        part = dice.choice(left)
        found.append(part.pop(0))
        left = [part for part in left if part]
    return found


@dataclass(frozen=True)
class Step:
    """Where a play stands: after a chunk, or after the watermark that ends a batch."""

    #: what came in on each port so far
    inputs: Sequence[Bag]
    #: what came out so far
    output: Bag
    #: the watermark before the batch
    watermark: Micros
    #: whether the batch is over, so that the past has come right as well
    complete: bool

    def check(self, expected: Bag, *, exact: bool = False) -> None:
        """Compare the output with an answer over the inputs; `exact` looks at cuts as well."""
        if not self.complete:
            now = (from_instant(bag, self.watermark) for bag in (self.output, expected))
            assert_same_snapshots(*now)
        elif exact:
            assert_same_bag(self.output, expected)
        else:
            assert_same_snapshots(self.output, expected)


def play(
    operator: TemporalOperator, batches: Sequence[Batch], groups: Groups | None = None
) -> Iterator[Step]:
    """Feed a story to an operator; stop after every chunk and every batch."""
    groups = groups or PlainGroups(operator.synopses)
    ports = {place for batch in batches for place, _ in batch.chunks}
    inputs: list[Bag] = [Counter() for _ in range(max(ports, default=0) + 1)]
    output: Bag = Counter()
    after = [batch.watermark for batch in batches[1:]]
    for batch, following in zip(batches, [*after, INFINITY], strict=True):
        for place, changes in batch.chunks:
            inputs[place] = _sum(inputs[place], changes)
            groups.begin(batch.watermark)
            made = list(operator.on_changes(place, changes, groups, batch.watermark))
            assert all(le < re for part in made for le, re, _ in heads(part))
            output = _sum(output, *made)
            yield Step(tuple(inputs), output, batch.watermark, complete=False)
        groups.begin(batch.watermark)
        output = _sum(output, *operator.on_watermark(groups, following))
        yield Step(tuple(inputs), output, batch.watermark, complete=True)


def _sum(bag: Bag, *changes: pa.RecordBatch) -> Bag:
    added = Counter(bag)
    for event, diff in bag_of(*changes).items():
        added[event] += diff
    return without_zeros(added)


def rows_kept(groups: Groups, synopses: int, watermark: Micros) -> list[pa.RecordBatch]:
    """Read all that is kept for the groups of stories at a watermark, synopsis by synopsis."""
    groups.begin(watermark)
    hi, lo = (np.array([group[part] for group in GROUPS], dtype=np.uint64) for part in (0, 1))
    slots = groups.locate(hi, lo)
    return [groups.read(number, slots).rows for number in range(synopses)]
