"""What a query says about joins whose state does not fit: when they spill, how much, and what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypedDict

from icestream.core.errors import DefinitionError
from icestream.operators.multi_join.spill_strategies import GLOBAL_OUTPUT_AHEAD, STRATEGIES
from icestream.plan.nodes.queries import KEY_GROUPS

#: key groups that a plan has at least, so that shards share the load
LEAST_GROUPS = 32
#: how the order in which streams meet is chosen: by what joins keep, or as they were written
CHEAPEST, WRITTEN = "cheapest", "written"
ORDERS = (CHEAPEST, WRITTEN)


class SpillingOptions(TypedDict, total=False):
    """What a join may say about spilling."""

    strategy: str
    threshold: float
    amount: float
    partitions: int
    sample: float
    order: str


@dataclass(frozen=True)
class Spilling:
    """How the joins of a plan give up memory."""

    strategy: str = GLOBAL_OUTPUT_AHEAD
    #: part of the memory that resident rows may take before some are spilled
    threshold: float = 0.8
    #: part of the resident rows that is spilled at once
    amount: float = 0.3
    #: partition groups of each join
    partitions: int = KEY_GROUPS
    #: part of the rows that are traced to the partitions they come from
    sample: float = 0.1
    #: `cheapest` to let streams meet in the order that keeps the least, or as it was `written`
    order: str = CHEAPEST

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        if self.strategy not in STRATEGIES:
            msg = f"strategy must be one of {', '.join(STRATEGIES)}; got {self.strategy!r}"
            raise DefinitionError(msg)
        if self.order not in ORDERS:
            msg = f"order must be one of {', '.join(ORDERS)}; got {self.order!r}"
            raise DefinitionError(msg)
        for name in ("threshold", "amount", "sample"):
            value = getattr(self, name)
            if not 0 < value <= 1:
                msg = f"{name} is a part of a whole, above 0 and at most 1; got {value}"
                raise DefinitionError(msg)
        if self.key_groups < LEAST_GROUPS:
            msg = (
                f"partitions must be a multiple of a number from {LEAST_GROUPS} to {KEY_GROUPS}, "
                f"for example 256 or 300; got {self.partitions}"
            )
            raise DefinitionError(msg)

    @property
    def key_groups(self) -> int:
        """Return the key groups of the plan: each is cut into partitions of equal width."""
        most = range(min(self.partitions, KEY_GROUPS), 0, -1)
        return next((groups for groups in most if self.partitions % groups == 0), 0)

    def describe(self) -> dict[str, Any]:
        """Return what state depends on, as JSON for the checkpoint; the rest may change later."""
        return {"partitions": self.partitions}


def defers(on_pressure: str, options: Mapping[str, object]) -> bool:
    """Tell whether the results of a join may come later, or say what is wrong."""
    if on_pressure not in ("defer", "fetch"):
        msg = f"onPressure must be 'defer' or 'fetch'; got {on_pressure!r}"
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
            f"{', '.join(map(repr, sorted(options)))} belongs to a join with onPressure='defer': "
            "leave it out, or say that"
        )
        raise DefinitionError(msg)
    return on_pressure == "defer"
