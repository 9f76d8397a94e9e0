"""What a window aggregate over a frame computes, with the types of its inputs."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from icestream.core.errors import DefinitionError
from icestream.kernels.frames.moving import COUNT, DUE, MARK
from icestream.operators.aggregates.aggregate import AggregateSpec
from icestream.operators.object_aggregates.functions import needs_objects
from icestream.plan.windows.frame import GROUPING_ID, Frame, RowsSlide


@dataclass(frozen=True)
class FrameSpec(AggregateSpec):
    """What a frame computes, with the types of its inputs."""

    frame: Frame
    #: type of the user's time column, and of `time` in the results
    time: pa.DataType

    @property
    def extra_words(self) -> int:
        """Return the words of a group's row that the frame needs besides its fields."""
        if self.frame.rows is not None and self.frame.partition == "key":
            return DUE + 1
        if self.layout.suffix_words:
            return MARK + 1
        return COUNT + 1 if isinstance(self.frame.slide, RowsSlide) else 0

    def __post_init__(self) -> None:
        """Reject aggregates and groupings that frames cannot compute."""
        if self.frame.in_one_shard and GROUPING_ID in self.keys.names:
            msg = (
                "grouping sets are not available over rows of the whole stream: start a query for "
                "each grouping, or let each group count its own rows with partitionBy"
            )
            raise DefinitionError(msg)
        if self.frame.within_range:
            msg = (
                "rows within a range of time are those of one stream: use rows(n, partitionBy=..., "
                "range=...), or features with over(..., rows=..., range=...)"
            )
            raise DefinitionError(msg)
        for each in self.aggregates:
            if needs_objects(each, self.types):
                of = "" if each.is_object else f" of a {self.types[each.columns[0]]}"
                msg = (
                    f"{each.function}{of} (as {each.alias!r}) has no state of fixed size: over "
                    "windows that move with events it needs the events of one group, as in "
                    "window(range, slide='event') or rows(n, partitionBy=...), and one groupBy"
                )
                raise DefinitionError(msg)
