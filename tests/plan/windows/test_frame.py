from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from icestream.core.errors import DefinitionError
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.frames.spec import FrameSpec
from icestream.plan.windows.frame import Frame, RowsSlide

SECOND = 1_000_000
COUNT = (Aggregate("count", None, "n"),)


@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (Frame, "give one"),
        (lambda: Frame(range=SECOND, rows=3, slide=SECOND), "no slide in time"),
        (lambda: Frame(range=SECOND, rows=3, peers=True), "at every event"),
        (lambda: Frame(range=SECOND, rows=0), "positive"),
        (lambda: Frame(range=0), "positive"),
        (lambda: Frame(rows=-1), "positive"),
        (lambda: Frame(range=SECOND, slide=SECOND), r"use window\(range, slide\)"),
        (lambda: Frame(rows=3, slide=0), "positive"),
        (lambda: Frame(rows=3, partition="shard"), "'key' or by 'stream'"),
        (lambda: RowsSlide(0), "at least one row"),
    ],
)
def test_frames_without_meaning_are_refused(make: Callable[[], object], advice: str) -> None:
    with pytest.raises(DefinitionError, match=advice):
        make()


def test_one_shard_sees_all_events_where_all_groups_are_counted_together() -> None:
    together = [
        Frame(rows=3, partition="stream"),
        Frame(rows=3, slide=SECOND, partition="stream"),
        Frame(range=SECOND, slide=RowsSlide(2), partition="stream"),
    ]
    apart = [
        Frame(rows=3),
        Frame(range=SECOND, slide=RowsSlide(2)),
        Frame(range=SECOND, partition="stream"),
    ]
    assert all(frame.in_one_shard for frame in together)
    assert not any(frame.in_one_shard for frame in apart)


def test_an_event_is_settled_once_the_watermark_has_passed_it_or_its_instant() -> None:
    assert Frame(rows=3).settled_by(7) == 8
    assert Frame(rows=3, slide=10).settled_by(7) == 10
    assert Frame(rows=3, slide=10).settled_by(10) == 20
    assert Frame(rows=3, slide=10).settled_by(-1) == 0
    assert Frame(rows=3).late_before(7) == 7


def test_frames_that_differ_describe_themselves_otherwise() -> None:
    frames = [
        Frame(range=SECOND),
        Frame(rows=3),
        Frame(rows=3, partition="stream"),
        Frame(rows=3, slide=RowsSlide(2)),
        Frame(rows=3, slide=2 * SECOND),
    ]
    assert len({str(frame.describe()) for frame in frames}) == len(frames)
    assert Frame(rows=3, slide=2 * SECOND).describe()["slide"] == "2 seconds"


def test_aggregates_that_keep_objects_are_refused_with_advice() -> None:
    keys, inputs = pa.schema([("k0", pa.int64())]), pa.schema([("x0", pa.int64())])
    chosen = (Aggregate("collect_list", "x0", "all"),)
    with pytest.raises(DefinitionError, match="the events of one group"):
        FrameSpec(chosen, keys, inputs, Frame(rows=3), pa.timestamp("us"))


def test_grouping_sets_over_rows_of_the_whole_stream_are_refused() -> None:
    keys = pa.schema([("k0", pa.int64()), ("grouping_id", pa.int64())])
    frame = Frame(rows=3, partition="stream")
    with pytest.raises(DefinitionError, match="a query for each grouping"):
        FrameSpec(COUNT, keys, pa.schema([]), frame, pa.timestamp("us"))
