"""Decides between two versions which partitions of which joins are spilled in the next version.

Idea: shards report what they hold and from which partitions the output rows came; all reports of a
version together are the plan's statistics. If joins fill more than the threshold of their common
memory, the strategy chooses partitions of all of them at once. The commit records the decision and
its inputs, so that a version that is made again decides the same.

Invariants:
1. The results of partitions are those since the last spill, of their resident generation
   (`test_counts_begin_anew_when_a_partition_is_spilled`,
   `test_results_count_since_the_last_spill`).
2. Partitions that owe results are cleaned up in turn, those of all joins
   (`test_partitions_of_all_joins_are_cleaned_up_in_turn`).
3. Below the threshold nothing is chosen; above it, at least the amount, and at least the excess
   (`test_partitions_are_chosen_when_the_threshold_is_passed`,
   `test_at_least_what_is_above_the_threshold_leaves`).

Cost: two numbers for each partition of each join in every commit.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from icestream.core.arrays import Floats, Ints
from icestream.operators.multi_join.spill_strategies import PartitionStatistics, chosen
from icestream.plan.nodes.spilling import Spilling
from icestream.runtime.version.quotas import ShardMemory
from icestream.runtime.version.task import ShardReport

#: a join and one of its partitions
Partition = tuple[int, int]

#: partitions that a version cleans up in turn, and turns after which all were cleaned up
TURN_PARTITIONS = 32
TURNS = 16
#: part of a join's memory that the index of its rows on the log may take before turns are hurried
INDEX_SHARE = 4


@dataclass(frozen=True)
class JoinStatistics:
    """What all shards together report of a join, by partition."""

    sizes: Ints
    outputs: Ints
    generations: Ints
    owing: npt.NDArray[np.bool_]
    #: whether a resident generation ended in this version
    ended: npt.NDArray[np.bool_]
    #: resident rows of each of its streams, and the number of their keys
    rows: Ints
    keys: Ints
    #: bytes of memory that its shards hold, and their limit
    held: int
    room: int
    #: description, for reports
    counts: Mapping[str, Any]


@dataclass(frozen=True)
class JoinDecisions:
    """The instructions for the joins of a plan, and the statistics behind them."""

    #: partitions to spill, by join
    spill: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    #: partitions with deferred results, by join
    owing: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    #: results attributed to the resident generation of each partition, and bytes kept because of it
    results: Mapping[int, Floats] = field(default_factory=dict)
    kept: Mapping[int, Floats] = field(default_factory=dict)
    #: memory of each shard of each join, numbered across joins, and its growth
    holdings: Mapping[int, ShardMemory] = field(default_factory=dict)
    #: number of times that partitions were chosen
    spills: int = 0
    #: whether the stream has ended and all state was discarded
    over: bool = False
    #: the last partition that was cleaned up in turn
    turn_ended: Partition = (-1, -1)
    #: whether an index of rows on the log is so large that every version cleans up
    hurried: bool = False
    #: whether partitions were spilled since the results were counted, which begin anew with events
    stale: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "spill": {str(join): list(each) for join, each in self.spill.items()},
            "owing": {str(join): list(each) for join, each in self.owing.items()},
            "results": {str(join): _packed(each) for join, each in self.results.items()},
            "kept": {str(join): _packed(each) for join, each in self.kept.items()},
            "holdings": {str(s): [h.held, h.growth] for s, h in self.holdings.items()},
            "spills": self.spills,
            "over": self.over,
            "turnEnded": list(self.turn_ended),
            "hurried": self.hurried,
            "stale": self.stale,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> JoinDecisions:
        """Return what `to_json` wrote."""
        turn_ended = value.get("turnEnded", (-1, -1))
        return cls(
            {int(join): tuple(each) for join, each in value["spill"].items()},
            {int(join): tuple(each) for join, each in value["owing"].items()},
            {int(join): _unpacked(each) for join, each in value["results"].items()},
            {int(join): _unpacked(each) for join, each in value["kept"].items()},
            {int(shard): ShardMemory(*each) for shard, each in value["holdings"].items()},
            value["spills"],
            value["over"],
            (turn_ended[0], turn_ended[1]),
            value.get("hurried", False),
            value.get("stale", False),
        )

    def turn(self) -> list[Partition]:
        """Return the partitions to clean up next: a few, after those of the last turn."""
        owing = [(join, each) for join in sorted(self.owing) for each in self.owing[join]]
        later = [each for each in owing if each > self.turn_ended]
        count = max(TURN_PARTITIONS, -(-len(owing) // TURNS))
        return [*later, *(each for each in owing if each <= self.turn_ended)][:count]

    def turn_ended_after(self, clean_up: Mapping[int, tuple[int, ...]] | None) -> Partition:
        """Return where the last turn ended, once some partitions, None for all, are cleaned up."""
        return self.turn()[-1] if clean_up else self.turn_ended


def by_join(partitions: Sequence[Partition]) -> dict[int, tuple[int, ...]]:
    """Return the partitions of each join that may be spilled."""
    joins = sorted({join for join, _ in partitions})
    return {join: tuple(p for other, p in partitions if other == join) for join in joins}


def facts_of(reports: Sequence[ShardReport]) -> dict[int, JoinStatistics]:
    """Add up, to decide on spilling, the reports of the shards for each join of a dataflow."""
    by_join: dict[int, list[Mapping[str, Any]]] = {}
    for report in reports:
        counts = report.statistics.get("join")
        if counts is not None:
            by_join.setdefault(counts["number"], []).append(counts)
    return {join: _together(parts) for join, parts in sorted(by_join.items())}


def decided(
    spilling: Spilling,
    depths: Mapping[int, int],
    reports: Sequence[ShardReport],
    before: JoinDecisions,
    seed: int,
    *,
    over: bool = False,
) -> JoinDecisions:
    """Return the instructions for spilling to the joins of a dataflow in the next version."""
    facts = facts_of(reports)
    lowest = min((depths[join] for join in facts), default=0)
    arrived = any(each.counts["rows"] for join, each in facts.items() if depths[join] == lowest)
    # all partitions are compared over the same time, those that begin anew among them
    known = {} if before.stale and arrived else before.results
    results = _counted("results", known, reports, facts)
    kept = _counted("kept", before.kept, reports, facts)
    spill: dict[int, tuple[int, ...]] = {}
    held = sum(each.held for each in facts.values())
    most = spilling.threshold * sum(each.room for each in facts.values())
    if held > most:
        resident = sum(int(each.sizes.sum()) for each in facts.values())
        local = spilling.strategy == "local_output"
        outputs = {join: each.outputs for join, each in facts.items()} if local else results
        statistics = _statistics(facts, outputs, kept)
        amount = int(np.ceil(max(resident - most, spilling.amount * resident)))
        leaving = chosen(statistics, amount, spilling.strategy, depths, seed)
        for join in facts:
            mine = statistics.partition[leaving & (statistics.join == join)]
            spill[join] = tuple(np.sort(mine).tolist())
    owing = {join: tuple(np.flatnonzero(each.owing).tolist()) for join, each in facts.items()}
    return JoinDecisions(
        spill,
        owing,
        results,
        kept,
        _holdings(before.holdings, reports),
        before.spills + any(spill.values()),
        over or before.over,
        hurried=any(
            INDEX_SHARE * each.counts["index_bytes"] > each.room for each in facts.values()
        ),
        stale=any(spill.values()) or (before.stale and not arrived),
    )


def _holdings(
    before: Mapping[int, ShardMemory], reports: Sequence[ShardReport]
) -> dict[int, ShardMemory]:
    """Return the memory of each shard of a join, and its growth."""
    holdings = {}
    for report in reports:
        join = report.statistics.get("join")
        if join is not None:
            held = report.statistics["memory_bytes"]
            old = before[report.shard].held if report.shard in before else 0
            grown = held - old + join["facts"]["spilled_bytes"]
            holdings[report.shard] = ShardMemory(held, max(0, grown))
    return holdings


def joins_report(reports: Sequence[ShardReport], news: JoinDecisions) -> dict[str, Any]:
    """Return the part of the progress report about the spilling of joins."""
    facts = facts_of(reports)
    return {
        "bytesLogged": sum(info.bytes for report in reports for _, info in report.segments),
        "bytesSpilled": sum(each.counts["spilled_bytes"] for each in facts.values()),
        "spills": news.spills,
        "joins": [
            {
                "join": join,
                "residentBytes": int(each.sizes.sum()),
                "bytesSpilled": each.counts["spilled_bytes"],
                "bytesLogged": each.counts["logged_bytes"],
                "generations": int(each.generations.sum()),
                "owingPartitions": int(each.owing.sum()),
                "earlyRows": each.counts["early"],
                "lateRows": each.counts["late"],
                "forcedSpills": each.counts["forced_spills"],
                "bytesForced": each.counts["forced_bytes"],
                "bytesUnranked": each.counts["unranked_bytes"],
                "indexBytes": each.counts["index_bytes"],
                "streams": [
                    {"rows": rows, "keys": keys}
                    for rows, keys in zip(each.rows.tolist(), each.keys.tolist(), strict=True)
                ],
            }
            for join, each in facts.items()
        ],
    }


def _together(parts: Sequence[Mapping[str, Any]]) -> JoinStatistics:
    counts: dict[str, Any] = {}
    for part in parts:
        for name, value in part["facts"].items():
            counts[name] = counts.get(name, 0) + value
    return JoinStatistics(
        sum(part["sizes"] for part in parts),
        sum(part["outputs"] for part in parts),
        sum(part["generations"] for part in parts),
        np.any([part["owing"] for part in parts], axis=0),
        np.any([part["ended"] for part in parts], axis=0),
        sum(part["rows"] for part in parts),
        sum(part["keys"] for part in parts),
        sum(part["held"] for part in parts),
        sum(part["room"] for part in parts),
        counts,
    )


def _counted(
    name: str,
    before: Mapping[int, Floats],
    reports: Sequence[ShardReport],
    facts: Mapping[int, JoinStatistics],
) -> dict[int, Floats]:
    """Add the counts of this version to those of generations that are still resident."""
    counts = {}
    for join, each in facts.items():
        count = np.array(before.get(join, np.zeros(len(each.sizes))))
        count[each.ended] = 0.0
        for report in reports:
            found = report.statistics.get(name, {}).get(join)
            if found is not None:
                count += found
        count[each.sizes == 0] = 0.0
        counts[join] = count
    return counts


def _statistics(
    facts: Mapping[int, JoinStatistics], outputs: Mapping[int, Any], kept: Mapping[int, Floats]
) -> PartitionStatistics:
    """Return a row for each partition of a join that has state in memory."""
    rows = {join: np.flatnonzero(each.sizes) for join, each in facts.items()}
    return PartitionStatistics(
        join=np.concatenate([np.full(len(rows[join]), join, dtype=np.int64) for join in facts]),
        partition=np.concatenate([rows[join] for join in facts]),
        size=np.concatenate([facts[join].sizes[rows[join]] for join in facts]),
        output=np.concatenate([outputs[join][rows[join]].astype(np.float64) for join in facts]),
        inter=np.concatenate([kept[join][rows[join]] for join in facts]),
    )


def _packed(values: Floats) -> str:
    return base64.b64encode(values.astype("<f4").tobytes()).decode()


def _unpacked(text: str) -> Floats:
    return np.frombuffer(base64.b64decode(text), dtype="<f4").astype(np.float64)
