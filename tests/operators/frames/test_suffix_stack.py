from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from icestream.operators.folding.fields import Field, Layout
from icestream.operators.frames.layout import SharedLayout
from icestream.operators.frames.suffix_stack import fronts_of
from icestream.operators.grid.groups import HI_END
from icestream.operators.grid.partitions import Partition
from icestream.state.arena import Arena
from icestream.state.budget import Budget


def test_fronts_of_all_frames_are_lost_with_a_partition(tmp_path: Path) -> None:
    arena = Arena.create(str(tmp_path), Budget(1 << 20).account("groups"))
    layouts = [Layout.of((Field("min", "x0"),)), Layout.of((Field("max", "x0"),))]
    frames = SharedLayout.of_frames(layouts).frames
    facts: dict[str, Any] = {"low": 0, "high": HI_END, "fronts": 0, "next": 0, "stale": False}
    partition = Partition(facts, arena, 0)
    for place, fronts in enumerate(fronts_of(partition, arena, frames)):
        assert not fronts.stale
        fronts.stack.push(np.full((place + 1, 1), place))
        fronts.flipped = 7 + place
        fronts.note()
    again = fronts_of(partition, arena, frames)
    assert [fronts.flipped for fronts in again] == [7, 8]
    assert [fronts.stack.pop(n + 1).tolist() for n, fronts in enumerate(again)] == [
        [[0]],
        [[1]] * 2,
    ]
    partition.stale = True
    lost = fronts_of(partition, arena, frames)
    assert [(fronts.stale, fronts.stack.size) for fronts in lost] == [(True, 0)] * 2
    # noted by none yet: they are still to be made
    assert all(fronts.stale for fronts in fronts_of(partition, arena, frames))
