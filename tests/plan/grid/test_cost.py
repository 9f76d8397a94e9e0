from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.core.errors import DefinitionError
from icestream.core.units import parse_interval
from icestream.plan.grid.cost import (
    KeyCounts,
    WindowStatistics,
    estimate,
)
from icestream.plan.grid.space_formulas import (
    BLOCK_BYTES,
    space_of_panes,
    space_of_tuples,
    traffic,
    versions_kept,
)
from icestream.plan.windows.grid import Cumulative, Windows

DAY = parse_interval("24 hours")
SLIDE = parse_interval("10 seconds")
GIGABYTE = 2**30

#: the call centre as printed: 8 groupings with 1,000 groups per pane and 10,000 per day each
CALLS = WindowStatistics(
    rate=1000,
    tuple_bytes=94,
    keys=KeyCounts(((SLIDE, 8 * 1000), (DAY, 8 * 10_000))),
    entry_bytes=72,
    group_bytes=80,
)
KPIS = [Windows(DAY, SLIDE)]


def test_the_printed_example_comes_out_at_17_and_8_gigabytes() -> None:
    sizes = {
        aggregates: (
            space_of_panes(
                aggregates=aggregates,
                entries=1000,
                panes=8640,
                groups=10_000,
                open_bytes=16,
                entry_bytes=20,
                state_bytes=16,
            ),
            space_of_tuples(
                aggregates=aggregates,
                events=86_400_000,
                tuple_bytes=94,
                groups=10_000,
                state_bytes=16,
            ),
        )
        for aggregates in (104, 144)
    }
    assert sizes[104][0].total == 104 * (1000 * (16 + 86400 * 20 / 10) + 10_000 * 16)
    assert round(sizes[104][0].total / GIGABYTE) == 17
    # the second line is printed with 144 aggregates; with 104 it rounds to the same
    assert [round(tuples.total / GIGABYTE) for _, tuples in sizes.values()] == [8, 8]
    # the first line is not: 144 aggregates would be 23 GB
    assert round(sizes[144][0].total / GIGABYTE) == 23


def test_rows_that_share_their_fields_turn_the_printed_choice_around() -> None:
    found = estimate(KPIS, CALLS)
    assert found.panes.space.log == 8000 * 8640 * 72
    assert found.tuples.space.log == 86_400_000 * 94
    assert found.choose().plan == "panes"


def test_the_printed_traffic_comes_out() -> None:
    found = traffic(1000, 94)
    assert found.requests == pytest.approx(2.87, abs=0.01)
    assert found.bytes / 2**20 == pytest.approx(0.18, abs=0.005)
    at_most = traffic(300_000, 28)
    assert at_most.bytes / 1e6 == pytest.approx(16.8, abs=0.1)  # "only 16 MB/sec"


def test_tuples_must_save_half_of_the_log() -> None:
    # every event is in a group of its own: an entry is wider than a tuple
    sparse = replace(CALLS, keys=KeyCounts(((SLIDE, 10_000), (DAY, 86_400_000))))
    choice = estimate(KPIS, replace(sparse, tuple_bytes=36)).choose()
    assert choice.plan == "tuples"
    assert choice.reason == (
        "tuples because the windows take 12.2 GB as panes and 9.3 GB as tuples: "
        "a pane is 10,000 events of 36 bytes or 10,000 entries of 72 bytes"
    )
    choice = estimate(KPIS, replace(sparse, tuple_bytes=40)).choose()
    assert choice.plan == "panes"
    assert choice.reason == (
        "panes because the windows take 12.2 GB as panes and 9.7 GB as tuples: "
        "a pane is 10,000 events of 40 bytes or 10,000 entries of 72 bytes; "
        "tuples take more processor time and are for half of the log or less"
    )


def test_a_plan_can_be_forced_and_the_reason_says_what_it_costs() -> None:
    found = estimate(KPIS, CALLS)
    forced = found.choose("tuples")
    assert forced.plan == "tuples"
    assert forced.reason == (
        "tuples because the option plan requires it: 4.6 GB as panes and 7.6 GB as tuples"
    )
    assert found.choose("panes").plan == "panes"
    with pytest.raises(DefinitionError, match="'panes' or 'tuples'; got 'both'"):
        found.choose("both")


def test_the_table_shows_both_plans_and_the_choice() -> None:
    lines = estimate(KPIS, CALLS).table().splitlines()
    assert lines[0].split() == ["plan", "log", "memory", "requests/s", "bytes/s"]
    assert lines[1].startswith("panes   4.6 GB")
    assert lines[2].startswith("tuples  7.6 GB")
    assert lines[3] == (
        "chosen: panes because the windows take 4.6 GB as panes and 7.6 GB as tuples: "
        "a pane is 10,000 events of 94 bytes or 8,000 entries of 72 bytes"
    )
    assert len(lines) == 4


def test_windows_longer_than_what_was_seen_are_a_lower_bound() -> None:
    young = replace(CALLS, keys=KeyCounts(((SLIDE, 8000), (60 * SLIDE, 9000))))
    found = estimate(KPIS, young)
    assert found.lower_bound
    assert "windows take at least" in found.choose().reason
    assert "groups are those seen so far" in found.table()
    assert found.panes.space.memory < estimate(KPIS, CALLS).panes.space.memory
    assert not estimate(KPIS, CALLS).lower_bound


def test_ranges_inside_the_largest_add_rows_and_no_log() -> None:
    hour = parse_interval("1 hour")
    one, two = estimate(KPIS, CALLS), estimate([*KPIS, Windows(hour, SLIDE)], CALLS)
    for plan in ("panes", "tuples"):
        assert two[plan].space.log == one[plan].space.log
        more = two[plan].space.memory - one[plan].space.memory
        assert more == pytest.approx(CALLS.keys.rows(hour) * CALLS.group_bytes + BLOCK_BYTES)
    assert estimate([*KPIS, *KPIS], CALLS) == one


def test_a_shorter_common_pane_keeps_more_entries() -> None:
    second = parse_interval("1 second")
    keys = KeyCounts(((second, 1000), (SLIDE, 8000), (DAY, 80_000)))
    stats = replace(CALLS, keys=keys)
    apart, together = estimate(KPIS, stats), estimate([*KPIS, Windows(DAY, 3 * second)], stats)
    assert together.panes.space.log == 1000 * 86400 * 72
    assert together.panes.space.log > apart.panes.space.log
    assert together.tuples.space.log == apart.tuples.space.log


def test_fields_without_an_inverse_are_read_once_more() -> None:
    there, anew = (estimate(KPIS, replace(CALLS, invertible=each)) for each in (True, False))
    assert anew.panes.traffic.requests == pytest.approx(there.panes.traffic.requests * 4 / 3)
    few, many = (
        estimate(KPIS, replace(CALLS, invertible=False, shards=shards)) for shards in (1, 4)
    )
    # a write, and two reads by each shard
    more = many.tuples.traffic.bytes - few.tuples.traffic.bytes
    assert more == pytest.approx(traffic(1000, 94, 6).bytes)


def test_windows_that_tumble_are_read_once() -> None:
    hour = parse_interval("1 hour")
    found = estimate([Windows(hour, hour)], CALLS)
    assert found.panes.traffic == traffic(CALLS.keys.rows(hour) / 3600, 72, 2)
    assert estimate([Cumulative(hour, hour)], CALLS).panes.traffic == found.panes.traffic


def test_folding_again_must_save_more_than_it_reads() -> None:
    short = replace(CALLS, tuple_bytes=10)
    assert estimate(KPIS, short).choose().plan == "tuples"
    again = replace(short, invertible=False)
    assert estimate(KPIS, again).choose().plan == "tuples"
    choice = estimate(KPIS, replace(again, shards=200)).choose()
    assert choice.plan == "panes"
    assert "an aggregate cannot be subtracted, so tuples are read again" in choice.reason


def test_what_rebuilding_needs_stays_on_the_log() -> None:
    # 10,000 events a pane and version: 8,000 entries of 72 bytes, in and out, and 94 bytes each
    plain, kept = (estimate(KPIS, replace(CALLS, version=each)) for each in (0, SLIDE))
    snapshot, entries = 80_000 * 80, 8_000 * 72
    more = kept.panes.space.log - plain.panes.space.log
    assert more == snapshot + versions_kept(snapshot, entries) * entries
    more = kept.tuples.space.log - plain.tuples.space.log
    assert more == snapshot + versions_kept(snapshot, 2 * entries) * (2 * entries + 940_000)


def test_versions_are_kept_until_a_snapshot_is_worth_it() -> None:
    assert versions_kept(0, 100) == 8
    assert versions_kept(6_400, 100) == 32
    assert versions_kept(1e9, 100) == 64
    assert versions_kept(5, 0) == 0


def test_cumulative_windows_are_estimated_by_their_size() -> None:
    grown, slid = estimate([Cumulative(DAY, SLIDE)], CALLS), estimate(KPIS, CALLS)
    assert grown.panes.space == slid.panes.space
    assert grown.tuples.space == slid.tuples.space


def test_nothing_to_estimate_is_refused() -> None:
    with pytest.raises(DefinitionError, match="no window to estimate"):
        estimate([], CALLS)


@pytest.mark.parametrize("points", [(), ((0, 1.0),), ((2, 1.0), (1, 1.0)), ((1, 1.0), (1, 2.0))])
def test_key_counts_out_of_order_are_refused(points: tuple[tuple[int, float], ...]) -> None:
    with pytest.raises(DefinitionError, match="ascending lengths above zero"):
        KeyCounts(points)


def test_key_counts_follow_the_power_law_between_measurements() -> None:
    counts = KeyCounts(((1, 10), (100, 1000), (400, 1000)))
    assert counts.rows(10) == pytest.approx(100)
    assert counts.rows(100) == 1000
    assert counts.rows(200) == pytest.approx(1000)
    assert counts.rows(10_000) == 1000
    assert counts.beyond(401)
    assert not counts.beyond(400)
    assert KeyCounts(((10, 5.0), (20, 8.0))).rows(1) == 5
    assert KeyCounts(((10, 0.0), (20, 8.0))).rows(15) == 4


@given(
    groups=st.integers(1, 5_000),
    events=st.integers(10, 2_000),
    factor=st.integers(2, 50),
    seed=st.integers(0, 100),
)
def test_oracle_groups_of_a_longer_stretch(
    groups: int, events: int, factor: int, seed: int
) -> None:
    drawn = np.random.default_rng(seed).integers(0, groups, events * factor)
    seen = len(np.unique(drawn[:events]))
    found = KeyCounts(((1, 1.0), (10, seen))).extended(10 * factor, events).rows(10 * factor)
    assert seen <= found <= events * factor
    if events >= 2 * groups:
        assert found == pytest.approx(len(np.unique(drawn)), rel=0.3)


def test_groups_of_a_longer_stretch_follow_those_seen() -> None:
    seen = KeyCounts(((1, 10.0), (10, 632.0)))
    assert seen.extended(100, 1_000).rows(100) == pytest.approx(1_000, rel=0.01)
    assert seen.extended(10, 1_000) is seen
    own = KeyCounts(((1, 100.0), (10, 1_000.0))).extended(100, 1_000)
    assert own.rows(100) == pytest.approx(10_000, rel=0.01)
    assert not own.beyond(100)


@given(
    st.integers(1, 50),
    st.integers(1, 50),
    st.floats(1, 1e6),
    st.floats(1, 1e5),
    st.floats(0, 1e5),
    st.sampled_from(["range", "rate", "entries", "groups", "tuple_bytes", "entry_bytes"]),
)
def test_more_of_anything_never_costs_less(
    panes: int, growth: int, rate: float, entries: float, more: float, what: str
) -> None:
    def totals(factor: int) -> list[float]:
        grow = {what: factor}
        stats = WindowStatistics(
            rate=rate * grow.get("rate", 1),
            tuple_bytes=40 * grow.get("tuple_bytes", 1),
            keys=KeyCounts(
                (
                    (SLIDE, entries * grow.get("entries", 1)),
                    (50 * SLIDE, (entries + more) * grow.get("entries", 1) * grow.get("groups", 1)),
                )
            ),
            entry_bytes=32 * grow.get("entry_bytes", 1),
            group_bytes=40,
        )
        found = estimate([Windows(SLIDE * panes * grow.get("range", 1), SLIDE)], stats)
        return [found.panes.space.total, found.tuples.space.total]

    for less, grown in zip(totals(1), totals(growth), strict=True):
        assert grown >= less * (1 - 1e-9)
