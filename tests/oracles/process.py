"""The obvious user-defined operator, a dictionary for each group, and one that must equal it.

Idea: a row of input is a command for one of the group's state variables, and the output is what it
reads there. `Scripted` executes it with the state of an operator, `simulate` with Python's own
containers; both must read the same, whatever the chunks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icestream.core.times import INFINITY, Micros
from icestream.operators.bad_rows import BadRows
from icestream.operators.lifetimes.changes import LifetimeOperator, changes_of
from icestream.operators.process.declarations import ObjectState
from icestream.operators.process.per_group import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimedRows,
    TimerValues,
)
from icestream.operators.process.values import Row
from icestream.state.groups.spec import Groups

PAYLOAD = pa.schema([("user", pa.int64()), ("op", pa.string()), ("a", pa.int64())])
#: commands of a row
OPS = (
    *("count", "forget", "append", "list", "put list", "empty"),
    *("put", "get", "remove", "items", "wipe", "insert", "delete", "table"),
    *("learn", "teach", "object", "unlearn", "timer", "untimer", "timers"),
)


@dataclass(frozen=True)
class InputRow:
    """A row of input."""

    user: int
    time: Micros
    op: str
    a: int


#: chunks of a batch, and the watermark after it
Batch = tuple[Sequence[Sequence[InputRow]], Micros]


def changes_of_steps(steps: Sequence[InputRow]) -> pa.RecordBatch:
    """Return rows of input as changes; a group's id is its number."""
    rows = [{"user": step.user, "op": step.op, "a": step.a} for step in steps]
    times = np.array([step.time for step in steps], dtype=np.int64)
    users = np.array([step.user for step in steps], dtype=np.uint64)
    payload = pa.RecordBatch.from_pylist(rows, schema=PAYLOAD)
    return changes_of(payload, times, times + 1, np.ones_like(times), users, users)


def accepted(made: Iterable[pa.RecordBatch | BadRows]) -> list[pa.RecordBatch]:
    """Return what an operator made; raise if it refuses a row, as a query does by default."""
    found = []
    for each in made:
        if isinstance(each, BadRows):
            raise each.error
        found.append(each)
    return found


def counted(changes: Iterable[pa.RecordBatch]) -> Counter[tuple[Any, ...]]:
    """Return changes as a bag."""
    return Counter(
        tuple(row.values())
        for batch in accepted(changes)
        if batch is not None
        for row in batch.to_pylist()
    )


def run(
    operator: LifetimeOperator, groups: Groups, batches: Iterable[Batch], watermark: Micros = 0
) -> Iterator[pa.RecordBatch]:
    """Push batches through an operator."""
    for chunks, after in batches:
        for chunk in chunks:
            groups.begin(watermark)
            yield from operator.on_changes(0, changes_of_steps(chunk), groups, watermark)
        watermark = after
        yield from operator.on_watermark(groups, watermark)


def written(known: dict[int, int]) -> bytes:
    """Turn an object into bytes."""
    return ";".join(f"{key}={value}" for key, value in sorted(known.items())).encode()


def understood(data: bytes) -> dict[int, int]:
    """Turn bytes into an object."""
    pairs = (part.split("=") for part in data.decode().split(";") if part)
    return {int(key): int(value) for key, value in pairs}


def difference(old: dict[int, int], new: dict[int, int]) -> bytes | None:
    """Return what changed, or None if something was removed."""
    if old.keys() - new.keys():
        return None
    return written({key: value for key, value in new.items() if old.get(key) != value})


def changed(old: dict[int, int], change: bytes) -> dict[int, int]:
    """Change an object in place."""
    old.update(understood(change))
    return old


class Scripted(StatefulProcessor):
    """Executes the commands in rows."""

    output = "user long, what string"

    def __init__(self, ttl_ms: int | None = None) -> None:
        """Set how long rows live; None means for ever."""
        self._ttl_ms = ttl_ms

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare one variable of each kind."""
        ttl = self._ttl_ms
        self._seen = handle.getValueState("seen", "n long, total double", ttl)
        self._recent = handle.getListState("recent", "a long", ttl)
        self._flags = handle.getMapState("flags", "code double", "times long", ttl)
        self._things = handle.getTableState("things", "x long", ttl)
        how = ObjectState(written, understood, difference, changed, initial=dict)
        self._known = handle.getObjectState("known", how)

    def handleInputRows(  # noqa: N802
        self, key: Row, rows: TimedRows, timers: TimerValues
    ) -> Iterator[Any]:
        """Execute the command of each row and emit what it reads."""
        for time, op, a in zip(rows.times, rows["op"], rows["a"], strict=True):
            timed = op in {"timer", "untimer", "timers"}
            seen = self._timed(timers, op, time + a) if timed else self._kept(op, a)
            yield {"user": key[0], "what": f"{op} {seen}", "__le": time}

    def handleExpiredTimer(  # noqa: N802
        self, key: Row, timers: TimerValues, expired: ExpiredTimerInfo
    ) -> Iterator[Any]:
        """Read the value, append to the list, and perhaps set another timer."""
        instant = expired.instant
        yield {"user": key[0], "what": f"fired {instant} {self._seen.get()}"}
        self._recent.appendValue((instant,))
        if instant % 2 == 0:
            timers.set(instant + 3)
        if instant % 5 == 0:
            self._seen.clear()

    def _timed(self, timers: TimerValues, op: str, instant: Micros) -> Any:
        match op:
            case "timer":
                return timers.set(instant)
            case "untimer":
                return timers.delete(instant)
        return timers.list()

    def _kept(self, op: str, a: int) -> Any:  # noqa: PLR0911, PLR0912
        match op:
            case "count":
                n, total = self._seen.get() or (0, 0.0)
                self._seen.update((n + 1, total + a))
                return (n + 1, total + a)
            case "forget":
                return self._seen.clear()
            case "append":
                return self._recent.appendValue((a,))
            case "list":
                return list(self._recent.get())
            case "put list":
                return self._recent.put([(a,), (a + 1,)])
            case "empty":
                return self._recent.clear()
            case "put":
                return self._flags.updateValue((a % 3,), (a,))
            case "get":
                return self._flags.getValue((a % 3,))
            case "remove":
                return self._flags.removeKey((a % 3,))
            case "items":
                return list(self._flags.iterator())
            case "wipe":
                return self._flags.clear()
            case "insert":
                return self._things.append({"x": a})
            case "delete":
                return self._things.delete(pc.less(self._things.all().column("x"), a))
            case "table":
                return self._things.all().column("x").to_pylist()
            case "learn":
                return self._known.update({**self._known.get(), a % 5: a})
            case "teach":
                return self._known.appendDelta(written({a % 5: a}))
            case "object":
                return sorted(self._known.get().items())
            case "unlearn":
                return self._known.clear()
        return None


@dataclass
class _Plain:
    """The state of one group; values that expire come with their expiry."""

    seen: tuple[Row, Micros] | None = None
    recent: list[tuple[Row, Micros]] = field(default_factory=list)
    flags: dict[float, tuple[Row, Micros]] = field(default_factory=dict)
    things: list[tuple[int, Micros]] = field(default_factory=list)
    known: dict[int, int] = field(default_factory=dict)
    timers: set[Micros] = field(default_factory=set)

    def purge(self, watermark: Micros) -> None:
        """Remove what has expired at the watermark."""
        if self.seen is not None and self.seen[1] <= watermark:
            self.seen = None
        self.recent = [entry for entry in self.recent if entry[1] > watermark]
        self.flags = {key: entry for key, entry in self.flags.items() if entry[1] > watermark}
        self.things = [entry for entry in self.things if entry[1] > watermark]

    def do(self, step: InputRow, until: Micros, watermark: Micros) -> Any:  # noqa: PLR0911, PLR0912
        """Execute the command of a row and return what it reads."""
        a, code = step.a, float(step.a % 3)
        match step.op:
            case "count":
                n, total = (0, 0.0) if self.seen is None else self.seen[0]
                self.seen = ((n + 1, total + a), until)
                return self.seen[0]
            case "forget":
                self.seen = None
            case "append":
                self.recent.append(((a,), until))
            case "list":
                return [row for row, _ in self.recent]
            case "put list":
                self.recent = [((a,), until), ((a + 1,), until)]
            case "empty":
                self.recent = []
            case "put":
                covered = self.flags.pop(code, (None, 0))[1]
                self.flags[code] = ((a,), max(until, covered))
            case "get":
                return self.flags[code][0] if code in self.flags else None
            case "remove":
                self.flags.pop(code, None)
            case "items":
                return [((key,), row) for key, (row, _) in self.flags.items()]
            case "wipe":
                self.flags = {}
            case "insert":
                self.things.append((a, until))
            case "delete":
                before = len(self.things)
                self.things = [entry for entry in self.things if entry[0] >= a]
                return before - len(self.things)
            case "table":
                return [x for x, _ in self.things]
            case "learn" | "teach":
                self.known[a % 5] = a
            case "object":
                return sorted(self.known.items())
            case "unlearn":
                self.known = {}
            case "timer":
                self.timers.add(max(step.time + a, watermark))
            case "untimer":
                self.timers.discard(max(step.time + a, watermark))
            case "timers":
                return sorted(self.timers)
        return None


def simulate(
    batches: Iterable[Batch], ttl: Micros | None = None, watermark: Micros = 0
) -> Counter[tuple[Any, ...]]:
    """Return the expected output of `Scripted` for batches, as a bag of changes."""
    made: Counter[tuple[Any, ...]] = Counter()
    groups: dict[int, _Plain] = {}
    for chunks, after in batches:
        for chunk in chunks:
            for user in {step.user for step in chunk}:
                steps = sorted((s for s in chunk if s.user == user), key=lambda step: step.time)
                group = groups.setdefault(user, _Plain())
                group.purge(watermark)
                until = INFINITY if ttl is None else steps[-1].time + ttl
                for step in steps:
                    what = f"{step.op} {group.do(step, until, watermark)}"
                    made[step.time, step.time + 1, 1, user, user, user, what] += 1
        watermark = after
        for user, group in groups.items():
            _fire(user, group, ttl, watermark, made)
    return made


def _fire(
    user: int,
    group: _Plain,
    ttl: Micros | None,
    watermark: Micros,
    made: Counter[tuple[Any, ...]],
) -> None:
    if min(group.timers, default=INFINITY) > watermark:
        return
    group.purge(watermark)
    while (instant := min(group.timers, default=INFINITY)) <= watermark:
        group.timers.discard(instant)
        what = f"fired {instant} {group.seen[0] if group.seen else None}"
        made[instant, instant + 1, 1, user, user, user, what] += 1
        group.recent.append(((instant,), INFINITY if ttl is None else instant + ttl))
        if instant % 2 == 0:
            group.timers.add(instant + 3)
        if instant % 5 == 0:
            group.seen = None
