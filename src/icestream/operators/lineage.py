"""The shards of earlier versions that a shard descends from: those that had its key groups.

Idea: a shard is a range of key groups. When the number of shards changes, no segment is rewritten:
a new shard reads the segments of the shards that had its key groups, its *parents*, and keeps its
own range of ids. All parents wrote a snapshot in the last version before, so that a history begins
with snapshots of the same instant. Which shards are parents follows from the routes of a commit.

Invariants:
1. A shard gets the ids of its key groups, each from one parent
   (`test_oracle_ids_of_key_groups_beside_the_routes`).

References: key groups (Shah et al., Flux, 2003); hand-over at a version (Del Monte et al., Rhino,
2020; Hoffmann et al., Megaphone, 2019).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from icestream.operators.protocol import PastVersion
from icestream.state.identities import IdRange
from icestream.state.versions.commits import Commit, LiveSegment, VersionStore
from icestream.state.versions.live_segments import live_at


@dataclass(frozen=True)
class ShardLineage:
    """The key groups of one shard of a component."""

    component: int
    groups: range

    @classmethod
    def of(cls, routes: Sequence[int], shard: int) -> ShardLineage:
        """Return the key groups of a shard, numbered across components, given the routes."""
        component, own = divmod(shard, shards_of(routes))
        return cls(component, range(bisect_left(routes, own), bisect_left(routes, own + 1)))

    def shards(self, routes: Sequence[int]) -> list[int]:
        """Return the shards that have these key groups by other routes, in the order of ids."""
        first, last = routes[self.groups[0]], routes[self.groups[-1]]
        return [self.component * shards_of(routes) + shard for shard in range(first, last + 1)]

    def segments(self, store: VersionStore, commit: Commit) -> list[LiveSegment]:
        """Return the live segments of a version with these key groups, each once, as written."""
        live = live_at(store, commit.version, self.shards(commit.routes))
        found = {each.info.ordinal: each for each in live}
        return [found[ordinal] for ordinal in sorted(found)]

    def history(self, commits: Iterable[Commit], live: Iterable[LiveSegment]) -> list[PastVersion]:
        """Return what versions wrote for these key groups, given its live segments."""
        shares = any(each.shared for each in live)
        return [self._past(each, shares=shares) for each in commits]

    def _ids(self, groups: range, routes: Sequence[int]) -> IdRange:
        return IdRange.of_key_groups(groups.start, groups.stop, len(routes))

    def _past(self, commit: Commit, *, shares: bool) -> PastVersion:
        owners, routes = self.shards(commit.routes), commit.routes
        segments = [
            (each.lifetime, each.info)
            for owner in owners
            for each in commit.added
            if each.shard == owner
        ]
        before = [ShardLineage.of(routes, owner).groups for owner in owners]
        parents: list[IdRange] = []
        if before != [self.groups]:
            first, end = self.groups.start, self.groups.stop
            parts = [range(max(first, each.start), min(end, each.stop)) for each in before]
            parents = [self._ids(each, routes) for each in parts]
        keeps = self._ids(self.groups, routes) if shares or parents else None
        watermark = commit.watermark_of(owners[0])
        return PastVersion(
            commit.version, watermark, segments, commit.flushed, keeps, tuple(parents)
        )


def shards_of(routes: Sequence[int]) -> int:
    """Return the number of shards in a lineage of routes: those that key groups are routed to."""
    return routes[-1] + 1


@lru_cache(maxsize=16)
def even_routes(groups: int, shards: int) -> tuple[int, ...]:
    """Return the shard of each key group if all get about as many."""
    return tuple(group * shards // groups for group in range(groups))
