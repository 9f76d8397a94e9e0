from __future__ import annotations

from random import Random

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.core.times import INFINITY
from icestream.operators.lifetimes.changes import changes_of
from icestream.operators.lifetimes.complete_mode import CompleteOutput
from tests.fixtures import lifetime_events as scenarios
from tests.oracles import lifetimes as oracle
from tests.oracles.lifetimes import Event, bag_of, changes_from, heads
from tests.oracles.plain_groups import PlainGroups

PORT = scenarios.port()
PLAIN = pa.schema([("x", pa.string())])
G = (7, 1)


def simple(*events: tuple[int, int, str, int]) -> pa.RecordBatch:
    return changes_from([(Event(G, le, re, (x,)), diff) for le, re, x, diff in events], PLAIN)


@given(st.randoms(use_true_random=False), st.booleans(), st.sampled_from([0, 4, 12]))
@settings(max_examples=60)
def test_oracle_every_version_reports_what_is_alive(dice: Random, holes: bool, pace: int) -> None:
    current = CompleteOutput(PORT.schema)
    groups = PlainGroups(current.synopses)
    batches = scenarios.scenario(dice, [PORT], scenarios.ScenarioKind(holes=holes, pace=pace))
    watermarks = [batch.watermark for batch in batches[1:]] + [batches[-1].watermark]
    came = []
    for version, (batch, reached) in enumerate(zip(batches, watermarks, strict=True), 1):
        for _, changes in batch.chunks:
            groups.begin(batch.watermark)
            assert list(current.on_changes(0, changes, groups, batch.watermark)) == []
            came.append(changes)
        groups.begin(batch.watermark)
        emitted = list(current.on_version(groups, reached, version))
        found = oracle.at(bag_of(*emitted), reached)
        assert found == oracle.at(bag_of(*came), reached)
        assert all(le <= reached < re for each in emitted for le, re, _ in heads(each))


def test_a_version_without_news_reports_the_same() -> None:
    current = CompleteOutput(PLAIN)
    groups = PlainGroups(current.synopses)
    groups.begin(0)
    list(current.on_changes(0, simple((2, INFINITY, "a", 1), (9, INFINITY, "b", 1)), groups, 0))
    for version in range(1, 4):
        (emitted,) = current.on_version(groups, 5, version)
        assert heads(emitted) == [(2, INFINITY, 1)]
    assert len(list(current.on_version(groups, INFINITY, 4))) == 1


def test_bounded_events_that_are_over_are_not_held() -> None:
    current = CompleteOutput(PLAIN)
    groups = PlainGroups(current.synopses)
    for instant in range(30):
        groups.begin(instant)
        event = simple((instant, instant + 3, "a", 1))
        list(current.on_changes(0, event, groups, instant))
        list(current.on_version(groups, instant + 1, instant + 1))
        slots = groups.locate(event.column("__hi").to_numpy(), event.column("__lo").to_numpy())
        assert groups.read(0, slots).rows.num_rows <= 6


def test_what_is_reported_has_the_schema_of_changes() -> None:
    current = CompleteOutput(PLAIN)
    groups = PlainGroups(current.synopses)
    groups.begin(0)
    event = simple((0, 4, "a", 2))
    list(current.on_changes(0, event, groups, 0))
    (emitted,) = current.on_version(groups, 1, 1)
    empty = event.slice(0, 0)
    assert (
        emitted.schema
        == changes_of(empty.select(["x"]), *(empty.column(n).to_numpy() for n in range(5))).schema
    )
