"""Which components of a running query share a task, from one version to the next.

Idea: each component has its own state, so components that are partitioned alike can share a task in
one version and run separately in the next, without moving anything: inside a task changes are
passed in memory, otherwise through the exchange. The user decides this, or the rows measured on
each edge do, for each shard, which is a set of key groups, with one bound for joining and a lower
one for parting. The commit contains the decision for the next version.

Invariants:
1. Components that share a task are partitioned alike and do not wait for others in a cycle
   (`test_what_runs_together_is_valid`).
2. Row counts between the two bounds change nothing
   (`test_rows_between_the_bounds_change_nothing`).
3. A decision reads back from its JSON (`test_a_choice_reads_back`).

References: Madsen, Zhou, Su (2016), section 8 (future work).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from icestream.core.errors import DefinitionError
from icestream.plan.fuse.fusion import Components, fused_by_hand, place_of
from icestream.plan.fuse.operator_graph import Graph
from icestream.plan.fuse.refusion import adapted

#: rows of a version on an edge, in a shard, from which its ends join, and below which they part
JOIN_FROM = 2_048.0
PART_BELOW = 256.0
#: weight of the last version in the smoothed rows
LATEST = 0.5

#: names of operators that run together, or `auto`, or `none`
Together = str | Sequence[Sequence[str]]


@dataclass(frozen=True)
class RunningFusion:
    """The components that share tasks, and the measurements, by edge between components."""

    #: whether measurements decide
    measured: bool
    #: shards in which the two ends of each edge run together
    together: tuple[frozenset[int], ...]
    #: smoothed rows of a version, in each shard
    rows: tuple[tuple[float, ...], ...]

    @classmethod
    def begin(cls, graph: Graph, shards: int) -> RunningFusion:
        """Return the initial fusion: every component runs by itself."""
        edges = len(graph.edges)
        return cls(False, (frozenset(),) * edges, ((0.0,) * shards,) * edges)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> RunningFusion:
        """Return what `to_json` wrote."""
        return cls(
            fields["measured"],
            tuple(map(frozenset, fields["together"])),
            tuple(map(tuple, fields["rows"])),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the form that a commit stores."""
        return {
            "measured": self.measured,
            "together": list(map(sorted, self.together)),
            "rows": list(map(list, self.rows)),
        }

    def chosen(
        self, graph: Graph, together: Together, names: Sequence[Sequence[str]], shards: int
    ) -> RunningFusion:
        """Return the fusion that a user requests, from the next version on.

        Args:
            graph: the components.
            together: `auto`: by measurements; `none`; or lists of names of operators.
            names: the operators of each component.
            shards: the shards of a component.
        """
        if together == "auto":
            return replace(self, measured=True)
        if together == "none":
            return replace(self, measured=False, together=(frozenset(),) * len(graph.edges))
        if isinstance(together, str):
            msg = f"fuse takes 'auto', 'none' or lists of names of operators; got {together!r}"
            raise DefinitionError(msg)
        of = {name: number for number, each in enumerate(names) for name in each}
        unknown = sorted({name for each in together for name in each} - of.keys())
        if unknown:
            msg = f"fuse names {unknown}; the operators are {sorted(of)}"
            raise DefinitionError(msg)
        place = place_of(fused_by_hand(graph, [[of[name] for name in each] for each in together]))
        everywhere = frozenset(range(shards))
        inside = (place[edge.origin] == place[edge.target] for edge in graph.edges)
        asked = tuple(everywhere if each else frozenset() for each in inside)
        return replace(self, measured=False, together=asked)

    def after(self, graph: Graph, rows: Sequence[Sequence[int]]) -> RunningFusion:
        """Return the next fusion, given the rows of a version on each edge, by shard."""
        smoothed = tuple(
            tuple(old + LATEST * (new - old) for old, new in zip(before, now, strict=True))
            for before, now in zip(self.rows, rows, strict=True)
        )
        if not self.measured:
            return replace(self, rows=smoothed)
        known = {at: shards for at, shards in enumerate(self.together) if shards}
        found = adapted(graph, known, smoothed, join_from=JOIN_FROM, part_below=PART_BELOW)
        together = (found.get(at, frozenset()) for at in range(len(graph.edges)))
        return RunningFusion(True, tuple(together), smoothed)

    def groups(self, graph: Graph, shard: int | None = None) -> Components:
        """Return the components that share tasks in a shard, or in any."""
        of = list(range(len(graph.operators)))
        for edge, shards in zip(graph.edges, self.together, strict=True):
            if shards if shard is None else shard in shards:
                old, new = of[edge.target], of[edge.origin]
                of = [new if each == old else each for each in of]
        members: dict[int, list[int]] = {}
        for number, group in enumerate(of):
            members.setdefault(group, []).append(number)
        return tuple(map(tuple, members.values()))

    def waves(self, graph: Graph, shards: int) -> list[list[tuple[tuple[int, ...], int]]]:
        """Return groups and their shards, in waves of those that run at the same time.

        Each comes after those that send to it: between components that are partitioned alike these
        are the same shard, otherwise all shards.
        """
        waiting = [(group, shard) for shard in range(shards) for group in self.groups(graph, shard)]
        before = {
            group: [e for e in graph.edges if e.target in group and e.origin not in group]
            for group, _ in waiting
        }
        done: set[tuple[int, int]] = set()
        shards_done: Counter[int] = Counter()
        found = []
        while waiting:
            wave: list[tuple[tuple[int, ...], int]] = []
            later: list[tuple[tuple[int, ...], int]] = []
            for group, shard in waiting:
                ready = all(
                    (edge.origin, shard) in done
                    if edge.tracks
                    else shards_done[edge.origin] == shards
                    for edge in before[group]
                )
                (wave if ready else later).append((group, shard))
            assert wave, "components that share tasks wait for each other in a cycle"
            found.append(sorted(wave))
            ran = [(component, shard) for group, shard in wave for component in group]
            done.update(ran)
            shards_done.update(component for component, _ in ran)
            waiting = later
        return found
