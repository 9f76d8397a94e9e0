from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from icestream.plan.nodes.spilling import Spilling
from icestream.runtime.version.quotas import ShardMemory
from icestream.runtime.version.task import ShardReport
from icestream.runtime.work.dataflow.spilling import (
    INDEX_SHARE,
    TURN_PARTITIONS,
    JoinDecisions,
    by_join,
    decided,
    facts_of,
    joins_report,
)

PARTITIONS = 256
DEPTHS = {0: 0, 1: 1}
COUNTED = (
    *("rows", "spilled_bytes", "logged_bytes", "early", "late", "index_bytes"),
    *("forced_spills", "forced_bytes", "unranked_bytes"),
)
TOLD = dict.fromkeys(COUNTED, 1)


def by_partition(values: dict[int, float]) -> Any:
    column = np.zeros(PARTITIONS)
    for partition, value in values.items():
        column[partition] = value
    return column


def report(
    shard: int,
    join: int,
    sizes: dict[int, int],
    *,
    held: int = 100,
    room: int = 100,
    ended: tuple[int, ...] = (),
    owing: tuple[int, ...] = (),
    results: dict[int, dict[int, float]] | None = None,
    kept: dict[int, dict[int, float]] | None = None,
    rows: int = 1,
) -> ShardReport:
    reported = {
        "number": join,
        "rows": np.array([30, 20]),
        "keys": np.array([3, 4]),
        "sizes": by_partition(dict(sizes)).astype(np.int64),
        "outputs": by_partition(dict.fromkeys(sizes, 5)).astype(np.int64),
        "generations": np.zeros(PARTITIONS, dtype=np.int64),
        "owing": by_partition(dict.fromkeys(owing, 1)) > 0,
        "ended": by_partition(dict.fromkeys(ended, 1)) > 0,
        "held": held,
        "room": room,
        "watermark": 0,
        "facts": {**TOLD, "rows": rows},
    }
    statistics = {
        "join": reported,
        "results": {j: by_partition(each) for j, each in (results or {}).items()},
        "kept": {j: by_partition(each) for j, each in (kept or {}).items()},
        "memory_bytes": held,
    }
    return ShardReport(shard, "", [], [], False, False, statistics=statistics)


def test_partitions_are_chosen_when_the_threshold_is_passed() -> None:
    def after(held: int) -> JoinDecisions:
        reports = [report(0, 0, {1: 30, 2: 30}, held=held), report(1, 0, {9: 40}, held=held)]
        return decided(Spilling(strategy="largest"), DEPTHS, reports, JoinDecisions(), 7)

    assert after(80).spill == {}
    assert after(81).spill == {0: (9,)}
    assert (after(80).spills, after(81).spills) == (0, 1)


def test_at_least_what_is_above_the_threshold_leaves() -> None:
    sizes = dict.fromkeys(range(10), 10)
    how = Spilling(strategy="largest", threshold=0.2, amount=0.3)

    def leaving(room: int) -> int:
        news = decided(how, DEPTHS, [report(0, 0, sizes, held=100, room=room)], JoinDecisions(), 1)
        return len(news.spill.get(0, ()))

    # of 100 bytes 30 are the amount; where only 45 may stay, 55 are too many
    assert [leaving(room) for room in (500, 400, 225)] == [0, 3, 6]


def test_all_joins_of_the_plan_compete_by_what_they_contribute_to_its_results() -> None:
    reports = [
        report(0, 0, {1: 10, 2: 10}, results={}),
        report(1, 1, {3: 10}, results={0: {1: 50.0, 2: 1.0}, 1: {3: 51.0}}),
    ]
    how = Spilling(strategy="global_output", threshold=0.5)
    assert decided(how, DEPTHS, reports, JoinDecisions(), 1).spill == {0: (2,), 1: ()}


def test_the_penalty_counts_what_other_joins_keep() -> None:
    results = {0: {1: 10.0, 2: 9.0}}
    reports = [report(0, 0, {1: 10, 2: 10}, results=results, kept={0: {1: 90.0}})]
    penalties = ("global_output_with_penalty", "global_output_ahead")
    for strategy, leaves in (("global_output", 2), *((each, 1) for each in penalties)):
        how = Spilling(strategy=strategy, threshold=0.5, amount=0.1)
        assert decided(how, DEPTHS, reports, JoinDecisions(), 1).spill == {0: (leaves,)}


def test_counts_begin_anew_when_a_partition_is_spilled() -> None:
    how = Spilling(threshold=1.0)
    sizes = {1: 5, 2: 5}
    reports = [report(0, 0, sizes, results={0: {1: 4, 2: 6}})]
    first = decided(how, DEPTHS, reports, JoinDecisions(), 1)
    reports = [report(0, 0, sizes, ended=(1,), results={0: {1: 2, 2: 3}})]
    second = decided(how, DEPTHS, reports, first, 2)
    assert (second.results[0][1], second.results[0][2]) == (2.0, 9.0)


def test_results_count_since_the_last_spill() -> None:
    reports = [report(0, 0, {1: 60, 2: 40}, results={0: {1: 4, 2: 6}})]
    news = decided(Spilling(threshold=0.5), DEPTHS, reports, JoinDecisions(), 1)
    assert news.spill == {0: (1,)}
    idle = [report(0, 0, {1: 60, 2: 40}, rows=0)]
    news = decided(Spilling(threshold=1.0), DEPTHS, idle, news, 2)
    # until events arrive, what is known is what was before the spill
    assert (news.results[0][1], news.results[0][2]) == (4.0, 6.0)
    for times in (1, 2):
        news = decided(Spilling(threshold=1.0), DEPTHS, reports, news, 3)
        assert (news.results[0][1], news.results[0][2]) == (4.0 * times, 6.0 * times)


def test_a_large_index_hurries_the_turns() -> None:
    small, large = (report(0, 0, {1: 5}, room=room) for room in (INDEX_SHARE, INDEX_SHARE - 1))
    assert not decided(Spilling(), DEPTHS, [small], JoinDecisions(), 1).hurried
    assert decided(Spilling(), DEPTHS, [large], JoinDecisions(), 1).hurried


def test_what_was_decided_comes_back_from_a_commit() -> None:
    reports = [report(3, 1, {1: 30}, owing=(4, 5), results={1: {1: 2.5}}, kept={1: {1: 7.0}})]
    news = decided(Spilling(), DEPTHS, reports, JoinDecisions(), 1, over=True)
    again = JoinDecisions.from_json(news.to_json())
    assert again.to_json() == news.to_json()
    assert again.owing == {1: (4, 5)}
    assert again.holdings == {3: ShardMemory(100, 101)}
    assert again.over


def test_growth_counts_what_left_memory_meanwhile() -> None:
    first = decided(Spilling(), DEPTHS, [report(0, 0, {1: 5}, held=60)], JoinDecisions(), 1)
    second = decided(Spilling(), DEPTHS, [report(0, 0, {1: 5}, held=90)], first, 2)
    third = decided(Spilling(), DEPTHS, [report(0, 0, {1: 5}, held=20)], second, 3)
    assert [each.holdings[0].growth for each in (first, second, third)] == [61, 31, 0]


def test_partitions_of_all_joins_are_cleaned_up_in_turn() -> None:
    owing = {1: tuple(range(TURN_PARTITIONS)), 0: (3, 5)}
    decisions = JoinDecisions(owing=owing)
    seen = []
    for _ in range(4):
        turn = decisions.turn()
        seen += turn
        decisions = replace(decisions, turn_ended=decisions.turn_ended_after(by_join(turn)))
        assert JoinDecisions.from_json(decisions.to_json()).turn_ended == turn[-1]
    every = [(0, 3), (0, 5), *((1, each) for each in owing[1])]
    assert seen == (every * 4)[: 4 * TURN_PARTITIONS]
    assert by_join(seen[:3]) == {0: (3, 5), 1: (0,)}
    assert JoinDecisions(owing={0: ()}).turn() == []
    assert decisions.turn_ended_after(None) == decisions.turn_ended_after({}) == seen[-1]


def test_progress_reports_bytes_logged_and_bytes_spilled_apart() -> None:
    reports = [report(0, 0, {1: 30}), report(1, 0, {2: 12}, owing=(2,))]
    assert int(facts_of(reports)[0].sizes.sum()) == 42
    reported = joins_report(reports, JoinDecisions(spills=3))
    assert (reported["bytesLogged"], reported["bytesSpilled"], reported["spills"]) == (0, 2, 3)
    (join,) = reported["joins"]
    assert (join["residentBytes"], join["owingPartitions"], join["lateRows"]) == (42, 1, 2)
    assert join["streams"] == [{"rows": 60, "keys": 6}, {"rows": 40, "keys": 8}]
