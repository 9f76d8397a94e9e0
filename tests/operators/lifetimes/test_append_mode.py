from __future__ import annotations

from collections import Counter
from random import Random

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.core.times import INFINITY, MINUS_INFINITY
from icestream.operators.lifetimes.output_modes import AppendOutput
from tests.fixtures import lifetime_events as scenarios
from tests.fixtures.lifetime_kinds import KINDS
from tests.oracles import lifetimes as oracle
from tests.oracles.lifetimes import Bag, Event, changes_from, heads
from tests.oracles.plain_groups import PlainGroups

PORT = scenarios.port()
G = (7, 1)
PLAIN = pa.schema([("x", pa.string())])


def simple(*events: tuple[int, int, str, int]) -> pa.RecordBatch:
    return changes_from([(Event(G, le, re, (x,)), diff) for le, re, x, diff in events], PLAIN)


def before(events: Bag, instant: int) -> Bag:
    return oracle.altered(events, lambda le, re: (le, min(re, instant)))


def counts_no_less(more: Bag, less: Bag) -> bool:
    left = Counter(more)
    left.subtract(less)
    return all(count > 0 for count in oracle.coalesced(left).values())


@given(st.randoms(use_true_random=False), KINDS)
@settings(max_examples=60)
def test_oracle_settled_events_are_those_that_ended(
    dice: Random, kind: scenarios.ScenarioKind
) -> None:
    batches = scenarios.scenario(dice, [PORT], kind)
    watermarks = [batch.watermark for batch in batches[1:]] + [INFINITY]
    said: Bag = Counter()
    for step in scenarios.play(AppendOutput(PORT.schema), batches):
        if not step.complete:
            assert step.output == said
            continue
        watermark = watermarks.pop(0)
        assert all(step.output[event] >= count > 0 for event, count in said.items())
        said = Counter(step.output)
        events = step.inputs[0]
        # changes may cancel out without naming the same lifetimes: then only snapshots count, and
        # an event that ended may have been emitted, and then have gone on from the watermark
        if all(count > 0 for count in events.values()):
            ended = Counter({e: n for e, n in events.items() if e.re <= watermark})
            assert counts_no_less(said, ended)
        assert counts_no_less(before(events, watermark), said)
    oracle.assert_same_snapshots(said, step.inputs[0])


def test_lifetimes_come_out_as_they_came_in() -> None:
    # two of a kind that overlap, one taken out and shortened first:
    #   |==============|        |=========|
    #        |==============|        |==============|
    settle = AppendOutput(PLAIN)
    groups = PlainGroups(settle.synopses)
    groups.begin(MINUS_INFINITY)
    came = simple((0, 6, "a", 1), (2, 8, "a", 1), (2, 8, "a", -1), (2, 5, "a", 1))
    assert list(settle.on_changes(0, came, groups, MINUS_INFINITY)) == []
    assert list(settle.on_watermark(groups, 4)) == []
    (first,) = settle.on_watermark(groups, 5)
    assert heads(first) == [(2, 5, 1)]
    (second,) = settle.on_watermark(groups, 6)
    assert heads(second) == [(0, 6, 1)]


def test_an_event_shortened_to_the_watermark_is_reported() -> None:
    settle = AppendOutput(PLAIN)
    groups = PlainGroups(settle.synopses)
    groups.begin(0)
    list(settle.on_changes(0, simple((0, INFINITY, "a", 1)), groups, 0))
    assert list(settle.on_watermark(groups, 9)) == []
    groups.begin(9)
    list(settle.on_changes(0, simple((0, INFINITY, "a", -1), (0, 9, "a", 1)), groups, 9))
    (emitted,) = settle.on_watermark(groups, 9)
    assert heads(emitted) == [(0, 9, 1)]


def test_bounded_settled_events_leave_the_state() -> None:
    settle = AppendOutput(PLAIN)
    groups = PlainGroups(settle.synopses)
    for instant in range(30):
        groups.begin(instant)
        list(settle.on_changes(0, simple((instant, instant + 3, "a", 1)), groups, instant))
        list(settle.on_watermark(groups, instant + 1))
        slots = groups.locate(*oracle_ids())
        assert groups.read(0, slots).rows.num_rows <= 3


def oracle_ids() -> tuple[pa.Array, pa.Array]:
    changes = simple((0, 1, "a", 1))
    return changes.column("__hi").to_numpy(), changes.column("__lo").to_numpy()
