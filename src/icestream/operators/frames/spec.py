"""What a window aggregate over a frame computes, with the types of its inputs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from icestream.core.errors import DefinitionError
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.folding.fields import Layout
from icestream.plan.windows.frame import GROUPING_ID, Frame


@dataclass(frozen=True)
class FrameSpec:
    """What a frame computes, with the types of its inputs."""

    frame: Frame
    aggregates: tuple[Aggregate, ...]
    keys: pa.Schema
    inputs: pa.Schema
    #: type of the user's time column, and of `time` in the results
    time: pa.DataType

    def __post_init__(self) -> None:
        """Reject aggregates and groupings that frames cannot compute."""
        if self.frame.in_one_shard and GROUPING_ID in self.keys.names:
            msg = (
                "grouping sets are not available over rows of the whole stream: start a query for "
                "each grouping, or let each group count its own rows with partitionBy"
            )
            raise DefinitionError(msg)
        for each in self.aggregates:
            if each.is_object:
                msg = (
                    f"{each.function} (as {each.alias!r}) is not available over windows that move "
                    "with events: give the window a time slide, as in window(range, slide)"
                )
                raise DefinitionError(msg)

    @cached_property
    def types(self) -> dict[str, pa.DataType]:
        """Return the type of each input column."""
        return {field.name: field.type for field in self.inputs}

    @cached_property
    def layout(self) -> Layout:
        """Return the fields that all aggregates need together."""
        return Layout.of(field for each in self.aggregates for field in each.fields(self.types))
