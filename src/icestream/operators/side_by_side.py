"""Several operators in one shard: they share one version, one log and one arena.

Idea: kinds of windows that share no state still share a shard. Each operator receives a shard that
looks like its own: the arena's arrays and header under a prefix, lifetime classes under a prefix,
and a part of the quota. A version runs the operators one after the other, so their segments are
written in the order of their ordinals. All operators take snapshots in the same version, so one
number marks where the shard's history begins.

Invariants:
1. Operators side by side emit what each emits alone
   (`test_oracle_kinds_side_by_side_equal_kinds_alone`), also restored
   (`test_crash_restored_kinds_emit_the_same_rows`).
2. Together they stay inside the quota of the shard (`test_bounded_kinds_share_the_quota`).

Cost: that of the operators; one 16th of the quota stays free for the list of segments.

Limits: parts of the quota are fixed and equal for every kind of windows; an operator cannot use
what another one leaves free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from icestream.core.times import Micros
from icestream.operators.bad_rows import BadRows
from icestream.operators.protocol import Emitted, Inputs, Operator, PastVersion, Shard
from icestream.state.log.format import SegmentInfo
from icestream.state.log.reader import SegmentReader
from icestream.state.log.writer import SegmentWriter
from icestream.state.snapshot_schedule import in_step
from icestream.state.versions.commits import PART

#: the share of the quota that belongs to no operator, as 1/x
SPARE = 16


@dataclass(frozen=True)
class Side:
    """One of the operators."""

    opens: Callable[[Shard], Operator]
    #: its lifetime classes, in the order of their ordinals
    lifetimes: tuple[str, ...]
    #: converts what it emits into rows of views
    emitted: Callable[[Iterator[Any]], Iterator[Emitted]]
    #: number of window kinds that it needs memory for
    windows: int = 1


@dataclass(frozen=True)
class ViewRows:
    """Assigns emitted rows to views and selects the columns of each view."""

    #: number and columns of each view
    views: tuple[tuple[int, pa.Schema], ...]
    #: for each view, which rows it shows and which of their columns; empty if the operator emits
    #: rows in the shape of its views
    shown: tuple[tuple[int, tuple[int, ...]], ...]
    #: whether the operator emits pairs of (number, rows)
    numbered: bool

    def __call__(self, rows: Iterator[Any]) -> Iterator[Emitted]:
        if not self.shown:
            yield from ((self.views[view][0], batch) for view, batch in rows)
            return
        for emitted in rows:
            own, batch = emitted if self.numbered else (0, emitted)
            if isinstance(batch, BadRows):
                yield 0, batch
                continue
            for (number, schema), (whose, shown) in zip(self.views, self.shown, strict=True):
                if whose == own:
                    columns = [batch.column(place) for place in shown]
                    yield number, pa.RecordBatch.from_arrays(columns, schema=schema)


def lifetimes_of(lifetimes: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return the lifetime classes of operators side by side, given those of each."""
    return tuple(
        f"{_scope(number)}{lifetime}" for number, own in enumerate(lifetimes) for lifetime in own
    )


class SideBySide:
    """Operators that share a shard."""

    def __init__(self, sides: Sequence[Side], shard: Shard) -> None:
        total = shard.account.budget.total
        quota = (total - total // SPARE) // sum(side.windows for side in sides)
        self._sides = sides
        self._spaces = [
            _Space(shard, number, quota * side.windows) for number, side in enumerate(sides)
        ]
        self._operators = [
            side.opens(space) for side, space in zip(sides, self._spaces, strict=True)
        ]
        self._inputs: Sequence[Inputs] | None = None

    def on_batch(self, inputs: Sequence[Inputs]) -> None:
        self._inputs = inputs

    def on_watermark(self, watermark: Micros) -> Iterator[Emitted]:
        """Let each operator process its part of the batch and advance to the watermark."""
        in_step(space.arena.header for space in self._spaces)
        for number, (side, operator) in enumerate(zip(self._sides, self._operators, strict=True)):
            if self._inputs is not None:
                operator.on_batch(self._inputs[number])
            yield from side.emitted(operator.on_watermark(watermark))
        self._inputs = None

    @property
    def follows(self) -> bool:
        return all(getattr(operator, "follows", False) for operator in self._operators)

    def restore(self, history: Sequence[PastVersion]) -> None:
        for number, operator in enumerate(self._operators):
            operator.restore([_own(past, _scope(number)) for past in history])

    @property
    def took_snapshot(self) -> bool:
        return all(operator.took_snapshot for operator in self._operators)

    @property
    def released(self) -> tuple[int, ...]:
        return tuple(ordinal for operator in self._operators for ordinal in operator.released)

    @property
    def statistics(self) -> dict[str, Any]:
        sums: Counter[str] = Counter()
        for operator in self._operators:
            sums.update(operator.statistics)
        return dict(sums)


class _Space:
    """A shard as one of its operators sees it."""

    def __init__(self, shard: Shard, number: int, quota: int) -> None:
        self._shard = shard
        self._scope = _scope(number)
        budget = shard.account.budget.part(f"operator {number}", quota)
        self.log = shard.log
        self.arena = shard.arena.part(self._scope, budget.account("groups"))
        self.account = budget.account("buffers")

    def segment(self, lifetime: str) -> SegmentWriter:
        """Return the open segment of a lifetime class, created on first use."""
        return self._shard.segment(self._scope + lifetime)

    def seal(self, lifetime: str) -> SegmentInfo | None:
        """Finish the open segment of a lifetime class and make it readable."""
        return self._shard.seal(self._scope + lifetime)

    def reader(self, info: SegmentInfo) -> SegmentReader:
        return self._shard.reader(info)


def _scope(number: int) -> str:
    return f"{number}{PART}"


def _own(past: PastVersion, scope: str) -> PastVersion:
    """Return what one operator wrote in a past version, under its own names."""
    segments = [
        (lifetime.removeprefix(scope), info)
        for lifetime, info in past.segments
        if lifetime.startswith(scope)
    ]
    return replace(past, segments=segments)
