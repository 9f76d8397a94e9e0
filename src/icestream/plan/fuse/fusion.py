"""Which operators share a component, so that rows between them need no exchange.

Idea: a greedy algorithm. Of all edges between two components that may be partitioned alike, the one
with the highest score is fused, until none is left. The score is the measured rate of the edge or,
if nothing was measured, the number of tracks that the two components have in common, because these
leave most room for further fusion.

Invariants:
1. Every operator is in one component; the operators of a component have a track in common; and
   components do not wait for each other in a cycle (`test_every_fusion_is_valid`).
2. Fusing by rates is the printed algorithm, without cycles
   (`test_oracle_fusing_by_rates_is_the_printed_algorithm`).
3. In the end no other edge can be fused (`test_nothing_is_left_to_fuse`).
4. On small jobs, no result communicates less than the optimum of an exhaustive search
   (`test_oracle_the_optimum_is_a_bound`).

Cost: O(E log E) for rates plus a search for cycles per fused edge; O(pairs of components) per fused
edge for common tracks.

Limits: an operator without partition attributes is alone: all its rows go to one place.

References: Madsen, Zhou, Su (2016), section 4.4.1, algorithm 1, and section 7.6.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from icestream.core.errors import DefinitionError
from icestream.plan.fuse.operator_graph import Graph, cyclic

#: operators by number, ascending; components in the order of their first operators
Components = tuple[tuple[int, ...], ...]


def alone(graph: Graph) -> Components:
    """Return every operator as its own component, without fusion."""
    return tuple((number,) for number in range(len(graph.operators)))


def fused_by_rates(
    graph: Graph,
    *,
    start: Components | None = None,
    least: float = 0.0,
    circles: bool = False,
) -> Components:
    """Fuse along the edges with the highest rates.

    Args:
        graph: the job.
        start: components to start with; by default every operator alone.
        least: edges with lower rates, or without rates, are not fused.
        circles: whether components may wait for each other in a cycle, as in a system without
            batches.
    """
    parts = GrowingComponents(graph, start)
    edges = sorted(graph.edges, key=lambda edge: (-edge.rate, edge.origin))
    left = [(edge.origin, edge.target) for edge in edges if edge.rate > 0 and edge.rate >= least]
    going = True
    while going:
        going = False
        kept = []
        for at, (one, other) in enumerate(left):
            first, second = parts.of[one], parts.of[other]
            if first == second or not parts.common(first, second):
                continue
            kept.append((one, other))
            if circles or not parts.circle(first, second):
                parts.join(first, second)
                left = kept[:-1] + left[at + 1 :]
                going = True
                break
    return parts.components()


def fused_by_attributes(graph: Graph, *, circles: bool = False) -> Components:
    """Fuse the components with the most tracks in common, without measured rates."""
    parts = GrowingComponents(graph)
    going = True
    while going:
        scores = [
            (-parts.common(one, other).bit_count(), one, other)
            for one, others in parts.following.items()
            for other in set_bits(others)
        ]
        going = False
        for score, one, other in sorted(scores):
            if score < 0 and (circles or not parts.circle(one, other)):
                parts.join(one, other)
                going = True
                break
    return parts.components()


def fused_by_hand(graph: Graph, together: Iterable[Iterable[int]]) -> Components:
    """Return the fusion that a user requests; operators that are not named are alone."""
    asked: list[tuple[int, ...]] = [tuple(sorted(set(each))) for each in together]
    named = {number for each in asked for number in each}
    rest: list[tuple[int, ...]] = [
        (number,) for number in range(len(graph.operators)) if number not in named
    ]
    components = tuple(sorted([each for each in asked if each] + rest))
    wrong = violations(graph, components)
    if wrong:
        msg = f"these operators cannot be fused: {'; '.join(wrong)}"
        raise DefinitionError(msg)
    return components


def violations(graph: Graph, components: Components, *, circles: bool = False) -> list[str]:
    """Return what is wrong with the components of a fusion; empty if they are valid."""
    found = []
    members = sorted(number for each in components for number in each)
    if members != list(range(len(graph.operators))):
        found.append("every operator must be in exactly one component")
        return found
    found += [
        f"operators {each} have no partition attribute in common"
        for each in components
        if len(each) > 1 and not graph.common(each)
    ]
    if not circles and waits_in_circle(graph, components):
        found.append("components wait for each other in a cycle")
    return found


def waits_in_circle(graph: Graph, components: Components) -> bool:
    """Return whether, after fusion, rows can leave a component and come back to it."""
    of = place_of(components)
    between = {(of[edge.origin], of[edge.target]) for edge in graph.edges}
    return cyclic(len(components), ((one, other) for one, other in between if one != other))


def place_of(components: Components) -> dict[int, int]:
    """Return the fused component of each operator."""
    return {number: at for at, each in enumerate(components) for number in each}


def components_at(places: Mapping[int, int]) -> Components:
    """Return the fused components in which operators have the same place."""
    members: dict[int, list[int]] = defaultdict(list)
    for number in sorted(places):
        members[places[number]].append(number)
    return tuple(sorted(tuple(each) for each in members.values()))


class GrowingComponents:
    """Growing components, each identified by the number of one of its operators."""

    def __init__(self, graph: Graph, start: Components | None = None) -> None:
        """Start with components; by default with every operator alone."""
        count = len(graph.operators)
        #: the component of each operator
        self.of = list(range(count))
        self._members = {number: [number] for number in range(count)}
        self._tracks = list(graph.operators)
        #: components that each one sends rows to, as bits
        self.following = dict.fromkeys(range(count), 0)
        self._leading = dict.fromkeys(range(count), 0)
        #: tracks that all edges between two components carry
        self._between: dict[tuple[int, int], int] = {}
        for edge in graph.edges:
            pair = (min(edge.origin, edge.target), max(edge.origin, edge.target))
            self._between[pair] = self._between.get(pair, -1) & edge.tracks
            self.following[edge.origin] |= 1 << edge.target
            self._leading[edge.target] |= 1 << edge.origin
        for each in start or ():
            for number in each[1:]:
                self.join(self.of[each[0]], self.of[number])

    def components(self) -> Components:
        """Return the components in order."""
        return tuple(sorted(tuple(sorted(each)) for each in self._members.values()))

    def common(self, one: int, other: int) -> int:
        """Return the tracks by which two components could be partitioned together."""
        between = self._between.get((min(one, other), max(one, other)), -1)
        return self._tracks[one] & self._tracks[other] & between

    def circle(self, one: int, other: int) -> bool:
        """Return whether rows could leave the fusion of two components and come back."""
        return self._leads(one, other) or self._leads(other, one)

    def _leads(self, one: int, other: int) -> bool:
        """Return whether a path leads from one to another through a third."""
        target = 1 << other
        seen = ahead = self.following[one] & ~target
        while ahead:
            lowest = ahead & -ahead
            ahead ^= lowest
            following = self.following[lowest.bit_length() - 1]
            if following & target:
                return True
            ahead |= following & ~seen
            seen |= following
        return False

    def join(self, one: int, other: int) -> None:
        """Fuse two components into the first."""
        if one == other:
            return
        self._tracks[one] = self.common(one, other)
        for number in self._members[other]:
            self.of[number] = one
        self._members[one] += self._members.pop(other)
        for near in set_bits((self.following[other] | self._leading[other]) & ~(1 << one)):
            tracks = self._between.pop((min(near, other), max(near, other)))
            pair = (min(near, one), max(near, one))
            self._between[pair] = self._between.get(pair, -1) & tracks
        self._between.pop((min(one, other), max(one, other)), None)
        self._redirect(self.following, self._leading, one, other)
        self._redirect(self._leading, self.following, one, other)

    @staticmethod
    def _redirect(there: dict[int, int], back: dict[int, int], one: int, other: int) -> None:
        both = 1 << one | 1 << other
        moved = there.pop(other)
        there[one] = (there[one] | moved) & ~both
        for near in set_bits(moved & ~both):
            back[near] = back[near] & ~both | 1 << one


def set_bits(numbers: int) -> list[int]:
    """Return the operators of a fusion in a set of bits, ascending."""
    found = []
    while numbers:
        lowest = numbers & -numbers
        found.append(lowest.bit_length() - 1)
        numbers ^= lowest
    return found
