"""User code called group by group, as Spark's `transformWithStateInPandas` calls it.

Idea: a processor declares its state in `init`. It is then called once for each group of a chunk,
with that group's rows in time order, and once for each of its timers. State, rows and keys are
decoded for the whole chunk at once; each call receives slices.

    class Totals(StatefulProcessor):
        def init(self, handle):
            self.seen = handle.getValueState("seen", "n long, total double")

        def handleInputRows(self, key, rows, timers):
            n, total = self.seen.get() or (0, 0.0)
            n, total = n + len(rows), total + sum(rows["amount"])
            self.seen.update((n, total))
            yield {"user": key[0], "n": n, "total": total}

Invariants:
1. A processor that handles rows one by one gives the same answers whatever the chunks, and after a
   restart between any two (`test_oracle_per_group_state_is_a_dictionary`).
2. An error of user code names the operator and the key (`test_errors_name_the_operator_and_key`).

Cost: a call for each group of a chunk; 5 to 10 us with a value read and written and a row emitted.

Limits: attributes that user code sets on itself are not state: they may be lost at any time.
"""
# ruff: noqa: N802, N803 - PySpark's names

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import pyarrow as pa

from icestream.core.arrays import Ints
from icestream.core.errors import DefinitionError
from icestream.core.times import Micros
from icestream.operators.process.declarations import (
    Declared,
    ListState,
    MapState,
    ObjectState,
    TableState,
    ValueState,
    undefined,
)
from icestream.operators.process.group_map import GroupMap
from icestream.operators.process.group_object import GroupObject
from icestream.operators.process.group_state import (
    GroupContext,
    GroupList,
    GroupTable,
    GroupValue,
    GroupVariable,
)
from icestream.operators.process.timers import GroupTimers
from icestream.operators.process.values import Row, decoded

Variable = TypeVar("Variable", bound=GroupVariable)

#: what a processor returns: rows as dicts or Arrow batches, or nothing
Made = Iterable[Any] | None


class TimerValues(GroupTimers):
    """Time as a processor sees it, and the timers of the group it is called for.

    Plain names are in microseconds, Spark's names in milliseconds.
    """

    def getCurrentWatermarkInMs(self) -> int:
        return self.watermark // 1000


class ExpiredTimerInfo:
    """The timer that fired."""

    def __init__(self, instant: Micros) -> None:
        #: microseconds
        self.instant = instant

    def getExpiryTimeInMs(self) -> int:
        return self.instant // 1000


class StatefulProcessorHandle:
    """Lets a processor declare its state."""

    def __init__(self, scene: GroupContext, timers: TimerValues) -> None:
        self._scene = scene
        self._timers = timers
        self._open = True
        #: by name: what was declared, and the variable
        self.declared: dict[str, Declared] = {}
        self.variables: list[GroupVariable] = []

    def getValueState(
        self, stateName: str, schema: pa.Schema | str, ttlDurationMs: int | None = None
    ) -> GroupValue:
        """Declare a state of at most one row."""
        return self._declare(stateName, ValueState(schema, _micros(ttlDurationMs)), GroupValue)

    def getListState(
        self, stateName: str, schema: pa.Schema | str, ttlDurationMs: int | None = None
    ) -> GroupList:
        """Declare a list of rows, in the order in which they are appended."""
        return self._declare(stateName, ListState(schema, _micros(ttlDurationMs)), GroupList)

    def getMapState(
        self,
        stateName: str,
        userKeySchema: pa.Schema | str,
        valueSchema: pa.Schema | str,
        ttlDurationMs: int | None = None,
    ) -> GroupMap:
        """Declare a map: rows found by a key."""
        declared = MapState(userKeySchema, valueSchema, _micros(ttlDurationMs))
        return self._declare(stateName, declared, GroupMap)

    def getTableState(
        self, stateName: str, schema: pa.Schema | str, ttlDurationMs: int | None = None
    ) -> GroupTable:
        """Declare a table: rows as Arrow batches."""
        return self._declare(stateName, TableState(schema, _micros(ttlDurationMs)), GroupTable)

    def getObjectState(self, stateName: str, how: ObjectState) -> GroupObject:
        return self._declare(stateName, how, GroupObject)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Set a timer that fires when the watermark reaches an instant, in milliseconds."""
        self._timers.set(expiryTimestampMs * 1000)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """Delete the timer at an instant, in milliseconds, if it is set."""
        self._timers.delete(expiryTimestampMs * 1000)

    def listTimers(self) -> Iterator[int]:
        """Return the instants of the group's timers, in milliseconds."""
        return (instant // 1000 for instant in self._timers.list())

    def close(self) -> None:
        """Reject further declarations."""
        self._open = False

    def _declare(
        self,
        name: str,
        declared: Declared,
        variable: Callable[[GroupContext, int, str, Any], Variable],
    ) -> Variable:
        if not self._open:
            msg = f"state {name!r} is declared too late: declare all state in init"
            raise DefinitionError(msg)
        if name in self.declared:
            msg = f"two state variables are called {name!r}: rename one"
            raise DefinitionError(msg)
        declared.check(name)
        made = variable(self._scene, len(self.variables), name, declared)
        self.declared[name] = declared
        self.variables.append(made)
        return made


def _micros(milliseconds: int | None) -> Micros | None:
    return None if milliseconds is None else milliseconds * 1000


class StatefulProcessor:
    """Base class for user code that handles rows and timers of one group at a time.

    Examples:
        >>> class Visits(ice.StatefulProcessor):
        ...     output = "agent string, visits long"
        ...
        ...     def init(self, handle):
        ...         self.seen = handle.getValueState("seen", "visits long")
        ...
        ...     def handleInputRows(self, key, rows, timers):
        ...         visits = (self.seen.get() or (0,))[0] + len(rows)
        ...         self.seen.update((visits,))
        ...         yield {"agent": key[0], "visits": visits}
        ...
        >>> events.groupApply("agent", lambda agent: agent.process(Visits())).columns
        ['agent', 'visits']
    """

    #: whether it handles retractions; see the `diffs` of rows
    handles_changes = False
    #: columns of the output, unless they are passed along with the processor
    output: pa.Schema | str | None = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        raise undefined(self, "init")

    def handleInputRows(self, key: Row, rows: TimedRows, timers: TimerValues) -> Made:
        """Handle rows of a group, in time order; yield dicts or batches."""
        raise undefined(self, "handleInputRows")

    def handleExpiredTimer(self, key: Row, timers: TimerValues, expired: ExpiredTimerInfo) -> Made:
        """Handle a timer that the watermark has reached; yield dicts or batches."""
        raise undefined(self, "handleExpiredTimer")


class Decoded:
    """Events whose columns are converted to Python values once, on first access."""

    def __init__(self, events: pa.RecordBatch, times: Ints, ends: Ints, diffs: Ints) -> None:
        self.events = events
        self.arrays = {"times": times, "ends": ends, "diffs": diffs}
        self._lists: dict[str, list[Any]] = {}

    def column(self, name: str) -> list[Any]:
        found = self._lists.get(name)
        if found is None:
            place = self.events.schema.get_field_index(name)
            if place < 0:
                msg = f"rows have no column {name!r}, but {self.events.schema.names}"
                raise DefinitionError(msg)
            found = self._lists[name] = decoded(self.events.column(place))
        return found

    def head(self, name: str) -> list[int]:
        """Return times, ends or diffs of all events."""
        key = f"__{name}"
        found = self._lists.get(key)
        if found is None:
            found = self._lists[key] = self.arrays[name].tolist()
        return found


class TimedRows:
    """Rows of one group, in time order."""

    __slots__ = ("_all", "_first", "_last")

    def __init__(self, everything: Decoded, first: int, last: int) -> None:
        self._all = everything
        self._first = first
        self._last = last

    def __len__(self) -> int:
        return self._last - self._first

    def __getitem__(self, name: str) -> list[Any]:
        return self._all.column(name)[self._first : self._last]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        names = self._all.events.schema.names
        columns = (self[name] for name in names)
        return (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))

    @property
    def batch(self) -> pa.RecordBatch:
        return self._all.events.slice(self._first, len(self))

    @property
    def times(self) -> list[Micros]:
        """Return the first instant of each event, in microseconds."""
        return self._all.head("times")[self._first : self._last]

    @property
    def ends(self) -> list[Micros]:
        """Return the exclusive end of each event, in microseconds."""
        return self._all.head("ends")[self._first : self._last]

    @property
    def diffs(self) -> list[int]:
        """Return the count of each event; a negative count retracts it."""
        return self._all.head("diffs")[self._first : self._last]
