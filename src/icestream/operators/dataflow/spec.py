"""What a component runs, and what follows from its steps alone.

Idea: pure data, sent to every task of a component. Where state is, who takes changes, and on how
many ways changes can still come are read off the graph of steps once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from icestream.operators.dataflow.joining import JOINED
from icestream.operators.dataflow.results import LifetimeRows
from icestream.operators.dataflow.steps import (
    JoinMany,
    Map,
    Merge,
    Receive,
    Regroup,
    Stateful,
    Step,
    TimedOperator,
    consumers,
)
from icestream.operators.multi_join.spec import MultiJoinSpec
from icestream.operators.temporal.changes import PromptOperator
from icestream.state.synopses.options import lifetimes
from icestream.state.synopses.spec import Synopsis
from icestream.state.versions import BASE


@dataclass(frozen=True)
class ComponentSpec:
    """The steps of a component."""

    steps: tuple[Step, ...]
    #: what becomes a result row of the changes of each view
    rows_of: tuple[LifetimeRows, ...]
    #: partitions of joins, and the part of the rows that is traced to them
    partitions: int = 1
    sample: float = 1.0

    @property
    def lifetimes(self) -> tuple[str, ...]:
        """Return the lifetime classes of a shard's segments."""
        kept = lifetimes(len(self.groupings)) if self.join is None else (JOINED,)
        return (*kept, BASE)

    @cached_property
    def join(self) -> MultiJoinSpec | None:
        """Return the join that may defer results, if this is its component."""
        return next((step.spec for step in self.steps if isinstance(step, JoinMany)), None)

    @cached_property
    def groupings(self) -> tuple[tuple[Synopsis, ...], ...]:
        """Return the synopses of each grouping."""
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
        """Return who takes the changes of each step."""
        return consumers(self.steps)

    @cached_property
    def timed(self) -> frozenset[int]:
        """Return the steps whose changes, as they are or mapped, only go where time orders them."""
        found: set[int] = set()
        for number, step in reversed(list(enumerate(self.steps))):
            after = [each for each, _ in self.consumers[number]]
            onward = isinstance(step, Receive | Map | Merge) and bool(after)
            if onward and all(each in found or self._orders_by_time(each) for each in after):
                found.add(number)
        return frozenset(found)

    def _orders_by_time(self, number: int) -> bool:
        step = self.steps[number]
        return isinstance(step, Stateful) and isinstance(step.operator, TimedOperator)

    @cached_property
    def begins(self) -> bool:
        """Tell whether a grouping begins inside another."""
        return any(isinstance(step, Regroup) for step in self.steps)

    @cached_property
    def arrivals(self) -> tuple[Counter[int] | None, ...]:
        """Return on how many ways the changes of each received chunk come to each step.

        By step that receives them; None if more may come later, from operators that say something
        at a watermark. Where a grouping begins, changes are collected, so that all ways are one.
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
            leaving.append(None if came is None else _left(step, came))
        return tuple(found)

    @cached_property
    def behind(self) -> tuple[frozenset[int], ...]:
        """Return for each step the steps that its changes lead to."""
        found: list[frozenset[int]] = [frozenset()] * len(self.steps)
        for number in reversed(range(len(self.steps))):
            after = [step for step, _ in self.consumers[number]]
            found[number] = frozenset(after).union(*(found[step] for step in after))
        return tuple(found)


def _left(step: Step, came: Counter[int]) -> Counter[int] | None:
    """Return on how many ways changes leave a step that come to it on some."""
    match step:
        case Regroup():
            return Counter(dict.fromkeys(came, 1))
        case JoinMany():
            return None
        case Stateful():
            operator = step.operator
            if not (isinstance(operator, PromptOperator) and operator.is_prompt):
                return None
            return came if operator.tells_at_once else came + came
    return came
