"""What frames with objects keep of their events."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from icestream.core.times import MINUS_INFINITY
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.frames.event_frames import EVENT_FIELDS
from icestream.operators.frames.object_frames import PASSED_ROWS, ObjectFrames, Slide
from icestream.operators.lifetimes.changes import changes_of
from icestream.plan.events.features import UP_TO_TIME
from icestream.plan.windows.frame import Frame, RowsSlide
from tests.oracles.plain_groups import PlainGroups

INPUTS = pa.schema([("text", pa.string())])
TEXTS = (Aggregate("collect_set", "text", "texts"),)


@pytest.mark.parametrize(
    ("frame", "events"),
    [
        (Frame(range=50, peers=True), 60),
        (Frame(rows=5), 10),
        (Frame(rows=5, range=1000), 1001),
        (UP_TO_TIME, 10),
        (Frame(range=50, slide=RowsSlide(7)), 60),
        (Frame(rows=5, slide=RowsSlide(7)), 10),
        (Frame(rows=5, slide=20), 30),
    ],
)
def test_bounded_events_behind_all_frames_are_gone(frame: Frame, events: int) -> None:
    slide = None if frame.slide is None else Slide(frame.slide, (), pa.field("time", pa.int64()))
    operator = ObjectFrames([(frame, TEXTS)], INPUTS, slide)
    groups = PlainGroups(operator.synopses)
    zero = np.zeros(10, dtype=np.uint64)
    watermark, shown = MINUS_INFINITY, 0
    for batch in range(300):
        times = np.arange(10) + 10 * batch
        numbers = [pa.array(np.full(10, batch)), pa.array(np.arange(10))]
        texts = pa.array([f"{n % 3}" for n in range(10)])
        schema = pa.schema([*EVENT_FIELDS, *INPUTS])
        payload = pa.RecordBatch.from_arrays([*numbers, texts], schema=schema)
        groups.begin(watermark)
        list(
            operator.on_changes(0, changes_of(payload, times, times + 1, 1, zero, zero), groups, 0)
        )
        groups.begin(watermark)
        watermark = int(times[-1]) + 1
        answers = list(operator.on_watermark(groups, watermark))
        shown += sum(each.num_rows for each in answers)
        groups.begin(watermark)
        slots = groups.locate(zero[:1], zero[:1])
        assert len(groups.read(0, slots).owners) <= events
        if frame is UP_TO_TIME:
            assert len(groups.read(1, slots).owners) <= PASSED_ROWS
        if isinstance(frame.slide, RowsSlide):
            assert len(groups.read(1, slots).owners) <= 1
        each = frame.slide.rows if isinstance(frame.slide, RowsSlide) else frame.slide or 1
        assert shown == (batch + 1) * 10 // each
