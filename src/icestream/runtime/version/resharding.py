"""What a version goes on from if it has another number of shards than the one before.

Idea: shards are ranges of key groups, and their number changes at a version boundary. The version
before ends with snapshots of all shards. The next one lists each live segment under every shard
that has some of its key groups now; no file is copied, moved or rewritten. Its shards have no
arenas: they are restored from the snapshots of their parents, filtered by range
(`operators/lineage`). What was measured by shard is divided among the new ones, or forgotten.

Invariants:
1. Rows do not depend on when the number of shards changes, for every kind of state
   (`test_oracle_any_number_of_shards_at_any_version_changes_no_row`), nor on a crash at that
   version (`test_crash_around_a_change_of_shards`).
2. A segment that several shards share is removed with the last of them
   (`test_a_shared_segment_goes_with_its_last_shard`).

Cost: a snapshot of every shard and a restore from it: the directory or rows of its groups, not the
log. Until segments expire or are cleaned, the commit names them once for each shard.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from icestream.operators.lineage import ShardLineage, even_routes, shards_of
from icestream.state.versions.commits import Commit
from icestream.state.versions.live_segments import LiveSegments

#: the name of an arena that does not exist, so that its shard is restored
NO_ARENA = "none"


def resharded(last: Commit, live: LiveSegments, shards: int) -> tuple[Commit, LiveSegments]:
    """Return the last version as if it had so many shards, and its live segments."""
    before, routes = shards_of(last.routes), even_routes(len(last.routes), shards)
    components = len(last.arenas) // before
    heirs = {
        shard: ShardLineage.of(last.routes, shard).shards(routes)
        for shard in range(components * before)
    }
    parents = [ShardLineage.of(routes, shard).shards(last.routes) for shard in range(shards)]
    commit = replace(
        last,
        routes=routes,
        arenas=(NO_ARENA,) * (components * shards),
        bases=(last.version,) * (components * shards),
        decisions=_divided(last.decisions, parents, heirs),
    )
    return commit, live.divided(heirs, commit.bases)


def _divided(
    decisions: Mapping[str, Any], parents: list[list[int]], heirs: Mapping[int, list[int]]
) -> dict[str, Any]:
    """Return decisions of a version for other shards, given the parents of each and their heirs."""

    def of(values: list[float]) -> list[float]:
        return [sum(values[each] / len(heirs[each]) for each in mine) for mine in parents]

    placement = decisions["placement"]
    divided: dict[str, Any] = {
        "placement": {
            **placement,
            "tasks": [placement["tasks"][mine[0]] for mine in parents],
            "loads": of(placement["loads"]),
        }
    }
    if "holdings" in decisions:
        divided["holdings"] = {}
    if "joins" in decisions:
        divided["joins"] = {**decisions["joins"], "holdings": {}}
    if "fusion" in decisions:
        fusion = decisions["fusion"]
        divided["fusion"] = {
            **fusion,
            "rows": [of(rows) for rows in fusion["rows"]],
            "together": [
                [heir for heir, mine in enumerate(parents) if set(mine) <= set(together)]
                for together in fusion["together"]
            ],
        }
    return {**decisions, **divided}
