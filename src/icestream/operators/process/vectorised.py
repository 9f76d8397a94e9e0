"""User code called with many groups at a time: columns in, columns out.

Idea: a processor declares its state as data and is called once for each portion of a chunk, with
all events sorted by group and time. State is columns aligned with the groups, so numpy or Arrow
does the work over whole columns and Python code runs a few times, not once for each group.

    class Totals(VectorisedProcessor):
        state = {"totals": ValueState("n long, total double")}
        output = "user long, n long, total double"

        def process(self, batch, state):
            old = state.totals.numpy()
            n = old["n"] + batch.sizes
            total = old["total"] + batch.reduce(np.add, "amount")
            state.totals.set([n, total])
            return [batch.keys["user"], n, total]

Invariants:
1. It gives the same results as the interface for one group
   (`test_parity_both_forms_give_equal_results`).
2. Output belongs to the group it was computed for (`test_output_belongs_to_its_group`).

Cost: a few microseconds for each Arrow call, 0.1 to 1 us for each row.

Limits: object state is available only in the interface for one group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icestream.core.arrays import Ints
from icestream.core.errors import DefinitionError
from icestream.core.times import Micros
from icestream.operators.process.column_state import ColumnVariable, PortionContext, chosen_groups
from icestream.operators.process.declarations import Declared, undefined
from icestream.operators.process.grouping import GroupRanges
from icestream.operators.process.timers import DELETE, SET, TimerTable, too_early, unhandled

#: output column with the group number of each row
GROUP = "__group"


class ColumnTimers:
    """The timers of the groups of a batch."""

    def __init__(
        self, timers: TimerTable | None, stage: PortionContext, firing: Ints | None
    ) -> None:
        self._table = timers
        self._stage = stage
        self._firing = firing

    def set(self, groups: Any, instants: Any) -> None:
        """Set timers that fire when the watermark reaches an instant; at once if it has.

        `groups` is a mask or numbers; `instants` has one for each of these groups, or one for all.
        """
        if self._table is None:
            raise unhandled()
        numbers, at = self._given(groups, instants)
        if self._firing is not None and (at <= self._firing[numbers]).any():
            wrong = int(np.argmax(at <= self._firing[numbers]))
            raise too_early(int(at[wrong]), int(self._firing[numbers[wrong]]))
        self._table.note(self._stage.focus[numbers], at, SET)

    def delete(self, groups: Any, instants: Any) -> None:
        if self._table is not None:
            numbers, at = self._given(groups, instants)
            self._table.note(self._stage.focus[numbers], at, DELETE)

    def list(self) -> tuple[Ints, Ints]:
        """Return group and instant of all timers of the batch's groups, sorted in this order."""
        if self._table is None:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        owners, at = self._table.pending()
        numbers = self._stage.numbers(owners)
        return numbers[numbers >= 0], at[numbers >= 0]

    def _given(self, groups: Any, instants: Any) -> tuple[Ints, Ints]:
        numbers = chosen_groups(groups, len(self._stage.focus))
        at = np.asarray(instants, dtype=np.int64)
        if at.ndim and len(at) != len(numbers):
            msg = f"{len(at)} instants were given for {len(numbers)} groups"
            raise DefinitionError(msg)
        return numbers, np.broadcast_to(at, numbers.shape)


@dataclass(frozen=True)
class DueBatch:
    """Groups whose timers fire, one timer per group."""

    #: key columns, a row for each group
    keys: pa.RecordBatch
    #: instant of the timer of each group, in microseconds
    times: Ints
    timers: ColumnTimers
    #: no event with an earlier time will arrive, in microseconds
    watermark: Micros

    def __len__(self) -> int:
        return len(self.times)

    @property
    def group(self) -> Ints:
        return np.arange(len(self.times))


@dataclass(frozen=True)
class GroupedBatch(GroupRanges):
    """Events sorted by group, then by time."""

    events: pa.RecordBatch
    #: number of the group of each event
    group: Ints
    #: first event of each group, and the number of events
    starts: Ints
    #: key columns, a row for each group
    keys: pa.RecordBatch
    #: start and (exclusive) end of each event; its count, negative for a retraction
    times: Ints
    ends: Ints
    diffs: Ints
    timers: ColumnTimers
    #: no event with an earlier time will arrive, in microseconds
    watermark: Micros

    @property
    def last(self) -> Ints:
        """Return the position of the last event of each group."""
        return self.starts[1:] - 1

    def column(self, name: str) -> npt.NDArray[Any]:
        found: npt.NDArray[Any] = self.events.column(name).to_numpy(zero_copy_only=False)
        return found


class State:
    """The variables of a processor, as attributes."""

    def __init__(self, variables: Mapping[str, ColumnVariable]) -> None:
        self._variables = variables

    def __getattr__(self, name: str) -> Any:
        try:
            return self._variables[name]
        except KeyError:
            msg = f"there is no state {name!r}, only {list(self._variables)}: declare it"
            raise AttributeError(msg) from None


class VectorisedProcessor:
    """Base class for user code that handles rows and timers of many groups at a time.

    Examples:
        >>> class Visits(ice.VectorisedProcessor):
        ...     state = {"seen": ice.ValueState("visits long")}
        ...     output = "agent string, visits long"
        ...
        ...     def process(self, batch, state):
        ...         visits = state.seen.numpy()["visits"] + batch.sizes
        ...         state.seen.set([visits])
        ...         return [batch.keys["agent"], visits]
        ...
        >>> events.groupApply("agent", lambda agent: agent.process(Visits())).columns
        ['agent', 'visits']
    """

    #: the state variables of each group, by name
    state: ClassVar[Mapping[str, Declared]] = {}
    #: columns of the output, unless they are passed along with the processor
    output: ClassVar[pa.Schema | str | None] = None
    #: what a row of output belongs to if it has no `__group`: a "group" or an "event" of the batch
    emits: ClassVar[str] = "group"
    #: whether it handles retractions: see `diffs`
    handles_changes: ClassVar[bool] = False

    def process(self, batch: GroupedBatch, state: State) -> Any:
        """Handle events of groups; return output columns, or None."""
        raise undefined(self, "process")

    def on_timers(self, batch: DueBatch, state: State) -> Any:
        """Handle groups whose timers fire; return output columns, or None."""
        raise undefined(self, "on_timers")
