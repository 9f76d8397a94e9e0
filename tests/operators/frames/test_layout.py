from __future__ import annotations

import numpy as np

from icestream.kernels.frames.moving import EXTRAS
from icestream.operators.folding.fields import GROUP_FIELDS, Field, Layout
from icestream.operators.frames.layout import FrameLayout, SharedLayout

SUM, LEAST, MOST = Field("sum_i64", "x0"), Field("min", "x0"), Field("max", "x1")


def test_frames_have_words_of_their_own_in_a_row() -> None:
    frames = [Layout.of(fields) for fields in ((SUM,), (LEAST, MOST), (MOST, SUM))]
    shared = SharedLayout.of_frames(frames)
    used = list(range(GROUP_FIELDS))
    for own, frame in zip(frames, shared.frames, strict=True):
        assert frame.fields == own.fields
        used += range(frame.row_at, frame.group_width)
        assert frame.in_rows.tolist()[0] == frame.row_at
        assert frame.group_width - frame.row_at == own.field_words + own.suffix_words + EXTRAS
        ends = frame.group_width
        assert np.array_equal(
            shared.group_identity[frame.row_at : ends], frame.group_identity[frame.row_at :]
        )
    assert used == list(range(shared.group_width))
    assert len(shared.group_identity) == shared.group_width


def test_tuples_have_each_field_of_all_frames_once() -> None:
    shared = SharedLayout.of_frames([Layout.of((SUM,)), Layout.of((LEAST, SUM))])
    assert shared.fields == Layout.of((SUM, LEAST)).fields
    # id_high id_low rows sum least time
    assert shared.tuple_width == 6
    assert [frame.in_tuples.tolist() for frame in shared.frames] == [[2, 3], [2, 4, 3]]


def test_a_frame_alone_has_the_row_of_its_fields() -> None:
    fields = Layout.of((SUM, LEAST)).fields
    alone, shared = FrameLayout(fields), SharedLayout.of_frames([Layout(fields)])
    assert np.array_equal(alone.in_tuples, alone.places)
    assert np.array_equal(alone.group_identity, shared.group_identity)
    assert (alone.group_width, alone.row_at) == (shared.group_width, GROUP_FIELDS)
