"""What a window aggregate over a frame computes, with the types of its inputs."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from icestream.core.errors import DefinitionError
from icestream.operators.aggregates.aggregate import AggregateSpec
from icestream.plan.windows.frame import GROUPING_ID, Frame


@dataclass(frozen=True)
class FrameSpec(AggregateSpec):
    """What a frame computes, with the types of its inputs."""

    frame: Frame
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
        self.refuse_objects(
            "windows that move with events: give the window a time slide, as in "
            "window(range, slide)"
        )
