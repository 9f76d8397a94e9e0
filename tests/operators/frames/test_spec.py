"""What frames refuse to compute."""

from __future__ import annotations

import pyarrow as pa
import pytest

from icestream.core.errors import DefinitionError
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.frames.spec import FrameSpec
from icestream.plan.windows.frame import Frame

INPUTS = pa.schema([("n", pa.int64()), ("text", pa.string())])


def _spec(function: str, column: str) -> FrameSpec:
    aggregate = Aggregate(function, column, "found")
    return FrameSpec((aggregate,), pa.schema([]), INPUTS, Frame(rows=3), pa.timestamp("us"))


@pytest.mark.parametrize(
    ("function", "column"),
    [("collect_list", "n"), ("count_distinct", "n"), ("min", "text"), ("last", "text")],
)
def test_an_aggregate_without_a_fixed_size_is_refused_with_what_to_do(
    function: str, column: str
) -> None:
    says = r"'found'.* move with events.*the events of one group"
    with pytest.raises(DefinitionError, match=says):
        _spec(function, column)


@pytest.mark.parametrize("function", ["min", "last", "sum"])
def test_an_aggregate_of_fixed_size_is_taken(function: str) -> None:
    assert _spec(function, "n").layout.fields


def test_rows_within_a_range_are_features() -> None:
    frame = Frame(rows=3, range=1000)
    with pytest.raises(DefinitionError, match=r"over\(\.\.\., rows="):
        FrameSpec((), pa.schema([]), INPUTS, frame, pa.timestamp("us"))
