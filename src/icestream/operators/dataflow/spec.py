"""What a component runs, and what follows from its steps alone.

Idea: pure data, sent to every task of a component. Which steps have state, who reads which changes,
and on how many paths changes can still arrive is derived from the graph of steps once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from icestream.operators.dataflow.equal_events import are_told_apart
from icestream.operators.dataflow.results import HOLDING, LifetimeRows
from icestream.operators.dataflow.steps import (
    Emit,
    Filtering,
    JoinMany,
    Map,
    Merge,
    Padding,
    Projecting,
    Receive,
    Regroup,
    Send,
    Sole,
    SoleSpec,
    Stateful,
    Step,
    consumers,
)
from icestream.operators.lifetimes.answers import LifetimeAggregate
from icestream.operators.lifetimes.changes import LifetimeOperator
from icestream.operators.lifetimes.conditions_met import CurrentConditions
from icestream.operators.lifetimes.output_modes import NowOutput
from icestream.operators.multi_join.spec import JOINED, MERGED, MultiJoinSpec
from icestream.state.groups.options import lifetimes
from icestream.state.groups.spec import Synopsis
from icestream.state.versions.commits import BASE


@dataclass(frozen=True)
class ComponentSpec:
    """The steps of a component."""

    steps: tuple[Step, ...]
    #: how the changes of each view become result rows
    rows_of: tuple[LifetimeRows, ...]
    #: partitions of joins, and the share of rows that is traced to them
    partitions: int = 1
    sample: float = 1.0
    #: whether nobody asks for instants before the latest event
    forgets_past: bool = False
    #: whether identities of groups inside groups begin with bits of the outer ones
    inner_ids: bool = True
    #: keys of the groups inside others that changes are sent for, by edge
    inside: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    @property
    def lifetimes(self) -> tuple[str, ...]:
        """Return the lifetime classes of a shard's segments."""
        if self.sole is not None:
            return self.sole.lifetimes
        kept = lifetimes(len(self.groupings)) if self.join is None else (JOINED, MERGED)
        return (*kept, BASE)

    @cached_property
    def join(self) -> MultiJoinSpec | None:
        """Return the join that may defer results, if this is its component."""
        return next((step.spec for step in self.steps if isinstance(step, JoinMany)), None)

    @cached_property
    def sole_number(self) -> int:
        """Return the number of the step that keeps its own state; -1 if there is none."""
        return next((n for n, step in enumerate(self.steps) if isinstance(step, Sole)), -1)

    @property
    def sole(self) -> SoleSpec | None:
        """Return what the step with its own state does, if there is one."""
        step = None if self.sole_number < 0 else self.steps[self.sole_number]
        return step.spec if isinstance(step, Sole) else None

    @property
    def lends_buffers(self) -> bool:
        """Return whether its shards lend each other their buffers."""
        return self.sole is not None and self.sole.lends_buffers

    @cached_property
    def groupings(self) -> tuple[tuple[Synopsis, ...], ...]:
        count = 1 + max(step.grouping for step in self.steps)
        synopses: list[list[Synopsis]] = [[] for _ in range(count)]
        for step in self.steps:
            if isinstance(step, Stateful):
                synopses[step.grouping] += step.operator.synopses
        return tuple(map(tuple, synopses))

    @cached_property
    def places(self) -> tuple[int, ...]:
        """Return for each step the number of its first synopsis in its grouping's store."""
        used = [0] * len(self.groupings)
        places = []
        for step in self.steps:
            places.append(used[step.grouping])
            if isinstance(step, Stateful):
                used[step.grouping] += len(step.operator.synopses)
        return tuple(places)

    @cached_property
    def consumers(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        return consumers(self.steps)

    @cached_property
    def by_key(self) -> frozenset[int]:
        """Return the views of rows that hold which come straight from an operator by their key."""
        held = {
            number
            for number, step in enumerate(self.steps)
            if isinstance(step, Stateful) and isinstance(step.operator, NowOutput)
        }
        return frozenset(
            step.view
            for number, step in enumerate(self.steps)
            if isinstance(step, Emit)
            and self.rows_of[step.view].mode in HOLDING
            and not any(number in self.behind[each] for each in held)
        )

    @cached_property
    def received(self) -> tuple[tuple[int, int], ...]:
        """Return the steps that receive changes, with their edges, in the order to process them.

        The order is always the same, because it determines how lifetimes are cut and thus when they
        are final. A port that an operator wants first comes before its other ports. Apart from
        that, what leads to most steps is first: results are complete when they are asked for.
        """
        left = [number for number, step in enumerate(self.steps) if isinstance(step, Receive)]
        before: dict[int, set[int]] = {number: set() for number in left}
        for step in self.steps:
            if isinstance(step, Stateful) and step.operator.first_port is not None:
                ways = [self._received_by(each) for each in step.inputs]
                first = ways.pop(step.operator.first_port)
                for number in frozenset().union(*ways) - first:
                    before[number] |= first
        order: list[int] = []
        while left:
            ready = [number for number in left if before[number].isdisjoint(left)]
            order.append(max(ready or left, key=lambda number: len(self.behind[number])))
            left.remove(order[-1])
        edges = {n: step.edge for n, step in enumerate(self.steps) if isinstance(step, Receive)}
        return tuple((number, edges[number]) for number in order)

    def _received_by(self, number: int) -> frozenset[int]:
        """Return the receiving steps that lead to a step, including itself."""
        return frozenset(
            n
            for n, step in enumerate(self.steps)
            if isinstance(step, Receive) and (n == number or number in self.behind[n])
        )

    @cached_property
    def ahead(self) -> frozenset[int]:
        """Return the steps that begin a grouping for a port that an operator wants first."""
        found: set[int] = set()
        for step in self.steps:
            if isinstance(step, Stateful) and step.operator.first_port is not None:
                number = step.inputs[step.operator.first_port]
                while isinstance(self.steps[number], Map):
                    (number,) = self.steps[number].inputs
                if isinstance(self.steps[number], Regroup):
                    found.add(number)
        return frozenset(found)

    @cached_property
    def timed(self) -> frozenset[int]:
        """Return the steps whose changes, mapped or not, only go to operators that sort by time."""
        found: set[int] = set()
        for number, step in reversed(list(enumerate(self.steps))):
            after = [each for each, _ in self.consumers[number]]
            onward = isinstance(step, Receive | Map | Merge) and bool(after)
            if onward and all(each in found or self._orders_by_time(each) for each in after):
                found.add(number)
        return frozenset(found)

    def _orders_by_time(self, number: int) -> bool:
        step = self.steps[number]
        return isinstance(step, Stateful) and step.operator.takes_by_time

    @cached_property
    def entered(self) -> Mapping[int, int]:
        """Return the steps that regroup what is received, where the sender has done so."""
        return {
            step.inputs[0]: number
            for number, step in enumerate(self.steps)
            if isinstance(step, Regroup)
            for before in [self.steps[step.inputs[0]]]
            if isinstance(before, Receive) and before.edge in self.inside
        }

    @cached_property
    def counted(self) -> frozenset[int]:
        """Return the maps of what is received whose events may be taken together if equal.

        Where the past counts they rarely are, as their times differ.
        """
        return frozenset(
            number
            for number, step in enumerate(self.steps)
            if self.forgets_past
            and isinstance(step, Map)
            and isinstance(step.change, Projecting)
            and are_told_apart(step.payload)
            and isinstance(self.steps[step.inputs[0]], Receive)
            and len(self.consumers[step.inputs[0]]) > 1
            and self._is_aggregated(number)
        )

    def _is_aggregated(self, number: int) -> bool:
        """Return whether the changes of a step only go to aggregates, or to distinct values."""
        for each, _ in self.consumers[number]:
            match self.steps[each]:
                case Map() | Regroup() | Merge():
                    if not self._is_aggregated(each):
                        return False
                case Stateful(operator=LifetimeAggregate() | CurrentConditions()):
                    continue
                case _:
                    return False
        return True

    @cached_property
    def begins(self) -> bool:
        """Return whether a grouping begins inside another."""
        return any(isinstance(step, Regroup) for step in self.steps)

    @cached_property
    def arrivals(self) -> tuple[Counter[int] | None, ...]:
        """Return on how many paths the changes of each received chunk arrive at each step.

        By receiving step; None if more may arrive later, from operators that emit at a watermark.
        Where a grouping begins, changes are collected, so all paths count as one.
        """
        found: list[Counter[int] | None] = []
        leaving: list[Counter[int] | None] = []
        for number, step in enumerate(self.steps):
            before = [leaving[each] for each in step.inputs]
            known = [each for each in before if each is not None]
            came: Counter[int] | None = None
            if len(known) == len(before):
                came = sum(known, Counter({number: 1} if isinstance(step, Receive) else {}))
            found.append(came)
            leaving.append(None if came is None else self._left(number, came))
        return tuple(found)

    def _left(self, number: int, came: Counter[int]) -> Counter[int] | None:
        """Return on how many paths changes leave a step, given those on which they arrive."""
        match self.steps[number]:
            case Regroup():
                return Counter(dict.fromkeys(came, 1))
            case JoinMany() | Sole():
                return None
            case Stateful():
                if number not in self.prompt:
                    return None
                return came if self.prompt[number].emits_at_once else came + came
        return came

    @cached_property
    def prompt(self) -> Mapping[int, LifetimeOperator]:
        """Return the operators that emit nothing at a watermark, by step."""
        return {
            number: step.operator
            for number, step in enumerate(self.steps)
            if isinstance(step, Stateful) and step.operator.is_prompt
        }

    @cached_property
    def passed(self) -> tuple[tuple[int, ...] | None, ...]:
        """Return, for each step, the steps with state in its grouping that its changes lead to.

        None if one of them might store something for groups that have ended.
        """
        return tuple(self._passed(number) for number in range(len(self.steps)))

    def _passed(self, number: int) -> tuple[int, ...] | None:
        found: list[int] = []
        waiting = [number]
        while waiting:
            for each, _ in self.consumers[waiting.pop()]:
                match self.steps[each]:
                    case Regroup() | Send() | Emit():
                        continue
                    case Merge() | Map(change=Filtering() | Projecting() | Padding()):
                        waiting.append(each)
                    case Stateful() if each in self.prompt and self.prompt[each].forgets:
                        found.append(each)
                        waiting.append(each)
                    case _:
                        return None
        return tuple(dict.fromkeys(found))

    @cached_property
    def behind(self) -> tuple[frozenset[int], ...]:
        """Return, for each step, the steps that its changes lead to."""
        found: list[frozenset[int]] = [frozenset()] * len(self.steps)
        for number in reversed(range(len(self.steps))):
            after = [step for step, _ in self.consumers[number]]
            found[number] = frozenset(after).union(*(found[step] for step in after))
        return tuple(found)
