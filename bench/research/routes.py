"""The node of a row, by key group and by the window instance it belongs to, in versions.

Idea: a key group has a list of entries (first window instance, node). An instance goes to the node
of the last entry that is not after it, so a key group can be on one node for windows that began
before a change and on another for those after it. An instance is identified by its start, so one
entry serves windows of several lengths.

    key group 7    from -inf: node 0, from 120: node 2    window [100, 160) -> 0, [130, 190) -> 2

Invariants:
1. A version never changes; a change makes the next one (`test_a_change_makes_a_new_version`).
2. Forgetting entries before a time changes no route from there on
   (`test_oracle_forgetting_changes_no_route_that_is_needed`).

Cost: a lookup searches the entries of one key group, of which there are few.

References: Madsen, Zhou, Su (2016), sections 4.5 and 6.2.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from icestream.core.times import Micros

#: before every window
ALWAYS: Micros = -(1 << 62)


@dataclass(frozen=True, slots=True)
class Entry:
    """From this window instance on, identified by its start, a key group is on this node."""

    first: Micros
    node: int


@dataclass(frozen=True)
class Routes:
    """The entries of every key group, ascending."""

    version: int
    entries: tuple[tuple[Entry, ...], ...]

    @classmethod
    def of(cls, nodes: Sequence[int]) -> Routes:
        """Return the first version: one node for each key group."""
        return cls(0, tuple((Entry(ALWAYS, node),) for node in nodes))

    def node(self, group: int, start: Micros) -> int:
        """Return the node of a key group for the window instance that starts at a time."""
        entries = self.entries[group]
        at = bisect_right(entries, start, key=lambda entry: entry.first)
        return entries[max(0, at - 1)].node

    def newest(self, group: int) -> int:
        """Return the node of a key group for window instances to come."""
        return self.entries[group][-1].node

    def owners(self, group: int, first: Micros) -> tuple[int, ...]:
        """Return the nodes of a key group for window instances from a time on."""
        later = [entry.node for entry in self.entries[group] if entry.first > first]
        return tuple(dict.fromkeys([self.node(group, first), *later]))

    def changed(self, changes: Iterable[tuple[int, Entry]]) -> Routes:
        """Return the next version: each key group is on the entry's node from there on."""
        entries = list(self.entries)
        for group, new in changes:
            before = tuple(entry for entry in entries[group] if entry.first < new.first)
            entries[group] = (*before, new)
        return Routes(self.version + 1, tuple(entries))

    def forgotten(self, before: Micros) -> Routes:
        """Return the same version without entries that only windows before a time need."""
        return Routes(self.version, tuple(_needed(each, before) for each in self.entries))


def _needed(entries: tuple[Entry, ...], before: Micros) -> tuple[Entry, ...]:
    at = bisect_right(entries, before, key=lambda entry: entry.first)
    return entries[max(0, at - 1) :]
