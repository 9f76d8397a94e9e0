"""The windows of one shard, as a task runs them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from icestream.core.times import Micros
from icestream.operators.folding.fields import Layout
from icestream.operators.grid.composed_windows import Tiled
from icestream.operators.grid.operator import PANES
from icestream.operators.grid.refolding import RawEvents
from icestream.operators.protocol import Emitted, Operator, Shard
from icestream.plan.grid import lower
from icestream.plan.grid.parts import PlanPart, parts_of
from icestream.plan.nodes.queries import Plan
from icestream.runtime.exchange.parcels import NO_FIELDS, ParcelReader, Parcels
from icestream.runtime.version.task import ShardWork


@dataclass(frozen=True)
class WindowShard(ShardWork):
    """The windows of one shard."""

    plan: Plan
    #: what the log stores for windows on a grid
    store: str = PANES
    #: windows that are composed of shorter ones
    tiled: tuple[Tiled, ...] = ()
    #: reader of stored events, for fields that are folded again
    events: tuple[RawEvents, int] | None = None
    #: the latest event, if the version closes every window that has one
    flushed: Micros | None = None
    #: first ordinals of versions that changed the store
    switched: tuple[int, ...] = ()

    @cached_property
    def _lowered(self) -> lower.Lowered:
        """Return the operator of all shards of a task."""
        return lower.lowered(
            self.plan, self.store, self.tiled, self.events, self.flushed, self.switched
        )

    @cached_property
    def _layouts(self) -> list[Layout]:
        return [_layout(part) for part in parts_of(self.plan)]

    @property
    def lifetimes(self) -> tuple[str, ...]:
        return self._lowered.lifetimes

    @property
    def views(self) -> int:
        return len(self.plan.views)

    def operator(self, space: Shard) -> Operator:
        return self._lowered.operator(space)

    def inputs(self, reader: ParcelReader, shard: int) -> Any:
        """Return entries or tuples for each part of the plan; a single part gets its own."""
        found = [
            Parcels(reader, shard, layout, number) for number, layout in enumerate(self._layouts)
        ]
        return found if len(found) > 1 else found[0]

    def emitted(self, rows: Iterator[Any]) -> Iterator[Emitted]:
        return self._lowered.emitted(rows)


def _layout(part: PlanPart) -> Layout:
    """Return the fields of the entries that a part takes; none if it does not take entries."""
    return lower.window_spec(part.plan).layout if part.folded else NO_FIELDS
