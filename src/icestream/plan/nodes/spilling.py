"""Options of joins whose state does not fit into memory: when they spill, how much, and what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypedDict

from icestream.core.errors import DefinitionError
from icestream.operators.multi_join.spill_strategies import GLOBAL_OUTPUT_AHEAD, STRATEGIES
from icestream.plan.nodes.queries import KEY_GROUPS

#: partitions of a join unless a query sets another number
PARTITIONS = 256
#: minimum number of key groups of a plan, so that shards share the load
LEAST_GROUPS = 32
#: how the join order is chosen: by the expected state, or as written
CHEAPEST, WRITTEN = "cheapest", "written"
ORDERS = (CHEAPEST, WRITTEN)


class SpillingOptions(TypedDict, total=False):
    """The options of a join for spilling."""

    strategy: str
    threshold: float
    amount: float
    partitions: int
    sample: float
    order: str


@dataclass(frozen=True)
class Spilling:
    """How the joins of a plan spill."""

    strategy: str = GLOBAL_OUTPUT_AHEAD
    #: fraction of the memory that resident rows may fill before some are spilled
    threshold: float = 0.8
    #: fraction of the resident rows that is spilled at once
    amount: float = 0.3
    #: partition groups of each join
    partitions: int = PARTITIONS
    #: fraction of the rows that are traced to the partitions they come from
    sample: float = 0.1
    #: `cheapest` for the join order with the least expected state, or `written`
    order: str = CHEAPEST

    def __post_init__(self) -> None:
        """Refuse invalid options."""
        if self.strategy not in STRATEGIES:
            msg = f"strategy must be one of {', '.join(STRATEGIES)}; got {self.strategy!r}"
            raise DefinitionError(msg)
        if self.order not in ORDERS:
            msg = f"order must be one of {', '.join(ORDERS)}; got {self.order!r}"
            raise DefinitionError(msg)
        for name in ("threshold", "amount", "sample"):
            value = getattr(self, name)
            if not 0 < value <= 1:
                msg = f"{name} must be a fraction above 0 and at most 1; got {value}"
                raise DefinitionError(msg)
        if self.key_groups < LEAST_GROUPS:
            msg = (
                f"partitions must be a multiple of a number from {LEAST_GROUPS} to {KEY_GROUPS}, "
                f"for example 256 or 300; got {self.partitions}"
            )
            raise DefinitionError(msg)

    @property
    def key_groups(self) -> int:
        """Return the key groups of the plan: each is divided into partitions of equal width."""
        most = range(min(self.partitions, KEY_GROUPS), 0, -1)
        return next((groups for groups in most if self.partitions % groups == 0), 0)

    def describe(self) -> dict[str, Any]:
        """Return the options that state depends on, as JSON; the others may change later."""
        return {"partitions": self.partitions}


def defers(on_pressure: str, options: Mapping[str, object], *, possible: bool) -> bool:
    """Return whether spilling joins may defer results; raise an error if an option is invalid.

    `auto` defers wherever that is possible: it takes less processor time than fetching
    (`bench.joins.join_life`).
    """
    if on_pressure not in ("auto", "defer", "fetch"):
        msg = f"onPressure must be 'auto', 'defer' or 'fetch'; got {on_pressure!r}"
        raise DefinitionError(msg)
    known = [each.name for each in fields(Spilling)]
    unknown = sorted(set(options) - set(known))
    if unknown:
        msg = (
            f"join has no {', '.join(map(repr, unknown))}; with onPressure='defer' it takes "
            f"{', '.join(known)}"
        )
        raise DefinitionError(msg)
    if options and on_pressure == "fetch":
        msg = (
            f"{', '.join(map(repr, sorted(options)))} is only for joins with onPressure='defer' or "
            "'auto': leave it out, or set onPressure"
        )
        raise DefinitionError(msg)
    return on_pressure == "defer" or (on_pressure == "auto" and possible)
