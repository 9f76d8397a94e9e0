"""Moving key groups between nodes while rows flow: four ways, as one state machine without I/O.

Idea: a change is decided at a boundary, when the progress of rows is known; sources switch routes
there and send a modification after the last row by the old routes. What follows differs:

    instant      all rows go to the new node, which starts empty; the old one keeps its part of the
                 windows until they end, and the consolidation merges both parts
    smooth       windows without rows yet belong to the new node; rows of others still go to the old
                 one, and rows of both kinds to both, until the old windows end
    disruptive   the key group pauses; its state is copied; the new node takes it over
    handover     like disruptive, but markers are handed over instead of bytes: there is no wait
                 except for the boundary itself, which in batches is the same for all

Invariants:
1. Every window's result is that of an undisturbed run, whatever moves when and however rows,
   punctuations and copies interleave (`test_oracle_windows_are_those_of_an_undisturbed_run`).
2. Instant and smooth never pause; nor does handover if the boundary is a barrier; disruptive
   does (`test_who_pauses`).
3. Smooth is done when the longest window that had a row at the boundary ends
   (`test_smooth_is_done_within_the_longest_window`).
4. Except with instant, one node emits a window of a key group
   (`test_oracle_windows_are_those_of_an_undisturbed_run`).

Limits: a key group whose state is being transferred, or whose windows several nodes own, cannot be
moved with its state until that is over; such a move is deferred (`Migrations.refused`).

References: Madsen, Zhou, Su (2016), sections 4.5, 5 and 6.2; the handover of markers is our
    addition.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from bench.research.routes import ALWAYS, Entry, Routes
from icestream.core.times import Micros
from icestream.plan.fuse.operator_graph import Job


class Way(StrEnum):
    """How a key group is moved."""

    INSTANT = "instant"
    SMOOTH = "smooth"
    DISRUPTIVE = "disruptive"
    HANDOVER = "handover"


@dataclass(frozen=True, slots=True)
class Move:
    """A request to move a key group to another node."""

    group: int
    target: int
    way: Way


@dataclass(frozen=True, slots=True)
class Boundary:
    """The progress of rows when a change was decided."""

    #: no row before this time will come
    complete: Micros
    #: no row sent so far is after this time
    reached: Micros


# -- instructions ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SwitchRoutes:
    """To all sources: send a modification, then route rows this way."""

    routes: Routes


@dataclass(frozen=True, slots=True)
class Pause:
    """To a node: put rows of a key group aside."""

    group: int
    node: int


@dataclass(frozen=True, slots=True)
class Copy:
    """To a node: send all state of a key group to another one."""

    group: int
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class HandOver:
    """To a node: send the log markers of a key group's state to another one."""

    group: int
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Resume:
    """To a node: accept rows of a key group, those put aside first."""

    group: int
    node: int


@dataclass(frozen=True, slots=True)
class Done:
    """To the requester: this move is over; the source holds nothing more of the key group."""

    group: int
    source: int
    target: int
    way: Way


Instruction = SwitchRoutes | Pause | Copy | HandOver | Resume | Done


class MoveStage(StrEnum):
    """The stage of a move."""

    #: waits until the modification has come to the old node over all connections
    COMING = "coming"
    #: state is being transferred
    COPYING = "copying"
    #: the old node still holds windows
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class Moving:
    """A move in progress."""

    group: int
    source: int
    target: int
    way: Way
    stage: MoveStage
    #: number of the modification
    number: int
    #: when windows that end by this time are complete, the old node holds none
    until: Micros


class Migrations:
    """All moves of a component: boundaries and events in, instructions out."""

    def __init__(self, routes: Routes, longest: Micros) -> None:
        """Begin with routes, for windows no longer than `longest`."""
        self.routes = routes
        self._longest = longest
        self._moving: list[Moving] = []
        self._number = 0
        #: reported time up to which each node has completed windows
        self._completed: dict[int, Micros] = {}

    @property
    def moving(self) -> tuple[Moving, ...]:
        """Return the moves in progress."""
        return tuple(self._moving)

    def refused(self, move: Move, at: Boundary) -> str | None:
        """Return why a move cannot begin now, or nothing if it can."""
        if move.target == self.routes.newest(move.group):
            return "it is there already"
        under_way = [each for each in self._moving if each.group == move.group]
        if any(each.stage is not MoveStage.DRAINING for each in under_way):
            return "its state is on its way"
        if move.way in (Way.DISRUPTIVE, Way.HANDOVER):
            if len(self.routes.owners(move.group, self._active(at))) > 1:
                return "several nodes own windows of it"
            if any(each.source == move.target for each in under_way):
                return "the target has not drained"
        return None

    def modify(self, moves: Iterable[Move], at: Boundary) -> list[Instruction]:
        """Begin moves at a boundary, each key group once; refused ones are left out."""
        chosen = {move.group: move for move in moves if self.refused(move, at) is None}
        if not chosen:
            return []
        changes = []
        pauses: list[Instruction] = []
        for move in chosen.values():
            first = at.reached + 1 if move.way is Way.SMOOTH else self._active(at)
            with_state = move.way in (Way.DISRUPTIVE, Way.HANDOVER)
            changes.append((move.group, Entry(first, move.target)))
            for source in self.routes.owners(move.group, self._active(at)):
                if source == move.target:
                    continue
                self._moving.append(
                    Moving(
                        move.group,
                        source,
                        move.target,
                        move.way,
                        MoveStage.COMING if with_state else MoveStage.DRAINING,
                        self._number,
                        at.reached + self._longest,
                    )
                )
            if with_state:
                pauses.append(Pause(move.group, move.target))
        self.routes = self.routes.changed(changes).forgotten(self._active(at))
        self._number += 1
        return [*pauses, SwitchRoutes(self.routes), *self._drained()]

    def on_modified(self, node: int, number: int) -> list[Instruction]:
        """Handle: a modification has reached a node over all connections."""
        found: list[Instruction] = []
        kept = []
        for each in self._moving:
            if (each.source, each.number, each.stage) != (node, number, MoveStage.COMING):
                kept.append(each)
            elif each.way is Way.DISRUPTIVE:
                kept.append(replace(each, stage=MoveStage.COPYING))
                found.append(Copy(each.group, each.source, each.target))
            else:
                found.append(HandOver(each.group, each.source, each.target))
                found += _over(each)
        self._moving = kept
        return found

    def on_copied(self, group: int) -> list[Instruction]:
        """Handle: the state of a key group has arrived."""
        found = [
            each for each in self._moving if (each.group, each.stage) == (group, MoveStage.COPYING)
        ]
        self._moving = [each for each in self._moving if each not in found]
        return [instruction for each in found for instruction in _over(each)]

    def on_completed(self, node: int, until: Micros) -> list[Instruction]:
        """Handle: a node has completed all windows that end by a time."""
        self._completed[node] = max(until, self._completed.get(node, until))
        return self._drained()

    def _drained(self) -> list[Instruction]:
        """End the moves whose old node has completed all its windows."""
        found = [
            each
            for each in self._moving
            if each.stage is MoveStage.DRAINING
            and each.until <= self._completed.get(each.source, ALWAYS)
        ]
        self._moving = [each for each in self._moving if each not in found]
        return [Done(each.group, each.source, each.target, each.way) for each in found]

    def _active(self, at: Boundary) -> Micros:
        """Return a time at or after which all windows start that may still be active."""
        return at.complete - self._longest + 1


def _over(each: Moving) -> list[Instruction]:
    return [Resume(each.group, each.target), Done(each.group, each.source, each.target, each.way)]


# -- which ways a component allows -----------------------------------------------------------------


def ways(job: Job, component: Iterable[int], *, consolidated_next: bool) -> frozenset[Way]:
    """Return the ways to move key groups of a component with exact results.

    Args:
        job: the job.
        component: its operators.
        consolidated_next: whether every component after it begins by consolidating its rows.
    """
    members = tuple(component)
    found = {Way.DISRUPTIVE, Way.HANDOVER}
    if any(job.operators[number].longest for number in members):
        found.add(Way.SMOOTH)
    if not job.stateful(members) or (job.flexible(members) and consolidated_next):
        found.add(Way.INSTANT)
    return frozenset(found)
